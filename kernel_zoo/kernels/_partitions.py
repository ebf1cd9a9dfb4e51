"""How programs of the warp-specialised families are built, and which tiles are legal (`_partition_launch` launches them).

A batch is one long matrix: its matrices lie under one descriptor, each a number of lines after the one before it, so that a tile's
blocks are found by adding to a coordinate. What a block reads beyond its own matrix is then the next one's, and not zeros; the
rules of `_batch_fits` keep that out of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from kernel_zoo.kernels import _rules
from kernel_zoo.kernels.tma import stores_through_tma
from kernel_zoo.spec import INT32_MAX, Arch, GemmProblem, Operand, Refusal, TileConfig

PIECE_ROWS: Final = 64
_PIECE_BYTES: Final = 128  # of a piece's row: the widest line that the copy engine swizzles
_READ_COLUMNS: Final = 32  # of a piece, where the epilogue reads a matrix
_ROOMY: Final = 128  # registers of an accumulator beside which any epilogue finds room: fitted to what ptxas allocates
#: Shared memory beside the ring and the staging buffers: barriers, and what the partitions are handed.
OVERHEAD_BYTES: Final = 512
EARLY_US: Final = 8.0  # one program an SM, wherever it starts: early starts pay for longer launches than elsewhere
_KNOBS: Final = frozenset({"early", "serpentine", "swap"})
_FEWER: Final = 0.8
_MANY_TILES: Final = 512  # from here on, how many tile rows are walked together shows

Sides = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Build:
    """How a program is put together for a tile.

    Attributes:
        first_n: columns of the first accumulator; those of the second are the rest.
        consumers: groups of four warps.
        parts: consumers that share a tile's rows; 1 where each has tiles of its own.
        stages: ring depths, the best guess first; the last leaves room for results in fp32.
    """

    first_n: int
    consumers: int
    parts: int
    stages: tuple[int, ...]


class Family(dict[Sides, Build]):
    """A kernel's builds by (block_m, block_n, block_k), best guesses first. There is one of each, so that identity is its hash."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A problem's operands as the kernel has them: with the knob `swap` it computes out.T = b.T @ a.T."""

    m: int
    n: int
    a: Operand
    b: Operand
    out: Operand
    c: Operand | None
    bias: Operand | None

    @classmethod
    def of(cls, problem: GemmProblem, swap: bool) -> _Frame:
        c, bias = problem.epilogue.c, problem.epilogue.bias
        if not swap:
            return cls(problem.m, problem.n, problem.a, problem.b, problem.out, c, bias)
        return cls(problem.n, problem.m, problem.b.T, problem.a.T, problem.out.T, c.T if c else None, bias.T if bias else None)


def out_through_tma(out: Operand, arch: Arch) -> bool:
    """Whether the result, in the kernel's orientation, can be stored through a descriptor, by rows or by columns."""
    return stores_through_tma(out.T if out.layout == "t" else out, arch)


@dataclass(frozen=True, slots=True)
class Staging:
    """How a result goes to memory: through buffers for pieces of it, some of which are stored together.

    Attributes:
        columns: of a piece: a line of 128 bytes, or less.
        rest_columns: of a piece of the second accumulator; 0 where there is none. Where it is narrower than a line its pieces have
            buffers of their own.
        buffers: for pieces of `columns`, of each consumer. They divide its pieces, so that each tile begins with the same one.
        group: pieces that are written before the first of them is stored.
        total_bytes: shared memory of the whole program: these buffers, the ring, and what is beside them.
    """

    columns: int
    rest_columns: int
    buffers: int
    group: int
    total_bytes: int

    @classmethod
    def of(cls, build: Build, tile: TileConfig, itemsize: int, out: Operand, reads: int, limit: int) -> Staging:
        """As many buffers as fit `limit` bytes, at least one.

        Args:
            build: the program.
            tile: its tile.
            itemsize: bytes of an input's element.
            out: the result.
            reads: matrices that the epilogue reads. Every element of a piece then has addresses in registers, so pieces are narrow.
            limit: shared memory of a block in bytes.
        """
        return _staging(build, tile, itemsize, out.itemsize, reads, limit)

    @classmethod
    def _of(cls, build: Build, tile: TileConfig, itemsize: int, out_itemsize: int, reads: int, limit: int) -> Staging:
        line = min(_PIECE_BYTES // out_itemsize, _READ_COLUMNS if reads else tile.block_n)
        rest = tile.block_n - build.first_n
        columns, rest_columns = min(line, build.first_n), min(line, rest)
        down = tile.block_m // build.parts // PIECE_ROWS
        apart = 0 < rest_columns < columns
        pieces = down * ((build.first_n if apart else tile.block_n) // columns)
        line_bytes = build.consumers * PIECE_ROWS * out_itemsize
        fixed = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k * itemsize + OVERHEAD_BYTES
        fixed += down * rest_columns * line_bytes if apart else 0
        counts = [count for count in range(1, pieces + 1) if pieces % count == 0]
        buffers = max((count for count in counts if fixed + count * columns * line_bytes <= limit), default=1)
        group = buffers if buffers == pieces else next(size for size in (buffers // 2, 1) if size and buffers % size == 0)
        return cls(columns, rest_columns, buffers, group, fixed + buffers * columns * line_bytes)


_staging = lru_cache(maxsize=1 << 10)(Staging._of)  # of the families' tiles, whose number times types and reads stays below


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """16-bit matrices that the copy engine can read, on Hopper; of a batch, matrices that lie whole lines apart."""
    if arch.capability != (9, 0):
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "9.0 (warpgroup products)")
    if problem.dtype not in ("fp16", "bf16"):
        return Refusal("dtype", f"inputs are {problem.dtype}", "fp16 or bf16")
    found = _rules.first(
        (
            _rules.supports_float(problem, arch),
            _rules.needs_product(problem),
            _rules.tma_operand("a", problem.a, arch),
            _rules.tma_operand("b", problem.b, arch),
        )
    )
    if found is not None or problem.batch == 1:
        return found
    if not out_through_tma(problem.out, arch):
        return Refusal("batch", "the batch's results cannot be stored through TMA", "an out whose rows begin and end at 16 bytes")
    operands = (("a", problem.a), ("b", problem.b), ("out", problem.out))
    return _rules.first(_lines_apart(name, operand, problem.batch) for name, operand in operands)


def _lines_apart(name: str, operand: Operand, batch: int) -> Refusal | None:
    """Whether a batch's matrices lie a whole number of lines apart, all under one descriptor."""
    apart, line = operand.strides[0], operand.leading
    if apart % line or apart < 0:
        given = f"{name}'s matrices lie {apart} elements apart, and their lines {line}"
        return Refusal("batch", given, "a whole number of lines from one matrix to the next")
    if batch * (apart // line) + max(operand.rows, operand.cols) > INT32_MAX:
        return Refusal("size", f"{name} has {batch * (apart // line)} lines in all", "fewer than 2^31 (TMA coordinates are 32-bit)")
    return None


def fits_family(family: Family, problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """Whether a tile is one of a family's, and its ring and staging buffers fit a block's shared memory."""
    build = family.get((tile.block_m, tile.block_n, tile.block_k))
    plain = tile.split_k == 1 and not {name for name, _ in tile.knobs} - _KNOBS and tile.group_m >= 1
    if build is None or not plain or tile.num_stages not in build.stages or tile.num_warps != 4 * build.consumers:
        known = ", ".join(f"{m}x{n}x{k} w{4 * item.consumers}" for (m, n, k), item in family.items())
        return Refusal(
            "tile", f"the tile is {tile.describe()}", f"one of {known}, with its own stages; knobs: early, serpentine, swap"
        )
    frame = _Frame.of(problem, bool(tile.knob("swap")))
    through_tma = out_through_tma(frame.out, arch)
    if tile.knob("swap") and not through_tma:
        return Refusal(
            "tile", "a transposed result cannot be stored through pointers", "an out whose rows begin and end at 16 bytes"
        )
    if problem.batch > 1 and (refusal := _batch_fits(frame, problem.k, tile)) is not None:
        return refusal
    reads = len(_rules.full_reads(frame.c, frame.bias))
    everything = reads > 1
    activation = problem.epilogue.activation
    long = (
        ("reads both C and bias", everything),
        ("reads a matrix across its lines", bool(tile.knob("swap")) and reads > 0),
        (f"has {activation}", activation in ("gelu", "gelu_tanh", "silu")),
        ("stores through pointers", not through_tma),
    )
    why = [words for words, applies in long if applies]
    registers = tile.block_m * tile.block_n // build.parts // 128
    tight = (everything and activation == "gelu") or (activation != "none" and bool(tile.knob("swap")))
    limit = _ROOMY // 2 if tight and tile.block_m // build.parts > PIECE_ROWS else _ROOMY
    if registers > limit and why:
        given = f"the accumulator takes {registers} registers a thread, and the epilogue {' and '.join(why)}"
        return Refusal("registers", given, f"at most {limit} registers")
    needed = Staging.of(build, tile, problem.a.itemsize, frame.out, reads, arch.smem_per_block).total_bytes
    if needed > arch.smem_per_block:
        given = f"the tile takes {needed:,} bytes of shared memory"
        return Refusal("shared memory", given, f"at most {arch.smem_per_block:,} on {arch.name}")
    return None


def _batch_fits(frame: _Frame, k: int, tile: TileConfig) -> Refusal | None:
    """Whether nothing of the matrix before or after can get into a result, nor a result into its neighbour.

    Blocks end with the matrix along its lines, where the descriptor does. Across lines they may reach into the next matrix: that
    must not be stored, nor be summed along K.
    """
    names = "NM" if tile.knob("swap") else "MN"
    by_columns = frame.out.layout == "t"
    rules = [(names[by_columns], *((frame.n, tile.block_n) if by_columns else (frame.m, tile.block_m)))]
    if (frame.a.layout == "t" and frame.a.strides[0]) or (frame.b.layout == "n" and frame.b.strides[0]):
        rules.append(("K", k, tile.block_k))
    for name, size, block in rules:
        if size % block:
            return Refusal(
                "batch", f"blocks of {block} along {name} = {size} reach into the next matrix", f"a block that divides {size}"
            )
    return None


def tiles_of(family: Family, problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """A family's tiles for a problem; transposed where that takes fewer waves, or as many with clearly fewer tiles."""
    m, n, batch, sms = problem.m, problem.n, problem.batch, arch.sm_count
    many: list[Sides] = []
    turned: list[Sides] = []
    for sides in family:
        rows, cols, _ = sides
        tiles = batch * -(-m // rows) * -(-n // cols)
        if tiles >= _MANY_TILES:
            many.append(sides)
        elif rows != cols:
            others = batch * -(-n // rows) * -(-m // cols)
            saved = -(-tiles // sms) - -(-others // sms)
            if saved > 0 or (saved == 0 and others <= _FEWER * tiles):
                turned.append(sides)
    return _tiles_of(family, tuple(many), tuple(turned))


@cache
def _tiles_of(family: Family, many: tuple[Sides, ...], turned: tuple[Sides, ...]) -> tuple[TileConfig, ...]:
    found = {
        sides: [TileConfig(*sides, num_stages=stages, num_warps=4 * build.consumers) for stages in build.stages]
        for sides, build in family.items()
    }
    large = [tile for sides in many for tile in found[sides]]
    more = [replace(tile, knobs=(("serpentine", 1),)) for tile in large] + [replace(tile, group_m=4) for tile in large]
    more += [replace(tile, knobs=(("swap", 1),)) for sides in turned for tile in found[sides]]
    return (*(tile for tiles in found.values() for tile in tiles), *more)
