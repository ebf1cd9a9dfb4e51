"""persistent: as many programs as the GPU holds at once, each walking over tiles with a fixed stride; operands through pointers.

A program that stays resident pays its prologue once and can overlap the end of one tile with the start of the next (the idea of
CUTLASS's persistent schedulers and Triton's persistent matmul tutorial). Tiles of the whole batch form one sequence, in the same
grouped order as in `tiled`.
"""

from __future__ import annotations

from kernel_zoo.kernels import _args, _rules, _tiles
from kernel_zoo.kernels._device import finish, pointer_product, store_tile, tile_order
from kernel_zoo.spec import Arch, ByForm, ByKind, GemmCall, GemmProblem, KernelCall, Refusal, TileConfig, Variant, cdiv
from kernel_zoo.triton_compat import tl, triton


@triton.jit
def persistent_kernel(
    A, B, OUT, M, N, K, BATCH,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Tiles program_id, program_id + programs, ... of the batch's sequence of tiles."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    per_matrix = tiles_m * tiles_n
    MASK: tl.constexpr = not (EVEN_M and EVEN_N)
    for index in range(tl.program_id(0), per_matrix * BATCH, tl.num_programs(0)):
        batch = (index // per_matrix).to(tl.int64)
        tile_m, tile_n = tile_order(index % per_matrix, tiles_m, tiles_n, GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = pointer_product(
            A + batch * stride_ab, B + batch * stride_bb, rows, cols, M, N, K, 0, tl.cdiv(K, BLOCK_K),
            stride_am, stride_ak, stride_bk, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, EVEN_K, PRECISION, WIDE,
        )  # fmt: skip
        wide_rows = rows.to(tl.int64) if WIDE else rows
        wide_cols = cols.to(tl.int64) if WIDE else cols
        result = finish(
            acc, ALPHA, BETA, C + batch * stride_cb if HAS_C else C,
            BIAS_PTR + batch * stride_ib if BIAS != "none" else BIAS_PTR, wide_rows, wide_cols, M, N,
            stride_cm, stride_cn, stride_im, stride_in, HAS_C, BIAS, ACTIVATION, MASK,
        )  # fmt: skip
        store_tile(OUT + batch * stride_ob, result, wide_rows, wide_cols, M, N, stride_om, stride_on, MASK)


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """The zoo's float types, and something to multiply."""
    return _rules.supports_float(problem, arch) or _rules.needs_product(problem)


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """One pass over K, within registers and shared memory."""
    return _rules.one_pass(problem, tile, arch, registers=150)  # the loop over tiles keeps values of its own


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """The pointer tiles of 64 x 64 and more; a smaller problem has no second tile to overlap with."""
    return _tiles.pointer_tiles(problem, least=64)


def recipe(call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch of at most occupancy x SMs programs."""
    total = cdiv(call.m, tile.block_m) * cdiv(call.n, tile.block_n) * call.batch
    programs = min(total, call.arch.sm_count * _tiles.occupancy(call.a.operand.itemsize, tile, call.arch))
    return KernelCall(
        persistent_kernel,
        (programs,),
        (*_args.product_args(call), *_args.epilogue_args(call)),
        _args.pointer_constants(call, tile),
        tile.num_warps,
        tile.num_stages,
    )


VARIANT = Variant(
    name="persistent",
    summary="resident programs that walk over tiles, pointers; many tiles per SM",
    supports=ByKind(supports),
    space=space,
    fits=ByForm(fits),
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    kernels=(persistent_kernel,),
)
