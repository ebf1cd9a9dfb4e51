"""split_k: K divided over several programs per tile, partial tiles summed by a second launch.

Where M x N gives fewer tiles than the GPU has SMs and K is long, splitting K is the only parallelism left (cuBLAS's split-K
with a separate reduction). Each program takes a contiguous, evenly cut range of k blocks; the split points depend on K, block_k
and split_k alone. Knobs: tma (operands through descriptors), swap (compute out.T = b.T @ a.T, for a narrow M).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Final

from kernel_zoo.kernels import _args, _reduce, _rules, _tiles
from kernel_zoo.kernels._device import descriptor_product, follow_launch, pointer_product, tile_order
from kernel_zoo.kernels._reduce import reduce_kernel
from kernel_zoo.spec import (
    SPLITS,
    Arch,
    ByKind,
    GemmCall,
    GemmProblem,
    KernelCall,
    Recipe,
    Refusal,
    TileConfig,
    Variant,
    cdiv,
    next_pow2,
)
from kernel_zoo.triton_compat import tl, triton

MAX_SPLIT = 64  # the reduction unrolls its sum
_RANGE: Final = len(SPLITS) + 1
_LARGEST: Final = 256 * 256  # of all tiles, in elements


@triton.jit
def split_k_kernel(
    A, B, WS, M, N, K, BATCH,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile's partial sum over one range of K, into WS laid out as (splits, BATCH, M, N); splits lie on grid dimension 1."""
    follow_launch(DEPENDENT)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    per_matrix = tiles_m * tiles_n
    index = tl.program_id(0)
    split = tl.program_id(1)
    batch = index // per_matrix
    tile_m, tile_n = tile_order(index % per_matrix, tiles_m, tiles_n, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k_blocks = tl.cdiv(K, BLOCK_K)
    first_block = split * k_blocks // tl.num_programs(1)
    last_block = (split + 1) * k_blocks // tl.num_programs(1)
    wide_batch = batch.to(tl.int64)
    if TMA:
        acc = descriptor_product(
            A, B, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, first_block, last_block, BLOCK_M, BLOCK_N, BLOCK_K,
            A_BATCHED, B_BATCHED, A_TRANSPOSED, B_TRANSPOSED, PRECISION,
        )  # fmt: skip
    else:
        acc = pointer_product(
            A + wide_batch * stride_ab, B + wide_batch * stride_bb, rows, cols, M, N, K, first_block, last_block,
            stride_am, stride_ak, stride_bk, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, EVEN_K, PRECISION, WIDE,
        )  # fmt: skip
    part = WS + (split * BATCH + wide_batch) * M * N
    pointers = part + rows.to(tl.int64)[:, None] * N + cols[None, :]
    if EVEN_M and EVEN_N:
        tl.store(pointers, acc)
    else:
        tl.store(pointers, acc, mask=(rows < M)[:, None] & (cols < N)[None, :])


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """The zoo's float types, and something to multiply."""
    return _rules.supports_float(problem, arch) or _rules.needs_product(problem)


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """Every split has at least one k block; descriptors only where they can be laid."""
    splits = range(2, min(MAX_SPLIT, cdiv(problem.k, tile.block_k)) + 1)
    if tile.split_k not in splits:
        return Refusal("tile", f"split_k is {tile.split_k} for {cdiv(problem.k, tile.block_k)} k blocks", f"2 to {splits.stop - 1}")
    descriptors = (
        (
            _rules.refuses_ieee_tma(problem),
            _rules.tma_operand("a", problem.a, arch),
            _rules.tma_operand("b", problem.b, arch),
            _rules.tma_box(problem, tile),
        )
        if tile.knob("tma")
        else (_rules.address_limit(problem, tile),)
    )
    return _rules.first(
        (
            _rules.mma_tile(problem, tile),
            _rules.register_limit(tile),
            _rules.shared_memory_limit(problem, tile, arch),
            *descriptors,
        )
    )


def _filling(tiles_total: int, long_enough: int, sm_count: int) -> int:
    """Of the first so many of the SPLITS those that put half a wave to four waves of programs on the device, or come close to it.

    Where they start, times _RANGE, and where they stop.
    """
    stop = min(long_enough, bisect_right(SPLITS, 4 * sm_count // max(tiles_total, 1)))
    if not stop:
        return 0
    least = min(sm_count // 2, SPLITS[stop - 1] * tiles_total // 4)
    return bisect_left(SPLITS, cdiv(least, max(tiles_total, 1))) * _RANGE + stop


@cache
def _fillings(sm_count: int) -> list[list[int]]:
    """`_filling` by tiles, as many as a space has a use for, and by how many of the SPLITS leave two k blocks or more."""
    return [[_filling(tiles, long, sm_count) for long in range(_RANGE)] for tiles in range(2 * sm_count + 1)]


@_rules.by_kind
def _through_descriptors(problem: GemmProblem, arch: Arch) -> bool:
    """Whether there is a product, of tensor cores, whose operands descriptors can be laid over."""
    refusals = (
        supports(problem, arch),
        _rules.tma_operand("a", problem.a, arch),
        _rules.tma_operand("b", problem.b, arch),
        _rules.refuses_ieee_tma(problem),
    )
    return _rules.first(refusals) is None


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """Tiles that leave SMs idle by themselves, times the split counts that fill them."""
    m, n, k, batch, sms = problem.m, problem.n, problem.k, problem.batch, arch.sm_count
    most = 2 * sms  # tiles: of more the least split is too many programs
    if m * n * batch > most * _LARGEST:
        return ()
    if _through_descriptors(problem, arch):
        fp32, narrow = problem.dtype == "fp32", min(m, n)
        side = max(16, next_pow2(narrow)) if narrow <= 64 and not fp32 else 0
        bases = _tma_bases(fp32, side, side > 0 and m < n)
    else:
        bases = _pointer_bases(_tiles.pointer_kind(problem))
    ranges: list[int] = []
    fillings = _fillings(sms)
    for rows, cols, tiles in bases:
        tiles_total = -(-m // rows) * -(-n // cols) * batch
        if tiles_total <= most:
            filling = fillings[tiles_total]
            ranges += [filling[bisect_right(SPLITS, -(-k // block_k) // 2)] for block_k, _ in tiles]
        else:
            ranges += [0] * len(tiles)
    return _within(bases, tuple(ranges))


@lru_cache(maxsize=1 << 11)  # a few hundred are met: most ranges of splits go with ranges of the other tiles
def _within(bases: _Bases, ranges: tuple[int, ...]) -> tuple[TileConfig, ...]:
    """The tiles of each base in turn with a range of the SPLITS, put as `_filling` puts it."""
    splits = [split for _, _, tiles in bases for _, split in tiles]
    return tuple([tile for split, code in zip(splits, ranges, strict=True) for tile in split[code // _RANGE : code % _RANGE]])


#: Rows and columns of the result that tiles cover; the block_k of each of these tiles, and it with each of SPLITS.
_Base = tuple[int, int, list[tuple[int, tuple[TileConfig, ...]]]]


class _Bases(tuple[_Base, ...]):
    """A problem's, which are made once: identity is their hash."""

    __slots__ = ()
    __hash__ = object.__hash__


def _bases(tiles: Iterable[TileConfig]) -> _Bases:
    found: list[_Base] = []
    for tile in tiles:
        rows, cols = (tile.block_n, tile.block_m) if tile.knob("swap") else (tile.block_m, tile.block_n)
        if not found or found[-1][:2] != (rows, cols):
            found.append((rows, cols, []))
        found[-1][2].append((tile.block_k, tuple(replace(tile, split_k=split) for split in SPLITS)))
    return _Bases(found)


@cache
def _pointer_bases(kind: _tiles.PointerKind) -> _Bases:
    return _bases(_tiles.pointer_tiles_of(kind))


@cache
def _tma_bases(fp32: bool, side: int, swap: bool) -> _Bases:
    """Tiles through descriptors; `side` is the narrow one's, 0 where neither side is narrow."""
    if fp32:
        tiles = _tiles.tiles((64, 64, 32, 4, 4), (64, 128, 32, 4, 4), (128, 128, 32, 3, 8))
    elif side:
        rows = [(64, side, 128, 6, 4), (64, side, 128, 4, 4), (64, side, 64, 6, 4), (64, side, 256, 3, 4), (128, side, 64, 6, 4)]
        tiles = tuple(replace(tile, group_m=1) for tile in _tiles.tiles(*rows))
    else:
        tiles = _tiles.tiles(
            (64, 32, 128, 5, 4), (64, 64, 128, 4, 4), (64, 64, 64, 6, 4), (64, 128, 64, 4, 4), (64, 128, 64, 6, 4),
            (64, 128, 128, 3, 4), (128, 64, 64, 4, 4), (128, 128, 64, 6, 4), (64, 256, 64, 4, 4), (64, 256, 64, 5, 4),
            (128, 256, 64, 4, 8),
        )  # fmt: skip
    knobs = (("swap", 1), ("tma", 1)) if swap else (("tma", 1),)
    return _bases(replace(tile, knobs=knobs) for tile in tiles)


def recipe(call: GemmCall, tile: TileConfig) -> Recipe:
    """Partial tiles, then their reduction."""
    view = call.swapped() if tile.knob("swap") else call
    tma = bool(tile.knob("tma"))
    a = _args.descriptor(view.a, tile.block_m, tile.block_k, view.batch) if tma else view.a
    b = _args.descriptor(view.b, tile.block_k, tile.block_n, view.batch) if tma else view.b
    partial = KernelCall(
        split_k_kernel,
        (cdiv(view.m, tile.block_m) * cdiv(view.n, tile.block_n) * view.batch, tile.split_k),
        (
            a,
            b,
            _reduce.workspace(view, tile.split_k),
            view.m,
            view.n,
            view.k,
            view.batch,
            *((0, 0, 0) if tma else (view.a.batch_stride, *view.a.strides)),
            *((0, 0, 0) if tma else (view.b.batch_stride, *view.b.strides)),
        ),
        {
            **_args.blocks(tile),
            "GROUP_M": tile.group_m,
            **_args.even(view, tile),
            **_args.precision(view),
            "WIDE": view.wide,
            "TMA": tma,
            **_args.descriptor_constants(view),
            "DEPENDENT": _args.is_dependent(view, tile),
        },
        tile.num_warps,
        tile.num_stages,
        _args.is_dependent(view, tile),
    )
    return Recipe((partial, _reduce.reduction(view, tile.split_k)), _reduce.workspace_bytes(view, tile.split_k))


def reduction(problem: GemmProblem, tile: TileConfig) -> str:
    """Ranges of K summed apart, then in order."""
    return f"split {tile.split_k} {_tiles.instruction_family(problem, tile)}"


VARIANT = Variant(
    name="split_k",
    summary="K divided over programs, partial tiles summed in order by a second kernel; few tiles, long K",
    supports=ByKind(supports),
    space=space,
    fits=fits,
    recipe=recipe,
    reduction=reduction,
    early_us=_args.SHORT_US,
    kernels=(split_k_kernel, reduce_kernel),
)
