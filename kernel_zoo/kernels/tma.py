"""tma: operands through tensor descriptors (Hopper's Tensor Memory Accelerator), one program per tile or resident programs.

One thread asks for a whole tile and the copy engine does the addressing, the bounds and the swizzle, so nothing is masked: what
lies outside a matrix reads as 0 and is not written. The output goes through a descriptor too where it can, in `subtile` pieces
so that the staging buffer leaves room for another pipeline stage (Triton's persistent matmul tutorial and CUTLASS's epilogue
tiles do the same); otherwise through pointers. Knobs: persistent (resident programs), subtile (pieces of the store), flatten
(the loop over tiles and the loop over K become one pipelined loop), swap (compute out.T = b.T @ a.T, so that a narrow M becomes
the instruction's N side).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from kernel_zoo.kernels import _args, _rules, _tiles
from kernel_zoo.kernels._device import descriptor_product, finish, follow_launch, store_tile, tile_order
from kernel_zoo.spec import (
    VECTOR_BYTES,
    Arch,
    Argument,
    ByForm,
    ByKind,
    GemmCall,
    GemmProblem,
    KernelCall,
    Operand,
    Refusal,
    TileConfig,
    Variant,
    cdiv,
    next_pow2,
)
from kernel_zoo.triton_compat import tl, triton


@triton.jit
def store_descriptor(desc, batch, row, col, value, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BATCHED: tl.constexpr):
    """Round once, to out's type, and store through the copy engine."""
    value = value.to(desc.dtype)
    if BATCHED:
        desc.store([batch, row, col], value.reshape(1, BLOCK_M, BLOCK_N))
    else:
        desc.store([row, col], value)


@triton.jit
def tma_tile(
    A, B, OUT, index, M, N, K, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, OUT_BATCHED: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, OUT_TMA: tl.constexpr, SUBTILE: tl.constexpr,
    MASK: tl.constexpr, PRECISION: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The index-th tile of the batch's sequence of tiles."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    per_matrix = tiles_m * tiles_n
    batch = index // per_matrix
    tile_m, tile_n = tile_order(index % per_matrix, tiles_m, tiles_n, GROUP_M)
    row = tile_m * BLOCK_M
    col = tile_n * BLOCK_N
    acc = descriptor_product(
        A, B, batch, row, col, 0, tl.cdiv(K, BLOCK_K), BLOCK_M, BLOCK_N, BLOCK_K,
        A_BATCHED, B_BATCHED, A_TRANSPOSED, B_TRANSPOSED, PRECISION,
    )  # fmt: skip
    wide_batch = batch.to(tl.int64)
    rows = row + tl.arange(0, BLOCK_M)
    PIECE: tl.constexpr = BLOCK_N // SUBTILE
    if WIDE:
        rows = rows.to(tl.int64)
    if SUBTILE == 2:
        # Splitting the columns this way keeps every element in its thread's registers.
        left, right = tl.reshape(acc, (BLOCK_M, 2, PIECE)).permute(0, 2, 1).split()
    else:
        left = acc
        right = acc
    for piece in tl.static_range(SUBTILE):
        part = left if piece == 0 else right
        cols = col + piece * PIECE + tl.arange(0, PIECE)
        if WIDE:
            cols = cols.to(tl.int64)
        result = finish(
            part, ALPHA, BETA, C + wide_batch * stride_cb if HAS_C else C,
            BIAS_PTR + wide_batch * stride_ib if BIAS != "none" else BIAS_PTR, rows, cols, M, N,
            stride_cm, stride_cn, stride_im, stride_in, HAS_C, BIAS, ACTIVATION, MASK,
        )  # fmt: skip
        if OUT_TMA:
            store_descriptor(OUT, batch, row, col + piece * PIECE, result, BLOCK_M, PIECE, OUT_BATCHED)
        else:
            store_tile(OUT + wide_batch * stride_ob, result, rows, cols, M, N, stride_om, stride_on, MASK)


@triton.jit
def tma_kernel(
    A, B, OUT, M, N, K, BATCH, stride_ob, stride_om, stride_on,
    C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, OUT_BATCHED: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, OUT_TMA: tl.constexpr, SUBTILE: tl.constexpr,
    MASK: tl.constexpr, PRECISION: tl.constexpr,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
    PERSISTENT: tl.constexpr, FLATTEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile per program, or tiles program_id, program_id + programs, ..."""
    follow_launch(DEPENDENT)
    if PERSISTENT:
        total = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N) * BATCH
        for index in tl.range(tl.program_id(0), total, tl.num_programs(0), flatten=FLATTEN):
            tma_tile(
                A, B, OUT, index, M, N, K, stride_ob, stride_om, stride_on,
                C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, A_BATCHED, B_BATCHED, OUT_BATCHED, A_TRANSPOSED, B_TRANSPOSED,
                OUT_TMA, SUBTILE, MASK, PRECISION, HAS_C, BIAS, ACTIVATION, WIDE,
            )  # fmt: skip
    else:
        tma_tile(
            A, B, OUT, tl.program_id(0), M, N, K, stride_ob, stride_om, stride_on,
            C, BIAS_PTR, ALPHA, BETA, stride_cb, stride_cm, stride_cn, stride_ib, stride_im, stride_in,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, A_BATCHED, B_BATCHED, OUT_BATCHED, A_TRANSPOSED, B_TRANSPOSED,
            OUT_TMA, SUBTILE, MASK, PRECISION, HAS_C, BIAS, ACTIVATION, WIDE,
        )  # fmt: skip


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """A and B must be such that descriptors can be laid over them; the output need not be."""
    return (
        _rules.supports_float(problem, arch)
        or _rules.needs_product(problem)
        or _rules.refuses_ieee_tma(problem)
        or _rules.tma_operand("a", problem.a, arch)
        or _rules.tma_operand("b", problem.b, arch)
    )


def stores_through_tma(out: Operand, arch: Arch) -> bool:
    """Whether the output, in the kernel's orientation, can go through a descriptor.

    The copy engine writes whole 16-byte units: where a row ends inside one, the bytes beside it are overwritten (seen on an H200).
    """
    whole_units = out.cols * out.itemsize % VECTOR_BYTES == 0
    return out.layout == "n" and whole_units and _rules.tma_operand("out", out, arch) is None


def fits(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """One pass over K; boxes within the copy engine's limits; the epilogue within registers, its staging beside the pipeline."""
    if tile.split_k != 1:
        return Refusal("tile", f"split_k is {tile.split_k}", "1: this variant sums K in one program")
    subtile = tile.knob("subtile", 1)
    if subtile not in (1, 2) or tile.block_n // subtile < 16:
        return Refusal("tile", f"subtile is {subtile} for block_n {tile.block_n}", "1 or 2, and pieces of at least 16 columns")
    staged = stores_through_tma(problem.out.T if tile.knob("swap") else problem.out, arch)
    return _rules.first(
        (
            _rules.mma_tile(problem, tile),
            _rules.tma_box(problem, tile),
            _rules.register_limit(tile),
            _rules.epilogue_limit(problem, tile, subtile, stores_pointers=not staged),
            _rules.shared_memory_limit(problem, tile, arch, epilogue_staging(problem, tile)),
        )
    )


def epilogue_staging(problem: GemmProblem, tile: TileConfig) -> int:
    """Shared memory that the epilogue takes beside the pipeline: the result, or C, on its way between layouts."""
    piece = tile.block_m * tile.block_n // tile.knob("subtile", 1)
    loads = sum(piece * operand.itemsize for operand in _rules.full_reads(problem.epilogue.c, problem.epilogue.bias))
    stored = piece * problem.out.itemsize
    # A flattened loop keeps these loads in flight for several stages, too.
    return loads * tile.num_stages + stored if tile.knob("flatten") else max(loads, stored)


#: Resident programs: (block_m, block_n, block_k, num_stages, num_warps) and the (flatten, subtile) pairs that ever won for it.
_RESIDENT: Final = {
    (128, 256, 64, 3, 8): ((0, 1), (1, 1), (0, 2), (1, 2)),
    (128, 256, 64, 4, 8): ((0, 2), (1, 2)),
    (256, 128, 64, 4, 8): ((0, 2), (1, 2)),
    (128, 128, 64, 4, 4): ((0, 1), (1, 1), (1, 2)),
    (128, 128, 64, 4, 8): ((0, 1), (1, 2)),
    (128, 128, 128, 3, 8): ((1, 1),),
    (64, 256, 64, 4, 4): ((1, 1), (1, 2)),
}
#: One program per tile: the tile and the subtile of its store.
_SINGLE: Final = {
    (128, 256, 64, 3, 8): 2,
    (128, 256, 64, 4, 8): 2,
    (64, 256, 64, 4, 4): 2,
    (128, 128, 64, 3, 4): 1,
    (128, 128, 64, 6, 4): 1,
    (128, 128, 64, 3, 8): 1,
    (64, 128, 128, 3, 4): 1,
    (64, 128, 64, 4, 4): 1,
    (64, 128, 64, 6, 4): 1,
    (128, 64, 128, 3, 4): 1,
    (128, 64, 64, 4, 4): 1,
    (128, 64, 64, 6, 4): 1,
    (128, 128, 64, 6, 8): 1,
    (64, 64, 128, 6, 4): 1,
    (64, 64, 128, 4, 4): 1,
    (64, 64, 128, 3, 4): 1,
    (64, 64, 64, 4, 4): 1,
    (64, 32, 128, 5, 4): 1,
}
#: Walking 16 tile rows together pays where a wave of tiles is a small part of a large matrix.
_WIDE_GROUP_TILES: Final = 512
_LARGE: Final = tuple(dict.fromkeys(row[:2] for row in _RESIDENT if row[0] * row[1] > 128 * 128))


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """Tiles by input width and by which side is narrow."""
    if problem.dtype == "fp32":
        return _fp32_space()
    m, n = problem.m, problem.n
    if min(m, n) <= 64:
        return narrow_space(max(16, next_pow2(min(m, n))), m < n)
    return _wide_space(tuple([sides for sides in _LARGE if -(-m // sides[0]) * -(-n // sides[1]) >= _WIDE_GROUP_TILES]))


@cache
def _wide_space(many: tuple[tuple[int, int], ...]) -> tuple[TileConfig, ...]:
    """Resident programs, then single ones; `many` has the sides of which the result takes many tiles."""
    found = []
    for row, pairs in _RESIDENT.items():
        (tile,) = _tiles.tiles(row)
        groups = (8, 16) if row[:2] in many else (8,)
        for flatten, subtile in pairs:
            knobs = (("flatten", flatten), ("persistent", 1), ("subtile", subtile))
            found += [replace(tile, group_m=group, knobs=knobs) for group in groups]
    for row, subtile in _SINGLE.items():
        (tile,) = _tiles.tiles(row)
        found.append(replace(tile, knobs=(("subtile", subtile),)) if subtile > 1 else tile)
    return tuple(found)


@cache
def narrow_space(narrow: int, swap: bool) -> tuple[TileConfig, ...]:
    """The narrow side on the instruction's N side, the wide side on its 64-row M side, deep pipelines."""
    knobs = (("swap", 1),) if swap else ()
    rows = [
        (64, narrow, 128, 6, 4), (64, narrow, 128, 4, 4), (64, narrow, 256, 3, 4), (64, narrow, 64, 8, 4), (128, narrow, 128, 4, 4),
        (128, narrow, 64, 6, 4),
    ]  # fmt: skip
    return tuple(replace(tile, group_m=1, knobs=knobs) for tile in _tiles.tiles(*rows))


@cache
def _fp32_space() -> tuple[TileConfig, ...]:
    """Tensor-core precisions: half as many elements in the same bytes."""
    rows = (
        (64, 64, 32, 4, 4),
        (64, 128, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (128, 128, 32, 3, 8),
        (128, 128, 16, 4, 8),
        (64, 64, 16, 4, 4),
    )
    return _tiles.tiles(*rows)


def recipe(call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch; resident programs where the tile says so."""
    view = call.swapped() if tile.knob("swap") else call
    subtile, persistent = tile.knob("subtile", 1), tile.knob("persistent")
    out_tma = stores_through_tma(view.out.operand, call.arch)
    out: Argument = _args.descriptor(view.out, tile.block_m, tile.block_n // subtile, view.batch) if out_tma else view.out
    total = cdiv(view.m, tile.block_m) * cdiv(view.n, tile.block_n) * view.batch
    resident = call.arch.sm_count * _tiles.occupancy(view.a.operand.itemsize, tile, call.arch)
    return KernelCall(
        tma_kernel,
        (min(total, resident) if persistent else total,),
        (
            _args.descriptor(view.a, tile.block_m, tile.block_k, view.batch),
            _args.descriptor(view.b, tile.block_k, tile.block_n, view.batch),
            out,
            view.m,
            view.n,
            view.k,
            view.batch,
            *((0, 0, 0) if out_tma else (view.out.batch_stride, *view.out.strides)),
            *_args.epilogue_args(view),
        ),
        {
            **_args.blocks(tile),
            "GROUP_M": tile.group_m,
            **_args.descriptor_constants(view),
            "OUT_BATCHED": view.out.batch_stride != 0,
            "OUT_TMA": out_tma,
            "SUBTILE": subtile,
            "MASK": view.m % tile.block_m != 0 or view.n % tile.block_n != 0,
            **_args.precision(view),
            **_args.epilogue_constants(view),
            "WIDE": view.wide,
            "PERSISTENT": bool(persistent),
            "FLATTEN": bool(tile.knob("flatten")),
            "DEPENDENT": _args.is_dependent(call, tile),
        },
        tile.num_warps,
        tile.num_stages,
        _args.is_dependent(call, tile),
    )


VARIANT = Variant(
    name="tma",
    summary="tensor descriptors, resident or one tile per program; aligned operands on Hopper and newer",
    supports=ByKind(supports),
    space=space,
    fits=ByForm(fits),
    recipe=recipe,
    reduction=_tiles.sequential_reduction,
    early_us=_args.SHORT_US,
    kernels=(tma_kernel,),
)
