"""gemv: a product with one to four rows (or columns), on CUDA cores.

Such a call is a pass over the larger matrix: its time is that matrix's bytes over the memory bandwidth, and tensor cores would
idle. Each program streams a block of columns with wide loads that do not stay in L2, keeps its sums in registers in fp32 and
reduces them once at the end. Where the columns give too few programs, K is split and the shared reduction adds the parts. Of
the two orientations the one whose narrow side is M is computed; the matrix may be contiguous along either dimension.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from typing import Final

from kernel_zoo.kernels import _args, _reduce, _rules
from kernel_zoo.kernels._device import finish, follow_launch, store_tile
from kernel_zoo.kernels._reduce import reduce_kernel
from kernel_zoo.spec import FEW, Arch, ByKind, GemmCall, GemmProblem, KernelCall, Recipe, Refusal, TileConfig, Variant, cdiv
from kernel_zoo.triton_compat import tl, triton

MAX_ROWS = FEW
MAX_SPLIT = 64


@triton.jit
def load_weights(pointers, k_mask, col_mask, K_INNER: tl.constexpr, MASK_K: tl.constexpr, MASK_N: tl.constexpr):
    """A block of the matrix, (N, K) where K_INNER, else (K, N); read once, so it need not stay in L2."""
    if K_INNER:
        mask = (col_mask[:, None] | (not MASK_N)) & (k_mask[None, :] | (not MASK_K))
    else:
        mask = (k_mask[:, None] | (not MASK_K)) & (col_mask[None, :] | (not MASK_N))
    if MASK_K or MASK_N:
        weights = tl.load(pointers, mask=mask, other=0.0, eviction_policy="evict_first")
    else:
        weights = tl.load(pointers, eviction_policy="evict_first")
    return weights.to(tl.float32)


@triton.jit
def load_row(pointers, k_mask, K_INNER: tl.constexpr, MASK_K: tl.constexpr):
    """A stretch of one row of A, shaped to multiply a block of the matrix."""
    if MASK_K:
        row = tl.load(pointers, mask=k_mask, other=0.0)
    else:
        row = tl.load(pointers)
    row = row.to(tl.float32)
    if K_INNER:
        shaped = row[None, :]
    else:
        shaped = row[:, None]
    return shaped


@triton.jit
def add_products(
    acc0, acc1, acc2, acc3, a_ptr, b_ptrs, ks, k_mask, col_mask, stride_am, stride_ak,
    ROWS: tl.constexpr, K_INNER: tl.constexpr, MASK_K: tl.constexpr, MASK_N: tl.constexpr,
):  # fmt: skip
    """Each row's sums plus its products with one block of the matrix, which is loaded once for all rows."""
    weights = load_weights(b_ptrs, k_mask, col_mask, K_INNER, MASK_K, MASK_N)
    a_ptrs = a_ptr + ks * stride_ak
    acc0 += load_row(a_ptrs, k_mask, K_INNER, MASK_K) * weights
    if ROWS > 1:
        acc1 += load_row(a_ptrs + stride_am, k_mask, K_INNER, MASK_K) * weights
    if ROWS > 2:
        acc2 += load_row(a_ptrs + 2 * stride_am, k_mask, K_INNER, MASK_K) * weights
    if ROWS > 3:
        acc3 += load_row(a_ptrs + 3 * stride_am, k_mask, K_INNER, MASK_K) * weights
    return acc0, acc1, acc2, acc3


@triton.jit
def gemv_kernel(
    A, B, OUT, WS, N, K, BATCH,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    K_INNER: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of one matrix of the batch, over one range of K (ranges lie on grid dimension 1)."""
    follow_launch(DEPENDENT)
    if WIDE:
        stride_am = tl.cast(stride_am, tl.int64)
    tiles_n = tl.cdiv(N, BLOCK_N)
    index = tl.program_id(0)
    split = tl.program_id(1)
    batch = (index // tiles_n).to(tl.int64)
    cols = (index % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    if WIDE:
        cols = cols.to(tl.int64)
        ks = ks.to(tl.int64)
    col_mask = cols < N
    k_blocks = tl.cdiv(K, BLOCK_K)
    first_block = split * k_blocks // tl.num_programs(1)
    last_block = (split + 1) * k_blocks // tl.num_programs(1)
    if K_INNER:
        acc0 = tl.full((BLOCK_N, BLOCK_K), 0, tl.float32)
        offsets = cols[:, None] * stride_bn + ks[None, :] * stride_bk
    else:
        acc0 = tl.full((BLOCK_K, BLOCK_N), 0, tl.float32)
        offsets = ks[:, None] * stride_bk + cols[None, :] * stride_bn
    acc1 = acc0
    acc2 = acc0
    acc3 = acc0
    a_ptr = A + batch * stride_ab + tl.cast(first_block, tl.int64) * BLOCK_K * stride_ak
    b_ptrs = B + batch * stride_bb + tl.cast(first_block, tl.int64) * BLOCK_K * stride_bk + offsets
    step_a = tl.cast(stride_ak, tl.int64) * BLOCK_K
    step_b = tl.cast(stride_bk, tl.int64) * BLOCK_K
    whole = min(last_block, K // BLOCK_K)
    for _ in range(first_block, whole):
        acc0, acc1, acc2, acc3 = add_products(
            acc0, acc1, acc2, acc3, a_ptr, b_ptrs, ks, ks < K, col_mask, stride_am, stride_ak, ROWS, K_INNER, False, not EVEN_N
        )
        a_ptr += step_a
        b_ptrs += step_b
    if not EVEN_K:
        if whole < last_block:
            acc0, acc1, acc2, acc3 = add_products(
                acc0, acc1, acc2, acc3, a_ptr, b_ptrs, ks, ks < K - whole * BLOCK_K, col_mask, stride_am, stride_ak,
                ROWS, K_INNER, True, not EVEN_N,
            )  # fmt: skip
    AXIS: tl.constexpr = 1 if K_INNER else 0
    for row in tl.static_range(ROWS):
        acc = acc0 if row == 0 else (acc1 if row == 1 else (acc2 if row == 2 else acc3))
        total = tl.sum(acc, axis=AXIS)[None, :]
        rows = tl.arange(0, 1) + row
        if WIDE:
            rows = rows.to(tl.int64)
        if SPLIT:
            part = WS + ((split * BATCH + batch) * ROWS + row) * N
            tl.store((part + cols)[None, :], total, mask=col_mask[None, :])
        else:
            result = finish(
                total, ALPHA, BETA, C + batch * stride_cb if HAS_C else C,
                BIAS_PTR + batch * stride_ib if BIAS != "none" else BIAS_PTR, rows, cols, ROWS, N,
                stride_cm, stride_cn, stride_im, stride_in, HAS_C, BIAS, ACTIVATION, not EVEN_N,
            )  # fmt: skip
            store_tile(OUT + batch * stride_ob, result, rows, cols, ROWS, N, stride_om, stride_on, not EVEN_N)


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """One to four rows or columns in the zoo's float types."""
    if min(problem.m, problem.n) > MAX_ROWS:
        return Refusal("shape", f"m is {problem.m} and n is {problem.n}", f"one of them at most {MAX_ROWS}")
    return _rules.supports_float(problem, arch) or _rules.needs_product(problem)


def oriented(call: GemmCall) -> GemmCall:
    """The orientation whose narrow side is M."""
    return call if call.m <= call.n else call.swapped()


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """Sums in registers; every split has at least one k block."""
    k_blocks = cdiv(problem.k, tile.block_k)
    if not 1 <= tile.split_k <= min(MAX_SPLIT, k_blocks):
        return Refusal("tile", f"split_k is {tile.split_k} for {k_blocks} k blocks", f"1 to {min(MAX_SPLIT, k_blocks)}")
    rows = min(problem.m, problem.n)
    per_thread = tile.block_n * tile.block_k * rows // (32 * tile.num_warps)
    if per_thread > 128:
        return Refusal("registers", f"the sums take {per_thread} registers a thread", "at most 128")
    if tile.block_m != 1:
        return Refusal("tile", f"block_m is {tile.block_m}", "1: rows are not tiled")
    return None


#: block_n, block_k and warps by whether the matrix is contiguous along K.
_BLOCKS: Final = {
    True: ((2, 2048, 2), (2, 2048, 8), (4, 512, 2), (4, 1024, 2), (4, 1024, 4), (8, 512, 4), (1, 1024, 4), (16, 256, 4)),
    False: ((64, 64, 4), (128, 32, 4), (32, 64, 4), (128, 16, 4)),
}
_SPLITS: Final = (2, 4, 8, 16, 32, 64)


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """Blocks by the direction in which the matrix is contiguous, and split counts that give every SM a few programs."""
    along = (problem.b if problem.m <= problem.n else problem.a.T).layout == "t"
    wide, k, batch, sms = max(problem.m, problem.n), problem.k, problem.batch, arch.sm_count
    found: list[tuple[int, ...]] = []
    for block_n, block_k, _ in _BLOCKS[along]:
        k_blocks, programs = -(-k // block_k), max(-(-wide // block_n) * batch, 1)
        least, most = -(-sms // programs), min(k_blocks // 2, 16 * sms // programs)
        splits = _SPLITS[bisect_left(_SPLITS, least) : bisect_right(_SPLITS, most)]
        if programs >= sms or k_blocks < 4:
            splits = (1, *splits)
        found.append(splits or (max(1, min(MAX_SPLIT, k_blocks // 2)),))
    return _with_splits(along, tuple(found))


@lru_cache(maxsize=1 << 11)
def _with_splits(along: bool, splits: tuple[tuple[int, ...], ...]) -> tuple[TileConfig, ...]:
    """Each block in turn with some splits."""
    return tuple(_tile(*block, split) for block, many in zip(_BLOCKS[along], splits, strict=True) for split in many)


@cache
def _tile(block_n: int, block_k: int, warps: int, split: int) -> TileConfig:
    return TileConfig(1, block_n, block_k, 1, split, warps, 1)


def recipe(call: GemmCall, tile: TileConfig) -> Recipe:
    """One launch, or two where K is split."""
    view = oriented(call)
    split = tile.split_k > 1
    main = KernelCall(
        gemv_kernel,
        (cdiv(view.n, tile.block_n) * view.batch, tile.split_k),
        (
            view.a,
            view.b,
            view.out,
            _reduce.workspace(view, tile.split_k) if split else None,
            view.n,
            view.k,
            view.batch,
            view.a.batch_stride,
            *view.a.strides,
            view.b.batch_stride,
            *view.b.strides,
            view.out.batch_stride,
            *view.out.strides,
            *_args.epilogue_args(view),
        ),
        {
            "ROWS": view.m,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
            "SPLIT": split,
            "K_INNER": view.b.operand.layout == "t",
            "EVEN_N": view.n % tile.block_n == 0,
            "EVEN_K": view.k % tile.block_k == 0,
            **_args.epilogue_constants(view),
            "WIDE": view.wide,
            "DEPENDENT": _args.is_dependent(view, tile),
        },
        tile.num_warps,
        tile.num_stages,
        _args.is_dependent(view, tile),
    )
    if not split:
        return Recipe((main,))
    return Recipe((main, _reduce.reduction(view, tile.split_k)), _reduce.workspace_bytes(view, tile.split_k))


def reduction(problem: GemmProblem, tile: TileConfig) -> str:
    """Strided partial sums per thread, a tree at the end, splits in order."""
    return f"split {tile.split_k} fma-{tile.block_n}x{tile.block_k}-w{tile.num_warps}"


VARIANT = Variant(
    name="gemv",
    summary="one to four rows or columns on CUDA cores, K split where columns are few",
    supports=ByKind(supports),
    space=space,
    fits=fits,
    recipe=recipe,
    reduction=reduction,
    early_us=_args.SHORT_US,
    kernels=(gemv_kernel, reduce_kernel),
)
