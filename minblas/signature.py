"""What a plan assumes of an operand, and what of another one breaks it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from kernel_zoo.spec import VECTOR_BYTES, pow2_divisor
from minblas.overlap import Extent

#: Types of alpha and beta that are taken as they are, and the class of a value in a key: anything but 0 and 1 is 2.
REAL: Final[frozenset[Any]] = frozenset((float, int))
CLASSES: Final[dict[Any, int]] = {0: 0, 1: 1}

_ALIGNED: Final = VECTOR_BYTES - 1  # an address divides by a vector's bytes where these bits are 0
_NOWHERE: Final = VECTOR_BYTES  # what no address is off by


def lows_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """How far each address is from a multiple of a vector's bytes; what has no memory is like nothing that has."""
    return [address & _ALIGNED if address else _NOWHERE for address in [tensor.data_ptr() for tensor in tensors]]


def key_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All of an operand that a binary, or a refusal, depends on."""
    address = tensor.data_ptr()
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        address & _ALIGNED if address else _NOWHERE,
        tensor.device,
        tensor.is_neg(),
        tensor.is_conj(),
    )


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
