"""The first launch of repack: one or two matrices that TMA cannot read, copied line by line to where it can.

A line is what the source has along its unit stride; in the copy it starts at a multiple of 128 bytes. The matrix keeps its
direction, so that nothing is transposed. Lines are read in aligned words of 8 bytes, two of which are shifted into one; elements
that do not lie side by side are read one by one and go through shared memory into 16-byte stores. What a line's last word or
piece holds beyond its last element is not read afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from kernel_zoo.kernels import _args
from kernel_zoo.kernels._device import follow_launch
from kernel_zoo.spec import VECTOR_BYTES, Argument, GemmCall, KernelCall, Operand, TileConfig, View, cdiv
from kernel_zoo.triton_compat import tl, triton

LINE_ELEMENTS: Final = 64  # 16-bit elements: a line's start is a multiple of 128 bytes, TMA's widest swizzle
REGION_BYTES: Final = 256  # each matrix in the workspace starts at a multiple of this
_BLOCK_ELEMENTS: Final = 4096  # 8 KiB a program: eight programs keep 64 KiB in flight on an SM
_WIDE_COLS: Final = 256
_NARROW_COLS: Final = 64
_WARPS: Final = 8
_WORD_BYTES: Final = 8


@triton.jit
def shifted_words(addresses, words, length, mask):
    """Words of 4 elements, counted from where a line starts: put together from two aligned ones, the second mostly found in L1.

    An aligned word that holds one element of the matrix lies in mapped memory as a whole; no other is read.
    """
    beside = addresses & 7  # bytes from the aligned word to the line's start: 0, 2, 4 or 6
    aligned = (addresses - beside).to(tl.pointer_type(tl.uint64))
    pointers = aligned[:, None] + words[None, :]
    next_starts = words[None, :] * 4 + (4 - (beside // 2).to(tl.int32)[:, None])
    needed = mask & (next_starts < length) & (beside != 0)[:, None]
    low = tl.load(pointers, mask=mask, other=0, eviction_policy="evict_first")
    high = tl.load(pointers + 1, mask=needed, other=0, eviction_policy="evict_first")
    bits = (beside * 8).to(tl.uint64)[:, None]
    return (low >> bits) | ((high << (48 - bits)) << 16)  # in two steps: a shift by all 64 bits is undefined


@triton.jit
def copy_block(
    source, target, index, lines, length, stride_batch, stride_line, stride_step,
    UNIT: tl.constexpr, LINES: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The index-th (LINES, COLS) block of a batch of matrices given by lines. UNIT: a line's elements lie side by side."""
    blocks_across = tl.cdiv(length, COLS)
    per_matrix = tl.cdiv(lines, LINES) * blocks_across
    batch = (index // per_matrix).to(tl.int64)
    within = index % per_matrix
    rows = (within // blocks_across) * LINES + tl.arange(0, LINES)
    first = (within % blocks_across) * COLS
    row_mask = (rows < lines)[:, None]
    wide_rows = rows.to(tl.int64)
    starts = source + (batch * stride_batch + wide_rows * stride_line)
    # Written as a product, so that the compiler knows what divides it.
    target_starts = target + (batch * lines + wide_rows) * ((tl.cast(length, tl.int64) + 63) // 64 * 64)
    # An interpreter that widens elements has no bits to shift.
    if UNIT and source.dtype.element_ty.primitive_bitwidth == 16:
        words = first // 4 + tl.arange(0, COLS // 4)
        mask = row_mask & (words * 4 < length)[None, :]
        values = shifted_words(starts.to(tl.int64), words, length, mask)
        tl.store(target_starts.to(tl.pointer_type(tl.uint64), bitcast=True)[:, None] + words[None, :], values, mask=mask)
    else:
        cols = first + tl.arange(0, COLS)
        pointers = starts[:, None] + (cols.to(tl.int64) * stride_step)[None, :]
        values = tl.load(pointers, mask=row_mask & (cols < length)[None, :], other=0.0, eviction_policy="evict_first")
        # Another shape lets the store have its own layout: neighbours to neighbouring threads above, 8 to a thread here.
        pieces = first + tl.arange(0, COLS // 8) * 8
        places = (target_starts[:, None] + pieces[None, :])[:, :, None] + tl.arange(0, 8)[None, None, :]
        mask = (row_mask & (pieces < length)[None, :])[:, :, None]
        tl.store(places, values.reshape(LINES, COLS // 8, 8), mask=mask)


@triton.jit(
    do_not_specialize=[
        "first_programs", "first_lines", "first_length", "first_stride_batch", "first_stride_line", "first_stride_step",
        "second_lines", "second_length", "second_stride_batch", "second_stride_line", "second_stride_step",
    ]
)  # fmt: skip
def repack_kernel(
    FIRST, FIRST_COPY, SECOND, SECOND_COPY, first_programs,
    first_lines, first_length, first_stride_batch, first_stride_line, first_stride_step,
    second_lines, second_length, second_stride_batch, second_stride_line, second_stride_step,
    FIRST_UNIT: tl.constexpr, FIRST_LINES: tl.constexpr, FIRST_COLS: tl.constexpr,
    SECOND_UNIT: tl.constexpr, SECOND_LINES: tl.constexpr, SECOND_COLS: tl.constexpr, TWO: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A block of the first matrix, or, for programs from first_programs on, of the second."""
    follow_launch(DEPENDENT)
    index = tl.program_id(0)
    if TWO:
        if index >= first_programs:
            copy_block(
                SECOND, SECOND_COPY, index - first_programs, second_lines, second_length,
                second_stride_batch, second_stride_line, second_stride_step, SECOND_UNIT, SECOND_LINES, SECOND_COLS,
            )  # fmt: skip
            return
    copy_block(
        FIRST, FIRST_COPY, index, first_lines, first_length, first_stride_batch, first_stride_line, first_stride_step,
        FIRST_UNIT, FIRST_LINES, FIRST_COLS,
    )  # fmt: skip


def packed(operand: Operand, inner: Literal["rows", "cols"]) -> Operand:
    """The operand as its copy lies: aligned, lines padded, in the source's direction; `inner` is contiguous where that has none."""
    transposed = _lies_transposed(operand, inner)
    lines, length = (operand.cols, operand.rows) if transposed else (operand.rows, operand.cols)
    leading = LINE_ELEMENTS * cdiv(length, LINE_ELEMENTS)
    own = lines * leading if operand.strides[0] else 0
    return Operand(operand.dtype, operand.rows, operand.cols, (own, 1, leading) if transposed else (own, leading, 1))


def packed_bytes(copy: Operand, batch: int) -> int:
    """Bytes of a copy in the workspace, up to where the next one may start."""
    lines = copy.cols if copy.layout == "t" else copy.rows
    copies = batch if copy.strides[0] else 1
    return REGION_BYTES * cdiv(copies * lines * copy.leading * copy.itemsize, REGION_BYTES)


def _lies_transposed(operand: Operand, inner: Literal["rows", "cols"]) -> bool:
    """Whether the copy's lines are the operand's columns."""
    _, row, col = operand.strides
    if operand.rows <= 1 or operand.cols <= 1:
        return operand.cols <= 1 < operand.rows  # a vector is one line
    if operand.layout != "s":
        return operand.layout == "t"
    if row == col:
        return inner == "rows"
    return col == 0 or 0 < row < col  # neighbours of the shorter step share a cache line


@dataclass(frozen=True, slots=True)
class _Job:
    """One matrix's share of the launch."""

    views: tuple[View, View]
    sizes: tuple[int, int, int, int, int]
    programs: int
    shape: tuple[bool, int, int]  # UNIT, LINES, COLS


def _job(source: View, copy: View, batch: int) -> _Job:
    operand = source.operand
    transposed = copy.operand.layout == "t"
    lines, length = (operand.cols, operand.rows) if transposed else (operand.rows, operand.cols)
    stride_batch, row, col = operand.strides
    stride_line, step = (col, row) if transposed else (row, col)
    narrow, wide = (cols * cdiv(length, cols) for cols in (_NARROW_COLS, _WIDE_COLS))
    cols = _NARROW_COLS if 4 * wide > 5 * narrow else _WIDE_COLS
    block_lines = _BLOCK_ELEMENTS // cols
    copies = batch if stride_batch else 1
    # No more is claimed of the addresses than is made use of. Elements side by side are stored as read, 8 bytes a thread; known to
    # be aligned to 16, the stores would give every thread two words, and its reads 16-byte gaps.
    unit = step == 1
    source = replace(source, operand=replace(operand, align=operand.itemsize))
    copy = replace(copy, operand=replace(copy.operand, align=_WORD_BYTES if unit else VECTOR_BYTES))
    programs = cdiv(lines, block_lines) * cdiv(length, cols) * copies
    return _Job((source, copy), (lines, length, stride_batch, stride_line, step), programs, (unit, block_lines, cols))


def copying(pairs: list[tuple[View, View]], call: GemmCall, tile: TileConfig) -> KernelCall:
    """The launch that copies one or two (source, copy) pairs of a call, for the product with a tile."""
    jobs = [_job(source, copy, call.batch) for source, copy in pairs]
    first, second = jobs[0], jobs[-1]
    two = len(jobs) == 2
    absent: tuple[Argument, ...] = (None, None)
    return KernelCall(
        repack_kernel,
        (sum(job.programs for job in jobs),),
        (*first.views, *(second.views if two else absent), first.programs, *first.sizes, *(second.sizes if two else (0,) * 5)),
        {
            **dict(zip(("FIRST_UNIT", "FIRST_LINES", "FIRST_COLS"), first.shape, strict=True)),
            **dict(zip(("SECOND_UNIT", "SECOND_LINES", "SECOND_COLS"), second.shape, strict=True)),
            "TWO": two,
            "DEPENDENT": _args.is_dependent(call, tile),
        },
        _WARPS,
        1,
        _args.is_dependent(call, tile),
    )
