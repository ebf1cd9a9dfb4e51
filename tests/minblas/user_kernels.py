"""Kernels as a user would write them: the tutorial's, right, and wrong in the ways people get it wrong."""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_zoo.spec import KernelCall, TileConfig, cdiv

TILES = [TileConfig(32, 32, 32), TileConfig(64, 32, 64, num_warps=8)]


@triton.jit
def tutorial_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    tile_m = pid // tl.cdiv(N, BLOCK_N)
    tile_n = pid % tl.cdiv(N, BLOCK_N)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        if FAULT == "no mask along K":
            left = BLOCK_K
        k_mask = steps < left
        a_ptrs = a_ptr + (rows % M)[:, None] * stride_am + (k * BLOCK_K + steps)[None, :] * stride_ak
        b_ptrs = b_ptr + (k * BLOCK_K + steps)[:, None] * stride_bk + (cols % N)[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=k_mask[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=k_mask[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
    if FAULT == "off by a little":
        acc = acc * 1.001
    keep = (rows[:, None] < M) & (cols[None, :] < N)
    if FAULT == "last row left out":
        keep = (rows[:, None] < M - 1) & (cols[None, :] < N)
    pointers = c_ptr + stride_cm * rows[:, None] + stride_cn * cols[None, :]
    if FAULT == "no mask at the store":
        tl.store(pointers, acc.to(c_ptr.dtype.element_ty))
    else:
        tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=keep)


def recipe_with(fault):
    """The tutorial's recipe over a kernel with that fault ("" for none)."""

    def recipe(call, tile):
        return KernelCall(
            tutorial_kernel,
            (cdiv(call.m, tile.block_m) * cdiv(call.n, tile.block_n),),
            (call.a, call.b, call.out, call.m, call.n, call.k, *call.a.strides, *call.b.strides, *call.out.strides),
            {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "FAULT": fault},
            tile.num_warps,
            tile.num_stages,
        )

    return recipe


recipe = recipe_with("")


def plain_recipe(call, tile):
    """The tutorial's recipe, under a name that another process can import."""
    return recipe(call, tile)


def torch_launch(a, b, out, *, alpha, beta, c, bias):
    """An opaque launcher that a CPU can run: alpha * a @ b + beta * c, summed in float64."""
    value = alpha * (a.double() @ b.double())
    if c is not None:
        value = value + beta * c.double()
    out.copy_(value)
