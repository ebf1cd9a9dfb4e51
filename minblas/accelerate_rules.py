"""What stays torch's inside `accelerate`, and why: gemm is laxer than torch, and it refuses some of what torch does."""

from __future__ import annotations

from typing import Any, Final

import torch

from minblas import errors
from minblas.cold import Call

_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: In a result's place: the call stays torch's.
STAYS: Final[Any] = object()
_SHAPES: Final = "shapes that torch refuses"
#: What a refusal of gemm means here, and whether it lasts: those of addresses and of the moment do not.
_REFUSALS: Final[dict[type[Exception], tuple[str, bool]]] = {
    errors.ShapeError: (_SHAPES, True),
    errors.DTypeError: ("types that no kernel takes", True),
    errors.DeviceError: ("operands of several devices, or of one that minblas does not serve", True),
    errors.VariantError: ("the variant that is forced cannot serve it", True),
    errors.UnknownVariantError: ("the options name a variant that there is not", True),
    errors.OverlapError: ("out= shares memory with an input or with itself", False),
    errors.ColdCallError: ("its kernel is not compiled, and may not be now (on_cold, or a graph capture)", False),
    errors.LaunchError: ("its kernel did not compile or launch", False),
    torch.OutOfMemoryError: ("no memory for a kernel or its workspace", False),
}


class Left:
    """A plan of the cache for calls that stay torch's. Its `calls` stay 0: they are counted by op and reason.

    Attributes:
        reason: why they stay.
        provisional: only until a kernel is compiled.
    """

    __slots__ = ("provisional", "reason", "used")

    variant = "left"
    direct = ()

    def __init__(self, reason: str, provisional: bool = False) -> None:
        self.reason = reason
        self.provisional = provisional
        self.used = True

    @property
    def calls(self) -> int:
        """0."""
        return 0

    @calls.setter
    def calls(self, count: int) -> None:
        """Nothing."""

    def run(self, *operands: Any) -> Any:
        """What a route is told in a result's place."""
        return STAYS


def torchs_own(name: str, call: Call) -> str:
    """Why a call is torch's whatever the kernels could do with it; "" where it is not. gemm is laxer than torch in all of these."""
    a, b, c, out = call.a, call.b, call.c, call.out
    batched = "bmm" in name
    if not a.dim() == b.dim() == 2 + batched or (batched and a.shape[0] != b.shape[0]):
        return _SHAPES
    shape = (*a.shape[:-1], b.shape[-1])
    if 0 in shape or a.shape[-1] == 0:
        return "nothing to compute, or nothing to sum"
    if call.alpha == 0:
        return "alpha is 0"
    if a.dtype not in _TYPES:
        return "integers, complex numbers and floats of 8 bits"
    result = call.out_dtype
    if a.dtype != b.dtype or (c is not None and c.dtype not in (a.dtype, result)) or (out is not None and out.dtype != result):
        return "operands of several types"
    if result != a.dtype and (result, a.dtype.itemsize) != (torch.float32, 2):
        return "a type of the result that torch refuses"
    if out is not None and out.shape != shape:
        return "out= has another shape, which torch resizes or refuses"
    if any(x is not None and (x.is_neg() or x.is_conj()) for x in (a, b, c, out)):
        return "a conjugate or negative view"
    return ""


def refusal(error: Exception) -> tuple[str, bool]:
    """Why minblas does not serve, in words without sizes, so that they can be counted; and whether that lasts."""
    kinds = [kind for kind in type(error).__mro__ if kind in _REFUSALS]
    return _REFUSALS[kinds[0]] if kinds else (f"minblas refuses it: {type(error).__name__}", True)
