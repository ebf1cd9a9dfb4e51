"""What every candidate's binary needs: each tile that the variants can propose, compiled for a capability and read. Needs no GPU.

Tiles are found by asking the variants about a sample of problems that reaches every branch of their spaces; what differs in sizes,
group_m or split_k only is one binary. Each is compiled in its heaviest form first, and in the lighter ones (`FORMS`) only where
that one spills, is too large or does not compile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from kernel_zoo.build import Specialisation, specialise
from kernel_zoo.compile_pool import CompilePool
from kernel_zoo.compile_worker import Answer, compile_here
from kernel_zoo.spec import (
    FORMS,
    ITEMSIZE,
    VECTOR_BYTES,
    Arch,
    Epilogue,
    GemmProblem,
    Operand,
    Resources,
    TileConfig,
    Variant,
    binary_class,
    cdiv,
    next_pow2,
    pow2_divisor,
    tile_key,
)

Needs = Resources | str  # of a form's launches together, or why it does not compile
LAYOUTS: Final = ("nn", "nt", "tn", "tt")
DTYPES: Final = (("bf16", ""), ("fp32", "ieee"), ("fp32", "tf32"))
_WIDE: Final = 1000  # a multiple of 8, as 16-byte lines of 16-bit numbers need, and of no block
_NARROW: Final = (8, 24, 56)
#: Results that take fewer tiles of some shape when they are computed transposed.
_TURNED: Final = ((136, 104), (72, 136))
_ROWS: Final = (1, 2, 4)  # the most of each kind that `tile_key` tells apart
_FAR: Final = 100_000  # enough columns to fill any device
_DEEP: Final = 8200
_SIGNALS: Final = re.compile(r"\(exit code -(2|9|15)\)")  # the process was ended from outside, which says nothing of the kernel


@dataclass(frozen=True, slots=True)
class Item:
    """A key of the resource data, and a problem and tile that stand for it."""

    key: str
    variant: Variant
    problem: GemmProblem
    tile: TileConfig

    @property
    def at(self) -> tuple[int, ...] | None:
        """To how many bytes A's and B's lines are aligned, where that is neither best nor worst; and out's, where better."""
        aligns = (self.problem.a.line_align, self.problem.b.line_align)
        if self.problem.out.line_align > min(aligns):
            return (*aligns, self.problem.out.line_align)
        return None if aligns in ((VECTOR_BYTES,) * 2, (self.problem.a.itemsize,) * 2) else aligns


def items(variants: Iterable[Variant], arch: Arch) -> list[Item]:
    """Every candidate's key, in the keys' order."""
    found: dict[str, Item] = {}
    for variant in variants:
        for problem in _samples() if variant.recipe is not None else ():
            if variant.supports(problem, arch) is None:
                for key, tile in _candidates(variant, problem, arch).items():
                    found.setdefault(key, Item(key, variant, problem, tile))
    return [found[key] for key in sorted(found)]


def _candidates(variant: Variant, problem: GemmProblem, arch: Arch) -> dict[str, TileConfig]:
    """The legal tiles, by key: unsplit where that is legal, since the kernel then has the epilogue in it, else split most."""
    found: dict[str, TileConfig] = {}
    for tile in sorted(variant.space(problem, arch), key=lambda tile: tile.split_k):
        if variant.fits(problem, tile, arch) is None:
            whole = replace(tile, split_k=1)
            stands = whole if variant.fits(problem, whole, arch) is None else tile
            found[f"{variant.name} {binary_class(problem)} {tile_key(problem, tile)}"] = stands
    return found


def _samples() -> Iterator[GemmProblem]:
    """Problems, plain and with tails, among which every branch of every space is reached; of those of a key the heaviest first."""
    shapes = [(_WIDE, _WIDE, _WIDE), (200, 200, _DEEP), *((m, n, _WIDE) for m, n in _TURNED)]
    for narrow in (*_NARROW, *_ROWS):
        shapes += [(narrow, _WIDE, _DEEP), (_WIDE, narrow, _DEEP)]
    shapes += [shape for rows in _ROWS for shape in ((rows, _FAR, _DEEP), (_FAR, rows, _DEEP))]
    for m, n, k in shapes:
        for dtype, precision in DTYPES:
            for layout, aligns in product(LAYOUTS, _alignments(dtype)):
                odd = 0 if min(aligns) == VECTOR_BYTES else 1
                sizes = (m + (odd if m > 4 else 0), n + (odd if n > 4 else 0), k + odd)
                yield _problem(sizes, dtype, precision, layout, aligns)
    # Last, tiles that need an aligned out, though A or B is not.
    for sizes, (dtype, precision), layout in product(shapes, DTYPES, LAYOUTS):
        for aligns in _alignments(dtype):
            if min(aligns) < VECTOR_BYTES:
                yield _problem(sizes, dtype, precision, layout, aligns, VECTOR_BYTES)


def _alignments(dtype: str) -> list[tuple[int, int]]:
    """Of A and B, in bytes: vectors; then one element, which is the heaviest; then what admits tiles that are illegal there."""
    element = ITEMSIZE[dtype]
    between = [(align, align) for align in (4, 8) if align > element]
    return [(VECTOR_BYTES, VECTOR_BYTES), (element, element), (VECTOR_BYTES, element), (element, VECTOR_BYTES), *between]


def _problem(
    sizes: tuple[int, int, int], dtype: str, precision: str, layout: str, aligns: tuple[int, int], out: int = 0
) -> GemmProblem:
    """A plain problem whose lines of A and B start at multiples of just these bytes; out's of `out`, or as the worse of them."""
    m, n, k = sizes
    a = _operand(dtype, m, k, layout[0] == "t", aligns[0])
    b = _operand(dtype, k, n, layout[1] == "t", aligns[1])
    return GemmProblem(1, m, n, k, a, b, _operand(dtype, m, n, False, out or min(aligns)), Epilogue(), precision)


def _operand(dtype: str, rows: int, cols: int, transposed: bool, align: int) -> Operand:
    width = align // ITEMSIZE[dtype]
    units = cdiv(rows if transposed else cols, width)
    leading = width * (units if align == VECTOR_BYTES else units | 1)
    return Operand.of(dtype, rows, cols, (0, 1, leading) if transposed else (0, leading, 1), align)


def in_form(problem: GemmProblem, form: str, tile: TileConfig | None = None) -> GemmProblem:
    """A sample's problem in one of the `FORMS`; the even one is so for tiles whose sides are powers of two, and for `tile`."""
    if form == "plain":
        return problem
    if form == "heavy":
        full = problem.out
        return replace(problem, epilogue=Epilogue(alpha="x", beta="x", c=full, bias=full, activation="gelu"))
    odd = math.lcm(_odd(tile.block_m), _odd(tile.block_n)) if tile is not None else 1
    m, n = (size if size <= 4 else max(16, next_pow2(size)) * odd for size in (problem.m, problem.n))
    k = next_pow2(problem.k) * (_odd(tile.block_k) if tile is not None else 1)
    aligns = (problem.a.line_align, problem.b.line_align)
    return _problem((m, n, k), problem.dtype, problem.precision, problem.layout, aligns, problem.out.line_align)


def _odd(side: int) -> int:
    """What is left of a tile's side after its powers of two."""
    return side // pow2_divisor(side, 1 << 16)


def is_clean(needs: Needs, arch: Arch) -> bool:
    """The binary exists, keeps its values in registers and fits a block's shared memory."""
    return isinstance(needs, Resources) and not needs.spills and needs.shared_bytes <= arch.smem_per_block


def next_form(known: Mapping[str, Needs], arch: Arch) -> str | None:
    """The form that is to be compiled next, after those that are known; None where they decide."""
    for form in FORMS:
        if form not in known:
            return form
        if is_clean(known[form], arch):
            return None
    return None


def measure(
    todo: Sequence[Item], arch: Arch, known: Mapping[str, Mapping[str, Needs]], workers: int | None = None
) -> Generator[tuple[str, str, Needs], None, None]:
    """Compile what is missing of each item, the heaviest forms of all first; yields (key, form, needs) as they are ready.

    Close it to stop: what is under way is dropped. What a signal ended is not reported, and so is missing next time.

    Raises:
        RuntimeError: the compiler or the disassembler cannot be run here.
    """
    have = {item.key: dict(known.get(item.key, {})) for item in todo}
    with CompilePool(workers) as pool:
        for form in FORMS:
            due = [item for item in todo if next_form(have[item.key], arch) == form]
            pending = []
            for item in due:
                specs = _specialisations(item, form, arch)
                same = next((known for known in have[item.key] if _specialisations(item, known, arch) == specs), None)
                if same is not None:  # where masks are no part of a kernel, its even form is the plain one
                    have[item.key][form] = have[item.key][same]
                    yield item.key, form, have[item.key][form]
                else:
                    pending.append((item, [(spec, pool.submit(spec, arch.cc)) for spec in specs]))
            for item, submitted in pending:
                answers = [(spec, future.result()) for spec, future in submitted]
                needs = _together([compile_here(spec, arch.cc) if a.status == "unknown" else a for spec, a in answers])
                if needs is not None:
                    have[item.key][form] = needs
                    yield item.key, form, needs


def _specialisations(item: Item, form: str, arch: Arch) -> list[Specialisation]:
    """What the launches of an item's form are compiled as."""
    problem = in_form(item.problem, form, item.tile)
    return [specialise(call) for call in item.variant.plan(problem, item.tile, arch).calls]


def _together(answers: Sequence[Answer]) -> Needs | None:
    """What a recipe's launches need at most; None where a process was ended from outside."""
    found = []
    for answer in answers:
        if answer.status == "failed":
            return None if _SIGNALS.search(answer.message) else _without_paths(answer.message)
        if answer.resources is None:
            raise RuntimeError("the machine code cannot be read: cuobjdump is missing; install the triton wheel, which has it")
        found.append(answer.resources)
    kinds = {kind for needs in found for kind in needs.instructions}
    return Resources(
        max(needs.shared_bytes for needs in found),
        max(needs.registers for needs in found),
        sum(needs.spills for needs in found),
        tuple(sorted(kinds)),
    )


def _without_paths(message: str) -> str:
    """A compiler's message as it is on every machine."""
    return re.sub(r"/\S*/", "", message)[:160]
