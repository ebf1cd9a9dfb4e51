"""warp_specialised: a producer warp feeds consumers of four warps that share each tile's rows; resident programs, on Hopper.

Copying and multiplying are programs of their own: the producer gives its registers to the consumers and does nothing but ask the
copy engine for blocks, so that a consumer can hold an accumulator of 200 registers and starts products back to back (the division
of labour of CUTLASS's cooperative kernels). Tiles whose width is no power of two are put together from two accumulators side by
side, each with its own blocks of B: they read fewer bytes for a product, and cut sizes such as 1536 into fuller waves. Knobs:
serpentine (every second band of group_m tile rows is walked back), swap (the transposed result is computed).

A tile's num_warps counts the consumers' warps; the producer's warp, and those that only fill its group of four, are not in it.
"""

from __future__ import annotations

from typing import Final

from kernel_zoo.kernels import _tiles
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
from kernel_zoo.kernels._partition_launch import launch
from kernel_zoo.kernels._partitions import EARLY_US, Build, Family, fits_family, supports, tiles_of
from kernel_zoo.spec import Arch, ByForm, ByKind, GemmCall, GemmProblem, KernelCall, Refusal, TileConfig, Variant
from kernel_zoo.triton_compat import gl, gluon, hopper


@gluon.jit
def consume(
    result, a_ring, b_ring, rest_ring, full, empty, part, batch, M, N, K, group_m, out_lines, stride_om, stride_on, scalars, reads,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, REST_PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr,
    HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """A consumer: its part of the rows of all of the program's tiles."""
    ROWS: gl.constexpr = BLOCK_M // PARTS
    tiles = batch * gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    k_blocks = gl.cdiv(K, BLOCK_K)
    count = 0
    for index in range(gl.program_id(0), tiles, gl.num_programs(0)):
        matrix, row, col = tile_corner(index, M, N, group_m, BLOCK_M, BLOCK_N)
        sums = start_products(
            a_ring, b_ring, rest_ring, full, empty, count, k_blocks, part,
            ROWS, FIRST_N, BLOCK_N - FIRST_N, STAGES, PARTS, A_TRANSPOSED, B_TRANSPOSED,
        )  # fmt: skip
        count += k_blocks
        sums = finish_products(sums, empty, count, STAGES)
        store_tile(
            sums, matrix, row + part * ROWS, col, result, out_lines, part, scalars, reads, M, N, stride_om, stride_on,
            ROWS, FIRST_N, PIECE_N, REST_PIECE_N, BUFFERS, GROUP, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
        )  # fmt: skip
    if OUT_TMA:
        hopper.tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "batch", "M", "N", "K", "group_m", "a_lines", "b_lines", "out_lines", "stride_om", "stride_cm", "stride_im", "stride_cb",
        "stride_ib",
    ]
)  # fmt: skip
def warp_specialised_kernel(
    A, B, B_REST, OUT, OUT_REST, batch, M, N, K, group_m, a_lines, b_lines, out_lines, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, FIRST_N: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, PIECE_N: gl.constexpr, REST_PIECE_N: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr,
    HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Tiles program_id, program_id + programs, ..., each by PARTS consumers that one producer feeds."""
    a_ring = ring(A, STAGES * PARTS)
    b_ring = ring(B, STAGES)
    if B_REST is None:
        rest_ring: gl.constexpr = None
    else:
        rest_ring = ring(B_REST, STAGES)
    staging = staging_buffers(OUT, PARTS * BUFFERS, PIECE_N, OUT_TMA, OUT_TRANSPOSED)
    if REST_PIECE_N == 0 or REST_PIECE_N == PIECE_N:
        rest_staging: gl.constexpr = None
    else:
        rest_staging = staging_buffers(OUT, BLOCK_M // 64, REST_PIECE_N, OUT_TMA, OUT_TRANSPOSED)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    hopper.fence_async_shared()
    follow_launch(DEPENDENT)
    # Written out, since a name for a tuple makes values of the constants in it.
    if PARTS == 2:
        gl.warp_specialize([
            (consume, (
                (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, 0,
                batch, M, N, K, group_m, out_lines, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, REST_PIECE_N, BUFFERS, GROUP,
                A_TRANSPOSED, B_TRANSPOSED, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (consume, (
                (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, 1,
                batch, M, N, K, group_m, out_lines, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, REST_PIECE_N, BUFFERS, GROUP,
                A_TRANSPOSED, B_TRANSPOSED, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (produce, (
                A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, batch, M, N, K, group_m, a_lines, b_lines,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PARTS, FIRST_N, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ], [4, 1], [PAIR_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (
                (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, 0,
                batch, M, N, K, group_m, out_lines, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, REST_PIECE_N, BUFFERS, GROUP,
                A_TRANSPOSED, B_TRANSPOSED, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (consume, (
                (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, 1,
                batch, M, N, K, group_m, out_lines, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, REST_PIECE_N, BUFFERS, GROUP,
                A_TRANSPOSED, B_TRANSPOSED, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (consume, (
                (OUT, OUT_REST, staging, rest_staging), a_ring, b_ring, rest_ring, full, empty, 2,
                batch, M, N, K, group_m, out_lines, stride_om, stride_on,
                (ALPHA, BETA), (C, BIAS_PTR, stride_cm, stride_cn, stride_im, stride_in, stride_cb, stride_ib),
                BLOCK_M, BLOCK_N, BLOCK_K, FIRST_N, STAGES, PARTS, PIECE_N, REST_PIECE_N, BUFFERS, GROUP,
                A_TRANSPOSED, B_TRANSPOSED, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
            )),
            (produce, (
                A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, batch, M, N, K, group_m, a_lines, b_lines,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PARTS, FIRST_N, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ], [4, 4, 1], [TRIO_REGISTERS, TRIO_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


FAMILY: Final = Family(
    {
        (128, 256, 64): Build(256, 2, 2, (4,)),
        (256, 128, 64): Build(128, 2, 2, (4,)),
        (192, 128, 64): Build(128, 3, 3, (5, 4)),
        (128, 192, 64): Build(128, 2, 2, (5,)),
        (128, 144, 64): Build(128, 2, 2, (6, 5)),
        (128, 96, 64): Build(64, 2, 2, (6,)),
        (128, 64, 128): Build(64, 2, 2, (4,)),
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
    return launch(warp_specialised_kernel, FAMILY[tile.block_m, tile.block_n, tile.block_k], call, tile)


VARIANT = Variant(
    name="warp_specialised",
    summary="a producer warp and consumers that share each tile, resident programs; large 16-bit products on Hopper",
    supports=ByKind(supports),
    space=space,
    fits=ByForm(fits),
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    early_us=EARLY_US,
    kernels=(warp_specialised_kernel,),
    interpretable=False,
)
