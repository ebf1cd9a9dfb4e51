"""The second launch of every variant that splits K: sums the partial tiles in a fixed order and applies the whole epilogue once.

Partial sums stay in the accumulator's type. The order is that of the splits, whatever finished first, so results repeat bit for
bit.
"""

from __future__ import annotations

from typing import Final

from kernel_zoo.kernels import _args
from kernel_zoo.kernels._device import finish, follow_launch, store_tile
from kernel_zoo.spec import ITEMSIZE, GemmCall, KernelCall, Operand, View, cdiv, next_pow2
from kernel_zoo.triton_compat import tl, triton

_ELEMENTS: Final = 512  # per program: small, so that a small result still spreads over the SMs
_WARPS: Final = 4


@triton.jit
def reduce_kernel(
    WS, OUT, M, N, BATCH, stride_ws, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One block of the result: partials lie in WS as (SPLIT_K, BATCH, M, N)."""
    follow_launch(DEPENDENT)
    tiles_n = tl.cdiv(N, BLOCK_N)
    per_matrix = tl.cdiv(M, BLOCK_M) * tiles_n
    index = tl.program_id(0)
    batch = (index // per_matrix).to(tl.int64)
    within = index % per_matrix
    rows = (within // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (within % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    parts = WS + batch * M * N + rows[:, None] * N + cols[None, :]
    acc = tl.load(parts, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLIT_K):
        acc += tl.load(parts + tl.cast(stride_ws, tl.int64) * split, mask=mask, other=0.0)
    result = finish(
        acc, ALPHA, BETA, C + batch * stride_cb if HAS_C else C,
        BIAS_PTR + batch * stride_ib if BIAS != "none" else BIAS_PTR, rows, cols, M, N,
        stride_cm, stride_cn, stride_im, stride_in, HAS_C, BIAS, ACTIVATION, True,
    )  # fmt: skip
    store_tile(OUT + batch * stride_ob, result, rows, cols, M, N, stride_om, stride_on, True)


def workspace(call: GemmCall, split_k: int) -> View:
    """The partial tiles, (split_k x batch, m, n) in the accumulator's type, as a pointer argument."""
    return View("WS", Operand.dense(call.acc_dtype, split_k * call.batch * call.m, call.n))


def workspace_bytes(call: GemmCall, split_k: int) -> int:
    """Bytes of the partial tiles."""
    return split_k * call.batch * call.m * call.n * ITEMSIZE[call.acc_dtype]


def reduction(call: GemmCall, split_k: int) -> KernelCall:
    """The launch that sums `split_k` partial results and applies the epilogue."""
    block_n = min(next_pow2(call.n), 128)
    block_m = max(1, min(next_pow2(call.m), _ELEMENTS // block_n))
    programs = cdiv(call.m, block_m) * cdiv(call.n, block_n) * call.batch
    follows = call.arch.cc >= _args.DEPENDENT_CC  # it is short, whatever the launch before it is
    return KernelCall(
        reduce_kernel,
        (programs,),
        (
            workspace(call, split_k),
            call.out,
            call.m,
            call.n,
            call.batch,
            call.batch * call.m * call.n,
            call.out.batch_stride,
            *call.out.strides,
            *_args.epilogue_args(call),
        ),
        {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "SPLIT_K": split_k,
            **_args.epilogue_constants(call),
            "WIDE": call.wide or call.m * call.n >= 2**31,
            "DEPENDENT": follows,
        },
        _WARPS,
        1,
        follows,
    )
