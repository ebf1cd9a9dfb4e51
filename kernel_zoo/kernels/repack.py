"""repack: operands that TMA cannot read are copied by one launch into aligned workspace, where the tma kernel reads them.

A leading dimension that is no multiple of 16 bytes leaves a pointer kernel with 2-byte loads that pass through registers, at a
fifth of the tensor cores' rate. The copy is bound by memory, 2 (M K + K N) elements, and is small beside the product as soon as
M, N and K are some hundreds. An operand that TMA can read is used where it lies; a matrix that serves a whole batch is copied once.
Tiles and knobs are tma's, and so are a result's bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final, Literal

from kernel_zoo.kernels import _repack, _rules, _tiles, tma
from kernel_zoo.kernels._repack import repack_kernel
from kernel_zoo.kernels.tma import tma_kernel
from kernel_zoo.spec import (
    INT32_MAX,
    Arch,
    ByKind,
    GemmCall,
    GemmProblem,
    Operand,
    Recipe,
    Refusal,
    TileConfig,
    Variant,
    View,
    next_pow2,
)

#: The dimension along K, by operand: contiguous in the copy where the source has no unit stride.
_INNER: Final[dict[str, Literal["rows", "cols"]]] = {"A": "cols", "B": "rows"}


def needs_copy(name: str, operand: Operand, arch: Arch) -> bool:
    """Whether TMA cannot read an operand where it lies."""
    return _rules.tma_operand(name.lower(), operand, arch) is not None


def repacked(problem: GemmProblem, arch: Arch) -> GemmProblem:
    """The problem that the tma kernel is given: operands that TMA cannot read replaced by their copies."""
    a, b = problem.a, problem.b
    if needs_copy("A", a, arch):
        a = _repack.packed(a, _INNER["A"])
    if needs_copy("B", b, arch):
        b = _repack.packed(b, _INNER["B"])
    return replace(problem, a=a, b=b)


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """16-bit inputs, at least one of which TMA cannot read."""
    refusal = _rules.supports_float(problem, arch) or _rules.needs_product(problem)
    if refusal is not None:
        return refusal
    if problem.dtype not in ("fp16", "bf16"):
        return Refusal("dtype", f"inputs are {problem.dtype}", "fp16 or bf16 (repack)")
    if not arch.has_tma:
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "9.0 or newer (TMA)")
    for name, operand in (("a", problem.a), ("b", problem.b)):
        if max(operand.rows, operand.cols) > INT32_MAX:
            return Refusal(
                "size", f"{name} is {operand.rows} x {operand.cols}", "dimensions under 2^31 (TMA coordinates are 32-bit)"
            )
    if not needs_copy("A", problem.a, arch) and not needs_copy("B", problem.b, arch):
        return Refusal("alignment", "TMA can read a and b where they lie: nothing to repack", "an operand it cannot read (use tma)")
    return None


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """What tma says of the copies; a large tile may store through pointers where the epilogue reads nothing."""
    moved = repacked(problem, arch)
    refusal = tma.fits(moved, tile, arch)
    if refusal is not None and refusal.rule == "registers" and _light(moved, tile):
        return _rules.shared_memory_limit(moved, tile, arch, tma.epilogue_staging(moved, tile))
    return refusal


def _light(problem: GemmProblem, tile: TileConfig) -> bool:
    """Whether a 128x256 tile stores through pointers without spilling, if barely: compiled on both tested versions of triton."""
    known = (tile.block_m, tile.block_n, tile.num_warps, tile.knob("subtile"), tile.knob("flatten")) == (128, 256, 8, 2, 0)
    bare = problem.epilogue.c is None and problem.epilogue.bias is None and problem.epilogue.activation == "none"
    return known and bare and problem.out.itemsize == 2 and problem.batch == 1 and not problem.needs_int64()


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """A few of tma's tiles: each is a binary to compile and a trial that also pays for the copy."""
    if problem.dtype == "fp32":
        return ()
    if min(problem.m, problem.n) <= 64:
        return _narrow_space(max(16, next_pow2(min(problem.m, problem.n))), problem.m < problem.n)
    return _wide_space(tma.stores_through_tma(problem.out, arch))


#: A tile's (block_m, block_n, block_k, num_stages, num_warps), and its (flatten, persistent, subtile).
_Row = tuple[tuple[int, ...], tuple[int, int, int]]
_LARGE: Final[tuple[_Row, ...]] = (
    ((128, 256, 64, 4, 8), (0, 1, 2)),
    ((128, 256, 64, 3, 8), (0, 0, 2)),
)
_STAGED: Final[tuple[_Row, ...]] = (
    ((128, 256, 64, 4, 8), (1, 1, 2)),
    ((128, 128, 64, 4, 4), (1, 1, 1)),
)
#: Stores through pointers take an address for every element: more threads to share them.
_POINTERS: Final[tuple[_Row, ...]] = (((128, 128, 64, 4, 8), (0, 1, 1)),)
_SMALL: Final[tuple[_Row, ...]] = (
    ((128, 64, 64, 4, 4), (0, 0, 1)),
    ((64, 128, 128, 3, 4), (0, 0, 1)),
    ((64, 64, 128, 4, 4), (0, 0, 1)),
)
#: Of tma's tiles for a narrow side: block_m, block_k, stages.
_NARROW: Final = ((64, 128, 6), (64, 256, 3))


@cache
def _narrow_space(narrow: int, swap: bool) -> tuple[TileConfig, ...]:
    return tuple(tile for tile in tma.narrow_space(narrow, swap) if (tile.block_m, tile.block_k, tile.num_stages) in _NARROW)


@cache
def _wide_space(staged: bool) -> tuple[TileConfig, ...]:
    """Large tiles, mostly by resident programs, then smaller ones by one program each; by whether the output goes through TMA."""
    found = []
    for row, (flatten, persistent, subtile) in (*_LARGE, *(_STAGED if staged else _POINTERS), *_SMALL):
        (tile,) = _tiles.tiles(row)
        if persistent:
            tile = replace(tile, knobs=(("flatten", flatten), ("persistent", 1), ("subtile", subtile)))
        elif subtile > 1:
            tile = replace(tile, knobs=(("subtile", subtile),))
        found.append(tile)
    return tuple(found)


def recipe(call: GemmCall, tile: TileConfig) -> Recipe:
    """The copy, then the product over what it left in the workspace."""
    pairs: list[tuple[View, View]] = []
    a, end = _placed(call, call.a, 0, pairs)
    b, end = _placed(call, call.b, end, pairs)
    return Recipe((_repack.copying(pairs, call, tile), tma.recipe(replace(call, a=a, b=b), tile)), end)


def _placed(call: GemmCall, view: View, start: int, pairs: list[tuple[View, View]]) -> tuple[View, int]:
    """Where the tma kernel reads an operand, and the workspace's end; one that has to be copied there is added to `pairs`."""
    if not needs_copy(view.slot, view.operand, call.arch):
        return view, start
    copy = View("WS", _repack.packed(view.operand, _INNER[view.slot]), start)
    pairs.append((view, copy))
    return copy, start + _repack.packed_bytes(copy.operand, call.batch)


VARIANT = Variant(
    name="repack",
    summary="operands that TMA cannot read copied to aligned workspace by one launch, then tma; 16-bit, Hopper and newer",
    supports=ByKind(supports),
    space=space,
    fits=fits,
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    early_us=tma.VARIANT.early_us,
    kernels=(tma_kernel, repack_kernel),
)
