"""A kernel of your own: written, registered, checked, tuned, chosen.

The kernel is in the manner of Triton's matmul tutorial: fp16, tiles walked in groups so that neighbours share operands in L2, rows
and columns wrapped around by a modulo instead of masked, K masked.
"""

import torch
import triton
import triton.language as tl

import minblas
from minblas import KernelCall, TileConfig


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """One tile of C = A @ B."""
    pid = tl.program_id(axis=0)
    tiles_m = tl.cdiv(M, BLOCK_SIZE_M)
    tiles_n = tl.cdiv(N, BLOCK_SIZE_N)
    tiles_in_group = GROUP_SIZE_M * tiles_n
    first_m = pid // tiles_in_group * GROUP_SIZE_M
    group_size = min(tiles_m - first_m, GROUP_SIZE_M)
    tile_m = first_m + pid % tiles_in_group % group_size
    tile_n = pid % tiles_in_group // group_size

    rows = (tile_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    cols = (tile_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    steps = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + steps[None, :] * stride_ak)
    b_ptrs = b_ptr + (steps[:, None] * stride_bk + cols[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        left = K - k * BLOCK_SIZE_K
        a = tl.load(a_ptrs, mask=steps[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=steps[:, None] < left, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk

    out_rows = tile_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    out_cols = tile_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * out_rows[:, None] + stride_cn * out_cols[None, :]
    tl.store(c_ptrs, accumulator.to(tl.float16), mask=(out_rows[:, None] < M) & (out_cols[None, :] < N))


def recipe(call, tile):
    """What to launch, as data: minblas compiles, checks, interprets and launches what this describes."""
    grid = (triton.cdiv(call.m, tile.block_m) * triton.cdiv(call.n, tile.block_n),)
    return KernelCall(
        matmul_kernel,
        grid,
        args=(call.a, call.b, call.out, call.m, call.n, call.k, *call.a.strides, *call.b.strides, *call.out.strides),
        constants={
            "BLOCK_SIZE_M": tile.block_m,
            "BLOCK_SIZE_N": tile.block_n,
            "BLOCK_SIZE_K": tile.block_k,
            "GROUP_SIZE_M": tile.group_m,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def main() -> None:
    minblas.register_variant(
        "me.tutorial",
        recipe,
        dtypes=["fp16"],
        layouts=["nn"],
        epilogue="none",
        candidates=[
            TileConfig(64, 64, 32, num_warps=4, num_stages=4),
            TileConfig(128, 64, 64, num_warps=4, num_stages=4),
            TileConfig(128, 128, 64, num_warps=8, num_stages=3),
            TileConfig(128, 256, 64, num_warps=8, num_stages=3),
        ],
    )
    print(minblas.check("me.tutorial"))

    if torch.cuda.is_available():
        print(minblas.tune([(4096, 4096, 4096)], dtype="fp16", variants=["me.tutorial"]))
        chosen = minblas.explain(4096, 4096, 4096, dtype="fp16")
        print(f"a call of that size now gets {chosen.variant} ({chosen.rung}, {chosen.table})")
    else:
        try:
            minblas.tune([(4096, 4096, 4096)], dtype="fp16", variants=["me.tutorial"])
        except minblas.errors.DeviceError as error:
            print(f"not tuned: {error}")

    # Forced, it serves on any machine; where it cannot, the error is the sentence that explain shows.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(80, 80, device=device, dtype=torch.float16) for _ in range(2))
    out = minblas.gemm(a, b, variant="me.tutorial")
    print(f"forced: largest error {(out.double() - a.double() @ b.double()).abs().max():.3g}")
    try:
        minblas.gemm(a.bfloat16(), b.bfloat16(), variant="me.tutorial")
    except minblas.errors.VariantError as error:
        print(f"in bf16: {error}")


if __name__ == "__main__":
    main()
