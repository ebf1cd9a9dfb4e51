"""ping_pong: a producer warp and two consumers that own whole tiles in turn; resident programs, on Hopper.

While one consumer finishes and stores its tile, the other multiplies: two barriers let only one of them into its main loop at a
time, so that tensor cores always have work although every epilogue is long (CUTLASS's ping-pong schedule). A tile is held by four
warps, so it is smaller than those of `warp_specialised`, from which everything but the division of labour is taken: good for a
short K, for fp32 results, and for results of few tiles.

A tile's num_warps counts the two consumers' warps; the producer's warp, and those that only fill its group of four, are not in it.
"""

from __future__ import annotations

from typing import Final

from kernel_zoo.kernels import _tiles
from kernel_zoo.kernels._device import follow_launch
from kernel_zoo.kernels._gluon import (
    PAIR_REGISTERS,
    PRODUCER_REGISTERS,
    barriers,
    finish_products,
    produce,
    ring,
    staging_buffers,
    start_products,
    store_tile,
    tile_corner,
)
from kernel_zoo.kernels._partition_launch import launch
from kernel_zoo.kernels._partitions import EARLY_US, Build, Family, fits_family, supports, tiles_of
from kernel_zoo.spec import Arch, ByForm, ByKind, GemmCall, GemmProblem, KernelCall, Refusal, TileConfig, Variant
from kernel_zoo.triton_compat import gl, gluon, hopper


@gluon.jit
def turn_parity(turn, WHO: gl.constexpr):
    """The parity with which consumer WHO waits for its turn-th turn, as the other's arrivals complete phases.

    Consumer 1 waits for consumer 0's turn of the same number, consumer 0 for consumer 1's turn before it: its first wait passes, as
    a new barrier counts as having completed a phase of odd parity.
    """
    return (turn & 1) ^ (1 - WHO)


@gluon.jit
def consume_alternately(
    result, a_ring, b_ring, rest_ring, full, empty, order, WHO: gl.constexpr,
    batch, M, N, K, group_m, out_lines, stride_om, stride_on, scalars, reads,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PIECE_N: gl.constexpr, REST_PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr,
    HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Consumer WHO of 2: every second of the program's tiles, and of the ring's blocks those of these tiles."""
    tiles = batch * gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    k_blocks = gl.cdiv(K, BLOCK_K)
    programs = gl.num_programs(0)
    turn = 0
    for index in range(gl.program_id(0) + WHO * programs, tiles, 2 * programs):
        matrix, row, col = tile_corner(index, M, N, group_m, BLOCK_M, BLOCK_N)
        count = (2 * turn + WHO) * k_blocks
        hopper.mbarrier.wait(order.index(WHO), turn_parity(turn, WHO))
        sums = start_products(
            a_ring, b_ring, rest_ring, full, empty, count, k_blocks, 0,
            BLOCK_M, FIRST_N, BLOCK_N - FIRST_N, STAGES, 1, A_TRANSPOSED, B_TRANSPOSED,
        )  # fmt: skip
        # All products are under way: the other's queue up behind them.
        hopper.mbarrier.arrive(order.index(1 - WHO), count=1)
        sums = finish_products(sums, empty, count + k_blocks, STAGES)
        store_tile(
            sums, matrix, row, col, result, out_lines, WHO, scalars, reads, M, N, stride_om, stride_on,
            BLOCK_M, FIRST_N, PIECE_N, REST_PIECE_N, BUFFERS, GROUP, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
        )  # fmt: skip
        turn += 1  # noqa: SIM113  (Gluon has no enumerate)
    if OUT_TMA:
        hopper.tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "batch", "M", "N", "K", "group_m", "a_lines", "b_lines", "out_lines", "stride_om", "stride_cm", "stride_im", "stride_cb",
        "stride_ib",
    ]
)  # fmt: skip
def ping_pong_kernel(
    A, B, B_REST, OUT, OUT_REST, batch, M, N, K, group_m, a_lines, b_lines, out_lines, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, REST_PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr,
    HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Tiles program_id, program_id + programs, ..., by two consumers in turn that one producer feeds."""
    a_ring = ring(A, STAGES)
    b_ring = ring(B, STAGES)
    if B_REST is None:
        rest_ring: gl.constexpr = None
    else:
        rest_ring = ring(B_REST, STAGES)
    staging = staging_buffers(OUT, 2 * BUFFERS, PIECE_N, OUT_TMA, OUT_TRANSPOSED)
    if REST_PIECE_N == 0 or REST_PIECE_N == PIECE_N:
        rest_staging: gl.constexpr = None
    else:
        rest_staging = staging_buffers(OUT, 2 * BLOCK_M // 64, REST_PIECE_N, OUT_TMA, OUT_TRANSPOSED)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 1)
    order = barriers(2, 1)
    hopper.fence_async_shared()
    follow_launch(DEPENDENT)
    # Written out, since a name for a tuple makes values of the constants in it.
    gl.warp_specialize([
        (consume_alternately, (
            (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, order, 0,
            batch, M, N, K, group_m, out_lines, stride_om, stride_on,
            (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
            BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PIECE_N, REST_PIECE_N, BUFFERS, GROUP, A_TRANSPOSED, B_TRANSPOSED,
            OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
        )),
        (consume_alternately, (
            (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, order, 1,
            batch, M, N, K, group_m, out_lines, stride_om, stride_on,
            (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
            BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PIECE_N, REST_PIECE_N, BUFFERS, GROUP, A_TRANSPOSED, B_TRANSPOSED,
            OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
        )),
        (produce, (
            A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, batch, M, N, K, group_m, a_lines, b_lines,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PARTS, FIRST_N, A_TRANSPOSED, B_TRANSPOSED,
        )),
    ], [4, 1], [PAIR_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


FAMILY: Final = Family(
    {
        (128, 128, 64): Build(128, 2, 1, (6, 5)),
        (64, 256, 64): Build(256, 2, 1, (5,)),
        (128, 192, 64): Build(128, 2, 1, (5, 4)),
        (128, 160, 64): Build(128, 2, 1, (5, 4)),
        (64, 192, 64): Build(128, 2, 1, (6, 5)),
        (64, 128, 64): Build(128, 2, 1, (8,)),
        (64, 96, 64): Build(64, 2, 1, (10,)),
        (64, 128, 128): Build(128, 2, 1, (4,)),
        (64, 96, 128): Build(64, 2, 1, (5,)),
        (64, 64, 128): Build(64, 2, 1, (6,)),
    }
)


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """A tile of the family, within shared memory."""
    return fits_family(FAMILY, problem, tile, arch)


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """The family, and its other walks where a wave of tiles is a small part of the result."""
    return tiles_of(FAMILY, problem, arch)


def recipe(call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch."""
    return launch(ping_pong_kernel, FAMILY[tile.block_m, tile.block_n, tile.block_k], call, tile)


VARIANT = Variant(
    name="ping_pong",
    summary="a producer warp and two consumers that own tiles in turn, resident programs; short K or few tiles, 16 bits, Hopper",
    supports=ByKind(supports),
    space=space,
    fits=ByForm(fits),
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    early_us=EARLY_US,
    kernels=(ping_pong_kernel,),
    interpretable=False,
)
