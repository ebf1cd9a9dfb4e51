"""warp_specialised: a producer warp feeds consumers of four warps that share each tile's rows; resident programs, on Hopper.

Copying and multiplying are programs of their own: the producer gives its registers to the consumers and does nothing but ask the
copy engine for blocks, so that a consumer can hold an accumulator of 200 registers and starts products back to back (the division
of labour of CUTLASS's cooperative kernels). Tiles whose width is no power of two are put together from two accumulators side by
side, each with its own blocks of B: they read fewer bytes for a product, and cut sizes such as 1536 into fuller waves. Knob:
serpentine (every second band of group_m tile rows is walked back).

A tile's num_warps counts the consumers' warps; the producer's warp, and those that only fill its group of four, are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from kernel_zoo.kernels import _args, _rules, _tiles
from kernel_zoo.kernels._device import follow_launch
from kernel_zoo.kernels._gluon import (
    PAIR_REGISTERS,
    PRODUCER_REGISTERS,
    TRIO_REGISTERS,
    barriers,
    finish_products,
    produce,
    ring,
    staging_buffers,
    start_products,
    store_tile,
    tile_corner,
)
from kernel_zoo.kernels.tma import stores_through_tma
from kernel_zoo.spec import Arch, Argument, GemmCall, GemmProblem, KernelCall, Operand, Refusal, TileConfig, Variant, cdiv
from kernel_zoo.triton_compat import gl, gluon, hopper


@gluon.jit
def consume(
    OUT, a_ring, b_ring, rest_ring, full, empty, staging, part, M, N, K, group_m, stride_om, stride_on, scalars, reads,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    OUT_TMA: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """A consumer: its part of the rows of all of the program's tiles."""
    ROWS: gl.constexpr = BLOCK_M // PARTS
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    k_blocks = gl.cdiv(K, BLOCK_K)
    count = 0
    for index in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, col = tile_corner(index, M, N, group_m, BLOCK_M, BLOCK_N)
        sums = start_products(
            a_ring, b_ring, rest_ring, full, empty, count, k_blocks, part,
            ROWS, FIRST_N, BLOCK_N - FIRST_N, STAGES, PARTS, A_TRANSPOSED, B_TRANSPOSED,
        )  # fmt: skip
        count += k_blocks
        sums = finish_products(sums, empty, count, STAGES)
        store_tile(
            sums, row + part * ROWS, col, OUT, staging, part * BUFFERS, scalars, reads, M, N, stride_om, stride_on,
            ROWS, FIRST_N, PIECE_N, BUFFERS, OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
        )  # fmt: skip
    if OUT_TMA:
        hopper.tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "group_m", "stride_om", "stride_cm", "stride_im"])
def warp_specialised_kernel(
    A, B, B_REST, OUT, M, N, K, group_m, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cm, stride_cn, stride_im, stride_in,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    OUT_TMA: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
    DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Tiles program_id, program_id + programs, ..., each by PARTS consumers that one producer feeds."""
    a_ring = ring(A, STAGES * PARTS)
    b_ring = ring(B, STAGES)
    if B_REST is None:
        rest_ring: gl.constexpr = None
    else:
        rest_ring = ring(B_REST, STAGES)
    staging = staging_buffers(OUT, PARTS * BUFFERS, PIECE_N, OUT_TMA)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    hopper.fence_async_shared()
    follow_launch(DEPENDENT)
    # Written out, since a name for a tuple makes values of the constants in it.
    if PARTS == 2:
        gl.warp_specialize([
            (consume, (
                OUT, a_ring, b_ring, rest_ring, full, empty, staging, 0, M, N, K, group_m, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
                OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (consume, (
                OUT, a_ring, b_ring, rest_ring, full, empty, staging, 1, M, N, K, group_m, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
                OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (produce, (
                A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, M, N, K, group_m,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PARTS, FIRST_N, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ], [4, 1], [PAIR_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (
                OUT, a_ring, b_ring, rest_ring, full, empty, staging, 0, M, N, K, group_m, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
                OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (consume, (
                OUT, a_ring, b_ring, rest_ring, full, empty, staging, 1, M, N, K, group_m, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
                OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (consume, (
                OUT, a_ring, b_ring, rest_ring, full, empty, staging, 2, M, N, K, group_m, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
                OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (produce, (
                A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, M, N, K, group_m,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PARTS, FIRST_N, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ], [4, 4, 1], [TRIO_REGISTERS, TRIO_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


PIECE_ROWS: Final = 64
_PIECE_BYTES: Final = 128  # of a piece's row: the widest line that the copy engine swizzles
_READ_COLUMNS: Final = 32  # of a piece, where the epilogue reads a matrix
_ROOMY: Final = 128  # registers of an accumulator beside which any epilogue finds room: fitted to what ptxas allocates
#: Shared memory beside the ring and the staging buffers: barriers, and what the partitions are handed.
OVERHEAD_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Build:
    """How a program is put together for a tile.

    Attributes:
        first_n: columns of the first accumulator; those of the second are the rest.
        consumers: groups of four warps.
        parts: consumers that share a tile's rows; 1 where each has tiles of its own.
        stages: ring depths, the best guess first.
    """

    first_n: int
    consumers: int
    parts: int
    stages: tuple[int, ...]


#: By (block_m, block_n, block_k), best guesses first.
FAMILY: Final = {
    (128, 256, 64): Build(256, 2, 2, (4,)),
    (256, 128, 64): Build(128, 2, 2, (4,)),
    (256, 192, 64): Build(128, 2, 2, (3,)),
    (192, 128, 64): Build(128, 3, 3, (4,)),
    (128, 192, 64): Build(128, 2, 2, (4,)),
    (128, 144, 64): Build(128, 2, 2, (4,)),
    (256, 96, 64): Build(64, 2, 2, (4,)),
    (128, 96, 64): Build(64, 2, 2, (6,)),
}
_SHORT_US: Final = 8.0  # one program an SM, wherever it starts: early starts pay for longer launches than elsewhere
_MANY_TILES: Final = 512  # from here on, how many tile rows are walked together shows


def piece_columns(build: Build, block_n: int, out: Operand, c: Operand | None, bias: Operand | None) -> int:
    """Columns of a piece of the result: a line of 128 bytes, but no more than a narrow second accumulator has.

    Less where the epilogue reads a matrix, since every element of a piece then has addresses in registers.
    """
    reads = _matrices_read(c, bias) > 0
    return min(_PIECE_BYTES // out.itemsize, block_n - build.first_n or block_n, _READ_COLUMNS if reads else block_n)


def _matrices_read(c: Operand | None, bias: Operand | None) -> int:
    """How many operands the epilogue reads element by element: C, and a bias that varies along both dimensions."""
    return (c is not None) + (bias is not None and min(bias.strides[1:]) > 0)


def staging(build: Build, tile: TileConfig, itemsize: int, out_itemsize: int, columns: int, limit: int) -> tuple[int, int]:
    """(buffers of a consumer, all shared memory in bytes) for pieces of that many columns.

    As many buffers as divide a consumer's pieces, so that each tile starts with the same one, and as fit the limit; at least one.
    """
    pieces = tile.block_m // build.parts // PIECE_ROWS * (tile.block_n // columns)
    buffer = build.consumers * PIECE_ROWS * columns * out_itemsize
    fixed = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k * itemsize + OVERHEAD_BYTES
    counts = [count for count in range(1, pieces + 1) if pieces % count == 0]
    count = max((count for count in counts if fixed + count * buffer <= limit), default=1)
    return count, fixed + count * buffer


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """One product of 16-bit matrices that the copy engine can read, on Hopper."""
    if arch.capability != (9, 0):
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "9.0 (warpgroup products)")
    if problem.dtype not in ("fp16", "bf16"):
        return Refusal("dtype", f"inputs are {problem.dtype}", "fp16 or bf16")
    if problem.batch != 1:
        return Refusal("batch", f"the batch is {problem.batch}", "1: this variant computes one product")
    return _rules.first(
        (
            _rules.supports_float(problem, arch),
            _rules.needs_product(problem),
            _rules.tma_operand("a", problem.a, arch),
            _rules.tma_operand("b", problem.b, arch),
        )
    )


def fits_family(family: dict[tuple[int, int, int], Build], problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """Whether a tile is one of a family's, and its ring and staging buffers fit a block's shared memory."""
    build = family.get((tile.block_m, tile.block_n, tile.block_k))
    plain = tile.split_k == 1 and not {name for name, _ in tile.knobs} - {"serpentine"} and tile.group_m >= 1
    if build is None or not plain or tile.num_stages not in build.stages or tile.num_warps != 4 * build.consumers:
        known = ", ".join(f"{m}x{n}x{k} w{4 * item.consumers}" for (m, n, k), item in family.items())
        return Refusal("tile", f"the tile is {tile.describe()}", f"one of {known}, with its own stages; knob: serpentine")
    c, bias = problem.epilogue.c, problem.epilogue.bias
    registers = tile.block_m * tile.block_n // build.parts // 128
    long = (
        ("reads both C and bias", _matrices_read(c, bias) > 1),
        (f"has {problem.epilogue.activation}", problem.epilogue.activation in ("gelu", "gelu_tanh", "silu")),
        ("stores through pointers", not stores_through_tma(problem.out, arch)),
    )
    why = [words for words, applies in long if applies]
    everything = _matrices_read(c, bias) > 1 and problem.epilogue.activation == "gelu"
    limit = _ROOMY // 2 if everything and tile.block_m // build.parts > PIECE_ROWS else _ROOMY
    if registers > limit and why:
        given = f"the accumulator takes {registers} registers a thread, and the epilogue {' and '.join(why)}"
        return Refusal("registers", given, f"at most {limit} registers")
    columns = piece_columns(build, tile.block_n, problem.out, c, bias)
    needed = staging(build, tile, problem.a.itemsize, problem.out.itemsize, columns, arch.smem_per_block)[1]
    if needed > arch.smem_per_block:
        given = f"the tile takes {needed:,} bytes of shared memory"
        return Refusal("shared memory", given, f"at most {arch.smem_per_block:,} on {arch.name}")
    return None


def tiles_of(family: dict[tuple[int, int, int], Build], m: int, n: int) -> tuple[TileConfig, ...]:
    """A family's tiles for a result of (m, n)."""
    many = tuple(sides for sides in family if cdiv(m, sides[0]) * cdiv(n, sides[1]) >= _MANY_TILES)
    return _tiles_of(tuple(family.items()), many)


@cache
def _tiles_of(
    family: tuple[tuple[tuple[int, int, int], Build], ...], many: tuple[tuple[int, int, int], ...]
) -> tuple[TileConfig, ...]:
    found = [
        TileConfig(*sides, num_stages=stages, num_warps=4 * build.consumers) for sides, build in family for stages in build.stages
    ]
    large = [tile for tile in found if (tile.block_m, tile.block_n, tile.block_k) in many]
    more = [replace(tile, knobs=(("serpentine", 1),)) for tile in large] + [replace(tile, group_m=4) for tile in large]
    return (*found, *more)


def launch(kernel: Any, build: Build, call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch of as many programs as there are tiles, at most one an SM."""
    out = call.out.operand
    out_tma = stores_through_tma(out, call.arch)
    c, bias = (view.operand if view else None for view in (call.c, call.bias))
    columns = piece_columns(build, tile.block_n, out, c, bias)
    rest = tile.block_n - build.first_n
    tiles_m, tiles_n = cdiv(call.m, tile.block_m), cdiv(call.n, tile.block_n)
    dependent = _args.is_dependent(call, _SHORT_US)
    target: Argument = _args.descriptor(call.out, PIECE_ROWS, columns, 1) if out_tma else call.out
    return KernelCall(
        kernel,
        (min(tiles_m * tiles_n, call.arch.sm_count),),
        (
            _args.descriptor(call.a, tile.block_m // build.parts, tile.block_k, 1),
            _args.descriptor(call.b, tile.block_k, build.first_n, 1),
            _args.descriptor(call.b, tile.block_k, rest, 1) if rest else None,
            target,
            call.m,
            call.n,
            call.k,
            _walk(tile, tiles_m),
            *((0, 0) if out_tma else call.out.strides),
            call.c,
            call.bias,
            call.alpha,
            call.beta,
            *(call.c.strides if call.c else (0, 0)),
            *(call.bias.strides if call.bias else (0, 0)),
        ),
        {
            **_args.blocks(tile),
            "FIRST_N": build.first_n,
            "STAGES": tile.num_stages,
            "PARTS": build.parts,
            "PIECE_N": columns,
            "BUFFERS": staging(build, tile, call.a.operand.itemsize, out.itemsize, columns, call.arch.smem_per_block)[0],
            "A_TRANSPOSED": call.a.operand.layout == "t",
            "B_TRANSPOSED": call.b.operand.layout == "t",
            "OUT_TMA": out_tma,
            **_args.epilogue_constants(call),
            "WIDE": call.wide and not (out_tma and call.c is None and call.bias is None),
            "DEPENDENT": dependent,
        },
        num_warps=4,
        num_stages=tile.num_stages,
        dependent=dependent,
    )


def _walk(tile: TileConfig, tiles_m: int) -> int:
    """Tile rows that are walked together, as the kernel takes them: negative where every second band is walked back."""
    rows = min(tile.group_m, tiles_m)
    return -rows if tile.knob("serpentine") else rows


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """A tile of the family, within shared memory."""
    return fits_family(FAMILY, problem, tile, arch)


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """The family, and its other walks where a wave of tiles is a small part of the result."""
    return tiles_of(FAMILY, problem.m, problem.n)


def recipe(call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch."""
    return launch(warp_specialised_kernel, FAMILY[tile.block_m, tile.block_n, tile.block_k], call, tile)


VARIANT = Variant(
    name="warp_specialised",
    summary="a producer warp and consumers that share each tile, resident programs; large 16-bit products on Hopper",
    supports=supports,
    space=space,
    fits=fits,
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    kernels=(warp_specialised_kernel,),
    interpretable=False,
)
