"""tiled: one program per output tile, operands read through pointers.

The plain blocked GEMM of Triton's matmul tutorial and of every GEMM text, made complete: any strides (transposes live in the
pointer arithmetic), any size, a main loop without masks along K and one masked tail where K is ragged, tiles walked in groups
of GROUP_M rows so that a wave of programs shares its operands in L2. The batch lies on the other grid dimensions. It serves
whatever the others refuse, the call with nothing to multiply (K = 0 or alpha = 0) included.
"""

from __future__ import annotations

from kernel_zoo.kernels import _args, _rules, _tiles
from kernel_zoo.kernels._device import finish, pointer_product, store_tile, tile_order
from kernel_zoo.spec import Arch, ByForm, ByKind, GemmCall, GemmProblem, KernelCall, Refusal, TileConfig, Variant, cdiv
from kernel_zoo.triton_compat import tl, triton


@triton.jit
def tiled_kernel(
    A, B, OUT, M, N, K, BATCH,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of one matrix of the batch."""
    batch = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)).to(tl.int64)
    if batch < BATCH:
        tile_m, tile_n = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = pointer_product(
            A + batch * stride_ab, B + batch * stride_bb, rows, cols, M, N, K, 0, tl.cdiv(K, BLOCK_K),
            stride_am, stride_ak, stride_bk, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, EVEN_K, PRECISION, WIDE,
        )  # fmt: skip
        if WIDE:
            rows = rows.to(tl.int64)
            cols = cols.to(tl.int64)
        MASK: tl.constexpr = not (EVEN_M and EVEN_N)
        result = finish(
            acc, ALPHA, BETA, C + batch * stride_cb if HAS_C else C,
            BIAS_PTR + batch * stride_ib if BIAS != "none" else BIAS_PTR, rows, cols, M, N,
            stride_cm, stride_cn, stride_im, stride_in, HAS_C, BIAS, ACTIVATION, MASK,
        )  # fmt: skip
        store_tile(OUT + batch * stride_ob, result, rows, cols, M, N, stride_om, stride_on, MASK)


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """Everything in the float types the zoo knows."""
    return _rules.supports_float(problem, arch)


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """One pass over K, within registers and shared memory."""
    return _rules.one_pass(problem, tile, arch)


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """Tiles by input width: tensor-core tiles for 16-bit, smaller ones for fp32 on FMA units."""
    return _tiles.pointer_tiles(problem)


def recipe(call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch: tiles on the first grid dimension, the batch on the other two."""
    tiles = cdiv(call.m, tile.block_m) * cdiv(call.n, tile.block_n)
    return KernelCall(
        tiled_kernel,
        (tiles, *_args.batch_grid(call.batch)),
        (*_args.product_args(call), *_args.epilogue_args(call)),
        _args.pointer_constants(call, tile),
        tile.num_warps,
        tile.num_stages,
    )


VARIANT = Variant(
    name="tiled",
    summary="one program per tile, pointers; any strides, any size",
    supports=ByKind(supports),
    space=space,
    fits=ByForm(fits),
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    kernels=(tiled_kernel,),
)
