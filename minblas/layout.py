"""Operands over a flattened batch: one stride for all leading dimensions, and a batch that is only more rows folded into M."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernel_zoo.spec import VECTOR_BYTES, pow2_divisor


@dataclass(slots=True)
class Laid:
    """An operand over the flattened batch: strides (batch, row, col), None where it must be copied; and its address's alignment."""

    strides: tuple[int, int, int] | None
    align: int


def lay(tensor: torch.Tensor, target: tuple[int, ...]) -> Laid:
    """A tensor broadcast to a target shape, its leading dimensions walked by one stride where that can be."""
    sizes, strides = tensor.shape, tensor.stride()
    missing = len(target) - len(sizes)
    full = [0] * missing + [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
    batch_stride = _collapse(target[:-2], full[:-2])
    if batch_stride is None:
        return Laid(None, VECTOR_BYTES)
    row, col = full[-2:]
    return Laid((batch_stride, row, col), pow2_divisor(tensor.data_ptr(), VECTOR_BYTES))


def _collapse(sizes: tuple[int, ...], strides: list[int]) -> int | None:
    """The one stride that walks all batch dimensions in order, or None."""
    stride: int | None = None
    reach = 0
    for size, step in zip(sizes[::-1], strides[::-1], strict=True):
        if size == 1:
            continue
        if stride is None:
            stride = step
        elif step != reach:
            return None
        reach = step * size
    return stride or 0


def fold(laid: dict[str, Laid], m: int) -> bool:
    """Whether the batch is only more rows: b is shared, and the rows of all others continue from matrix to matrix. Folds them."""
    if "B" not in laid or laid["B"].strides is None or laid["B"].strides[0] != 0:
        return False
    others = [lay for slot, lay in laid.items() if slot != "B"]
    for lay in others:
        if lay.strides is None:
            return False
        batch, row, _ = lay.strides
        if m > 1 and batch != m * row:
            return False
    for lay in others:
        assert lay.strides is not None
        batch, row, col = lay.strides
        lay.strides = (0, row if m > 1 else batch, col)
    return True
