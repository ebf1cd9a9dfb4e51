"""What a plan assumes of an operand, and what of another one breaks it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernel_zoo.spec import VECTOR_BYTES, pow2_divisor
from minblas.overlap import Extent


@dataclass(frozen=True, slots=True)
class Signature:
    """What a plan assumes of one operand. Strides of size-1 dimensions are left out; `align` is what the address must divide by."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device
    align: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Signature:
        """The signature of a tensor."""
        shape = tuple(tensor.shape)
        strides = tuple(stride for size, stride in zip(shape, tensor.stride(), strict=True) if size != 1)
        return cls(tensor.dtype, shape, strides, tensor.device, pow2_divisor(tensor.data_ptr(), VECTOR_BYTES))

    @property
    def at_zero(self) -> Extent:
        """The operand's memory, as if it began at address 0."""
        size = self.dtype.itemsize
        sizes = tuple(n for n in self.shape if n != 1)
        return Extent(0, size, sizes, tuple(stride * size for stride in self.strides))

    def difference(self, other: Signature) -> str:
        """What of `other` breaks the assumption: "" where nothing does."""
        for name in ("dtype", "shape", "strides", "device"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {theirs} instead of {mine}"
        if other.align < self.align:
            return f"an address that is a multiple of {other.align} bytes only, instead of {self.align}"
        return ""
