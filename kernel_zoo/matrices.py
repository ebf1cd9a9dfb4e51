"""Operands as torch tensors: the strided views that opaque variants, the oracle and the checks compute with."""

from __future__ import annotations

from typing import Final

import torch

from kernel_zoo.spec import Operand

TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}


def matrix(tensor: torch.Tensor, operand: Operand, batch: int) -> torch.Tensor:
    """The (batch, rows, cols) view of an operand whose address is the tensor's; shares memory, never copies.

    A stride that means nothing (that of a size-1 dim) may be any number in the operand; it is set to 0 here.
    """
    sizes = (batch, operand.rows, operand.cols)
    strides = [stride if size > 1 else 0 for size, stride in zip(sizes, operand.strides, strict=True)]
    return tensor.as_strided(sizes, strides, tensor.storage_offset())
