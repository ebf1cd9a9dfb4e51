"""stream_k: whole waves of tiles as in warp_specialised, and what is left over cut into equal ranges of K blocks, one a program.

Tiles that do not fill whole waves leave SMs idle: 1.5 waves of tiles take as long as 2. Here the blocks of the tiles that are left
over, of all tiles where there are fewer than two waves, make one line, K innermost, which is cut into as many equal ranges as there
are programs. A range crosses from tile to tile; programs that share a tile keep partial sums, and whoever comes last adds them up in
the order of K (stream-K, in the hybrid form that keeps one to two waves for the line, so that a range is at least a tile long and a
tile has few sharers). Nobody waits for anybody, so that programs need not be on the device together.

A tile's num_warps counts the consumers' warps; the producer's warp, and those that only fill its group of four, are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from kernel_zoo.kernels import _tiles
from kernel_zoo.kernels._gluon import (
    PAIR_REGISTERS,
    PRODUCER_REGISTERS,
    barriers,
    finish_products,
    ring,
    staging_buffers,
    start_products,
    tile_corner,
)
from kernel_zoo.kernels._stream_k import finish_tile, hand_in, item_at, items_of, produce_stream, sharers_of
from kernel_zoo.kernels.warp_specialised import Build, fits_family, launch, supports
from kernel_zoo.spec import (
    INT32_MAX,
    ITEMSIZE,
    Arch,
    GemmCall,
    GemmProblem,
    Operand,
    Recipe,
    Refusal,
    TileConfig,
    Variant,
    View,
    cdiv,
)
from kernel_zoo.triton_compat import gl, gluon, hopper


@gluon.jit
def consume_stream(
    OUT, WS, COUNTERS, a_ring, b_ring, rest_ring, full, empty, staging, part,
    M, N, K, group_m, whole, stride_om, stride_on, scalars, reads,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    OUT_TMA: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """A consumer: its part of the rows of all of the program's items."""
    ROWS: gl.constexpr = BLOCK_M // PARTS
    program, programs = gl.program_id(0), gl.num_programs(0)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    k_blocks = gl.cdiv(K, BLOCK_K)
    count = 0
    for item in range(items_of(program, programs, tiles, k_blocks, whole)):
        index, first, last = item_at(item, program, programs, tiles, k_blocks, whole)
        row, col = tile_corner(index, M, N, group_m, BLOCK_M, BLOCK_N)
        sums = start_products(
            a_ring, b_ring, rest_ring, full, empty, count, last - first, part,
            ROWS, FIRST_N, BLOCK_N - FIRST_N, STAGES, PARTS, A_TRANSPOSED, B_TRANSPOSED,
        )  # fmt: skip
        count += last - first
        sums = finish_products(sums, empty, count, STAGES)
        leader = program + 0
        end = program + 1
        arrived = program * 0
        if last - first < k_blocks:
            leader, final = sharers_of(index, programs, tiles, k_blocks, whole)
            end = final + 1
            arrived = hand_in(
                sums, WS, COUNTERS + (index - whole) * PARTS + part, program, first, final - leader, part,
                PARTS, ROWS * BLOCK_N, PIECE_N,
            )  # fmt: skip
        if arrived == end - leader - 1:
            finish_tile(
                sums, WS, program, leader, end, part, row + part * ROWS, col, OUT, staging, scalars, reads, M, N, stride_om, stride_on,
                PARTS, ROWS * BLOCK_N, ROWS, FIRST_N, PIECE_N, BUFFERS, OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
            )  # fmt: skip
    if OUT_TMA:
        hopper.tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "group_m", "whole", "stride_om", "stride_cm", "stride_im"])
def stream_k_kernel(
    A, B, B_REST, OUT, WS, COUNTERS, M, N, K, group_m, whole, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cm, stride_cn, stride_im, stride_in,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    OUT_TMA: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """A program's range of the tiles from `whole` on, then tiles program_id, program_id + programs, ... below it.

    `whole` is a multiple of the programs. COUNTERS holds a zero for every streamed tile and consumer, and does so again afterwards.
    """
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
    # Written out, since a name for a tuple makes values of the constants in it.
    gl.warp_specialize([
        (consume_stream, (
            OUT, WS, COUNTERS, a_ring, b_ring, rest_ring, full, empty, staging, 0,
            M, N, K, group_m, whole, stride_om, stride_on,
            (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
            BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
            OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
        )),
        (consume_stream, (
            OUT, WS, COUNTERS, a_ring, b_ring, rest_ring, full, empty, staging, 1,
            M, N, K, group_m, whole, stride_om, stride_on,
            (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in),
            BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, BUFFERS, A_TRANSPOSED, B_TRANSPOSED,
            OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
        )),
        (produce_stream, (
            A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, M, N, K, group_m, whole,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PARTS, FIRST_N, A_TRANSPOSED, B_TRANSPOSED,
        )),
    ], [4, 1], [PAIR_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


#: By (block_m, block_n, block_k), best guesses first.
FAMILY: Final = {
    (128, 256, 64): Build(256, 2, 2, (4,)),
    (256, 128, 64): Build(128, 2, 2, (4,)),
    (128, 192, 64): Build(128, 2, 2, (4,)),
    (128, 128, 64): Build(128, 2, 2, (6,)),
    (256, 192, 64): Build(128, 2, 2, (3,)),
}
_LEAST_RANGE: Final = 4  # blocks of a range: a shorter one does not fill the ring
MOST_SHARERS: Final = 8  # of a tile: the last to come reads all others' partial sums


@dataclass(frozen=True, slots=True)
class Cut:
    """How the tiles of a problem are divided over programs.

    Attributes:
        programs: one a range.
        tiles: all.
        whole: those that a program computes by itself from the start, a multiple of the programs.
        k_blocks: of a tile.
    """

    programs: int
    tiles: int
    whole: int
    k_blocks: int

    @property
    def streamed(self) -> int:
        """Tiles whose blocks make the line that is cut."""
        return self.tiles - self.whole


def cut_of(m: int, n: int, k: int, tile: TileConfig, sm_count: int) -> Cut:
    """One program an SM, or fewer where ranges would be too short or tiles have too many sharers.

    One to two waves of tiles are streamed, where there are as many: a range is then a tile long at least, and crosses one border or
    two. None are where all waves are whole.
    """
    tiles, k_blocks = cdiv(m, tile.block_m) * cdiv(n, tile.block_n), cdiv(k, tile.block_k)
    programs = max(1, min(sm_count, tiles * k_blocks // _LEAST_RANGE, tiles * MOST_SHARERS))
    waves, over = divmod(tiles, programs)
    return Cut(programs, tiles, (waves if not over else max(0, waves - 1)) * programs, k_blocks)


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """A tile of the family, within shared memory, that leaves something over; indices of blocks are 32-bit numbers."""
    refusal = fits_family(FAMILY, problem, tile, arch)
    if refusal is not None:
        return refusal
    cut = cut_of(problem.m, problem.n, problem.k, tile, arch.sm_count)
    if not cut.streamed:
        return Refusal("tile", f"{cut.tiles} tiles are whole waves of {cut.programs} programs", "tiles that are left over")
    # A tile's block counts as one more, and the range after the last program's is asked for.
    if (cut.streamed * cut.k_blocks + 1) * (cut.programs + 1) > INT32_MAX or cut.tiles + cut.programs > INT32_MAX:
        return Refusal("size", f"{cut.streamed} tiles of {cut.k_blocks} k blocks are streamed", "products under 2^31 with the programs")
    return None


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """The family's tiles that leave SMs idle otherwise, walked in bands of rows and row by row."""
    return tuple(
        tile for tile in _candidates() if cut_of(problem.m, problem.n, problem.k, tile, arch.sm_count).streamed
    )


@cache
def _candidates() -> tuple[TileConfig, ...]:
    return tuple(
        TileConfig(*sides, group_m=group, num_stages=stages, num_warps=4 * build.consumers)
        for group in (8, 1)
        for sides, build in FAMILY.items()
        for stages in build.stages
    )


def recipe(call: GemmCall, tile: TileConfig) -> Recipe:
    """One launch; every program has two places for partial tiles, every streamed tile a counter for each consumer."""
    build = FAMILY[tile.block_m, tile.block_n, tile.block_k]
    cut = cut_of(call.m, call.n, call.k, tile, call.arch.sm_count)
    base = launch(stream_k_kernel, build, call, tile)
    size, counters = tile.block_m * tile.block_n, cut.streamed * build.parts
    kept = View("WS", Operand.dense(call.acc_dtype, 2 * cut.programs, size))
    counted = View("COUNTERS", Operand.dense("int32", 1, counters))
    operands, sizes, rest = base.args[:4], base.args[4:8], base.args[8:]
    one = replace(base, grid=(cut.programs,), args=(*operands, kept, counted, *sizes, cut.whole, *rest))
    return Recipe((one,), 2 * cut.programs * size * ITEMSIZE[call.acc_dtype], counters=counters)


def reduction(problem: GemmProblem, tile: TileConfig) -> str:
    """Where K is cut follows from all sizes, the tile, its walk and the device's SMs: no two problems, and no two rows of one, need
    be summed alike.
    """
    sizes = f"{problem.m}x{problem.n}x{problem.k}"
    return f"stream {sizes} by {tile.block_m}x{tile.block_n} g{tile.group_m} {_tiles.instruction_family(problem, tile)}"


VARIANT = Variant(
    name="stream_k",
    summary="warp_specialised whose last tiles are cut along K into equal ranges; 16-bit products that leave SMs idle, Hopper",
    supports=supports,
    space=space,
    fits=fits,
    recipe=recipe,
    reduction=reduction,
    kernels=(stream_k_kernel,),
    interpretable=False,
)
