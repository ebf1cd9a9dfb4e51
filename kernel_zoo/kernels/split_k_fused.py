"""split_k_fused: K divided over several programs per tile in one launch; whoever finishes a tile last sums its partial tiles.

What `split_k` does with a second launch is done here by the last arriver: each program stores its partial tile whole, in fp32, and
counts itself in; the one that finds all others there adds the partials up, in the order of the splits and from memory, its own
too, so that the bits do not depend on who it was. One launch costs less than two, but one program reads what two launches spread
over the device: few splits of small tiles. The splits of a tile are neighbours in launch order and so finish about together.
Operands go through tensor descriptors. Knob: swap (compute out.T = b.T @ a.T, so that a narrow M becomes the instruction's N side).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Final

from kernel_zoo.kernels import _args, _rules, _tiles
from kernel_zoo.kernels._device import descriptor_product, finish, follow_launch, store_tile, tile_order
from kernel_zoo.spec import (
    ITEMSIZE,
    VECTOR_BYTES,
    Arch,
    ByKind,
    GemmCall,
    GemmProblem,
    KernelCall,
    Operand,
    Recipe,
    Refusal,
    TileConfig,
    Variant,
    View,
    cdiv,
    next_pow2,
)
from kernel_zoo.triton_compat import tl, triton

MAX_SPLIT: Final = 16  # beyond, the last arriver's sum costs more than a second launch
_SPLITS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_LEAST_CHOICE: Final = 3  # split counts of a tile, where there are so many
_SUM_BYTES: Final = 256 << 10  # what one program is asked to sum, at most: about 2.5 us at an SM's share of L2
_DTYPES: Final = ("fp16", "bf16")
_PIECE: Final = 32  # elements of a tile that a thread sums at a time
_IN_FLIGHT: Final = 64 << 10  # bytes of partials on their way into an SM: its share of L2's bandwidth times the latency, twice
_MAX_STAGES: Final = 8


@triton.jit
def sum_partials(parts, SPLITS, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr):
    """The sum over splits 0, 1, ... of the (BLOCK_M, BLOCK_N) piece at the start of partial tiles of SIZE elements.

    The loop is pipelined: STAGES - 1 partials are on their way through asynchronous copies while one is added, so that L2's latency
    is paid once. (Of plain loads, unrolled, ptxas keeps three in flight: it saves registers.) SPLITS is the loop's bound and not
    the binary's constant: one binary serves all split counts. The copies pass L1 by, for the partials were written on other SMs.
    """
    pointers = parts + tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.full((BLOCK_M, BLOCK_N), -0.0, tl.float32)  # plus x is x, whichever zero x may be
    for _ in tl.range(0, SPLITS, num_stages=STAGES):
        total += tl.load(pointers, cache_modifier=".cg")
        pointers += SIZE
    return total


@triton.jit(do_not_specialize=["M", "N", "K", "SPLITS", "GROUP_M"])
def split_k_fused_kernel(
    A, B, OUT, WS, COUNTERS, M, N, K, SPLITS, GROUP_M, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, PRECISION: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile's partial sum over one range of K, into WS laid out as (tiles, SPLITS, BLOCK_M, BLOCK_N); the last arriver finishes.

    M is known to be a multiple of UNIT_M and N of UNIT_N. COUNTERS holds a zero for every tile, and does so again afterwards.
    """
    follow_launch(DEPENDENT)
    index = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    per_matrix = tiles_m * tiles_n
    batch = index // per_matrix
    tile_m, tile_n = tile_order(index % per_matrix, tiles_m, tiles_n, GROUP_M)
    k_blocks = tl.cdiv(K, BLOCK_K)
    acc = descriptor_product(
        A, B, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, split * k_blocks // SPLITS, (split + 1) * k_blocks // SPLITS,
        BLOCK_M, BLOCK_N, BLOCK_K, A_BATCHED, B_BATCHED, A_TRANSPOSED, B_TRANSPOSED, PRECISION,
    )  # fmt: skip
    SIZE: tl.constexpr = BLOCK_M * BLOCK_N
    parts = WS + index.to(tl.int64) * SPLITS * SIZE
    within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(parts + split * SIZE + within, acc)
    # Why the sum sees every partial (PTX's memory model): all threads' stores precede the block's barrier (bar.sync), and that
    # precedes the count, which one thread makes with atom.acq_rel.gpu. Causality is transitive: the count releases the stores of
    # the whole block. Counts of one word are read-modify-writes, a chain whose last acquires what all before it released. Its
    # value reaches the block's other threads through shared memory and a barrier, and only then do they load, through cp.async.cg:
    # generic proxy, and from L2, where no line of an earlier launch can be stale.
    tl.debug_barrier()
    arrived = tl.atomic_add(COUNTERS + index, 1, sem="acq_rel", scope="gpu")
    if arrived == SPLITS - 1:
        tl.store(COUNTERS + index, 0)
        # The product with a constant tells the compiler that the mask changes at whole vectors only.
        bound_m = M // UNIT_M * UNIT_M
        bound_n = N // UNIT_N * UNIT_N
        wide_batch = batch.to(tl.int64)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        if WIDE:
            cols = cols.to(tl.int64)
        for row in range(0, BLOCK_M, ROWS):
            total = sum_partials(parts + row * BLOCK_N, SPLITS, ROWS, BLOCK_N, SIZE, STAGES)
            rows = tile_m * BLOCK_M + row + tl.arange(0, ROWS)
            if WIDE:
                rows = rows.to(tl.int64)
            result = finish(
                total, ALPHA, BETA, C + wide_batch * stride_cb if HAS_C else C,
                BIAS_PTR + wide_batch * stride_ib if BIAS != "none" else BIAS_PTR, rows, cols, bound_m, bound_n,
                stride_cm, stride_cn, stride_im, stride_in, HAS_C, BIAS, ACTIVATION, True,
            )  # fmt: skip
            store_tile(OUT + wide_batch * stride_ob, result, rows, cols, bound_m, bound_n, stride_om, stride_on, True)


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """16-bit inputs over which descriptors can be laid, and something to multiply."""
    if problem.dtype not in _DTYPES:
        return Refusal("dtype", f"inputs are {problem.dtype}", "fp16 or bf16")
    return (
        _rules.supports_float(problem, arch)
        or _rules.needs_product(problem)
        or _rules.tma_operand("a", problem.a, arch)
        or _rules.tma_operand("b", problem.b, arch)
    )


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """Every split has at least one k block; the product's tile fits. The sum works on pieces and adds no demand of its own."""
    k_blocks = cdiv(problem.k, tile.block_k)
    splits = range(2, min(MAX_SPLIT, k_blocks) + 1)
    if tile.split_k not in splits:
        return Refusal("tile", f"split_k is {tile.split_k} for {k_blocks} k blocks", f"2 to {splits.stop - 1}")
    return _rules.first(
        (
            _rules.mma_tile(problem, tile),
            _rules.tma_box(problem, tile),
            _rules.register_limit(tile),
            _rules.shared_memory_limit(problem, tile, arch),
        )
    )


def splits_for(tiles_total: int, k_blocks: int, most: int, sm_count: int) -> tuple[int, ...]:
    """The _SPLITS, at most `most`, of two k blocks or more that put a quarter of a wave to three waves of programs on it."""
    return _filling(tiles_total, min(most, MAX_SPLIT, k_blocks // 2), sm_count)


@lru_cache(maxsize=1 << 13)
def _filling(tiles_total: int, most: int, sm_count: int) -> tuple[int, ...]:
    legal = tuple(s for s in _SPLITS if s <= most and s * tiles_total <= 3 * sm_count)
    filling = tuple(s for s in legal if s * tiles_total >= sm_count // 4)
    return max(filling, legal[-_LEAST_CHOICE:], key=len)  # few tiles cannot fill it, and fewer splits are summed sooner


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """Tiles that leave SMs idle by themselves, times the split counts that fill them."""
    m, n, k, batch, sms = problem.m, problem.n, problem.k, problem.batch, arch.sm_count
    narrow = min(m, n)
    side = max(16, next_pow2(narrow)) if narrow <= 64 else 0
    swap = side > 0 and m < n
    splits: list[tuple[int, ...]] = []
    for rows, cols, block_k, most in _bases(side, swap):
        tiles_total = -(-m // rows) * -(-n // cols) * batch
        idle = _SPLITS[0] * tiles_total <= 3 * sms
        splits.append(splits_for(tiles_total, -(-k // block_k), most, sms) if idle else ())
    return _with_splits(side, swap, tuple(splits))


@cache
def _bases(side: int, swap: bool) -> tuple[tuple[int, int, int, int], ...]:
    """Of each tile before K is split: rows and columns of the result that it covers, its block_k, its splits at most."""
    found = []
    for tile in _unsplit(side, swap):
        sides = (tile.block_n, tile.block_m) if swap else (tile.block_m, tile.block_n)
        found.append((*sides, tile.block_k, _SUM_BYTES // (tile.block_m * tile.block_n * ITEMSIZE["fp32"])))
    return tuple(found)


@cache
def _unsplit(side: int, swap: bool) -> tuple[TileConfig, ...]:
    """Tiles before K is split; `side` is the narrow one's, 0 where neither side is narrow."""
    if not side:
        return _tiles.tiles((64, 64, 128, 4, 4), (128, 128, 64, 4, 8), (128, 128, 64, 6, 8))
    rows = [(64, side, 128, 6, 4), (64, side, 128, 4, 4), (64, side, 256, 3, 4)]
    knobs = (("swap", 1),) if swap else ()
    return tuple(replace(tile, group_m=1, knobs=knobs) for tile in _tiles.tiles(*rows))


@lru_cache(maxsize=1 << 11)
def _with_splits(side: int, swap: bool, splits: tuple[tuple[int, ...], ...]) -> tuple[TileConfig, ...]:
    """Each of these tiles in turn with some splits."""
    return tuple(_with_split(tile, one) for tile, many in zip(_unsplit(side, swap), splits, strict=True) for one in many)


@cache
def _with_split(tile: TileConfig, split: int) -> TileConfig:
    return replace(tile, split_k=split)


def _unit(operand: Operand, layout: str) -> int:
    """What the length of out's lines is told to be a multiple of, where out has the layout: whole vectors, or nothing."""
    length = operand.cols if layout == "n" else operand.rows
    vector = VECTOR_BYTES // ITEMSIZE["bf16"]
    return vector if operand.layout == layout and length % vector == 0 else 1


def _pieces(call: GemmCall, tile: TileConfig) -> dict[str, int]:
    """Rows of a tile that are summed at a time, and how many partials of them are on their way or being added."""
    threads, size = 32 * tile.num_warps, tile.block_m * tile.block_n
    # The compiler keeps the addresses of C and of a full bias over all pieces of a tile: those of a whole piece would spill.
    reads = any(view is not None and min(view.strides) > 0 for view in (call.c, call.bias))
    piece = _PIECE // 2 if reads and size > _PIECE * threads else _PIECE
    rows = max(1, min(tile.block_m, piece * threads // tile.block_n))
    piece_bytes = rows * tile.block_n * ITEMSIZE["fp32"]
    return {"ROWS": rows, "STAGES": max(3, min(_MAX_STAGES, _IN_FLIGHT // piece_bytes))}


def recipe(call: GemmCall, tile: TileConfig) -> Recipe:
    """One launch; every tile has a counter and, for every split, a partial tile in the workspace."""
    view = call.swapped() if tile.knob("swap") else call
    tiles_total = cdiv(view.m, tile.block_m) * cdiv(view.n, tile.block_n) * view.batch
    size = tile.block_m * tile.block_n
    programs = tiles_total * tile.split_k
    launch = KernelCall(
        split_k_fused_kernel,
        (programs,),
        (
            _args.descriptor(view.a, tile.block_m, tile.block_k, view.batch),
            _args.descriptor(view.b, tile.block_k, tile.block_n, view.batch),
            view.out,
            View("WS", Operand.dense(view.acc_dtype, programs, size)),
            View("COUNTERS", Operand.dense("int32", 1, tiles_total)),
            view.m,
            view.n,
            view.k,
            tile.split_k,
            tile.group_m,
            view.out.batch_stride,
            *view.out.strides,
            *_args.epilogue_args(view),
        ),
        {
            **_args.blocks(tile),
            **_pieces(view, tile),
            **_args.descriptor_constants(view),
            "UNIT_M": _unit(view.out.operand, "t"),
            "UNIT_N": _unit(view.out.operand, "n"),
            **_args.precision(view),
            **_args.epilogue_constants(view),
            "WIDE": view.wide,
            "DEPENDENT": _args.is_dependent(view, tile),
        },
        tile.num_warps,
        tile.num_stages,
        _args.is_dependent(view, tile),
    )
    return Recipe((launch,), programs * size * ITEMSIZE[view.acc_dtype], counters=tiles_total)


def reduction(problem: GemmProblem, tile: TileConfig) -> str:
    """Ranges of K summed apart, then in order: cut, multiplied and added as split_k does, so to the same bits."""
    return f"split {tile.split_k} {_tiles.instruction_family(problem, tile)}"


VARIANT = Variant(
    name="split_k_fused",
    summary="K divided over programs, partial tiles summed in order by the last of a tile, one launch; few small tiles, long K",
    supports=ByKind(supports),
    space=space,
    fits=fits,
    recipe=recipe,
    reduction=reduction,
    early_us=_args.SHORT_US,
    kernels=(split_k_fused_kernel,),
)
