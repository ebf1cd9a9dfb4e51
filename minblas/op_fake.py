"""The ops on tensors without data: the result's shape, type and strides, and its work, for torch.compile, export, FakeTensorMode.

A result that is not given is dense, row by row, whatever the operands' strides are: here as in `plan`. Sizes may be symbols. What
must be equal is then told to torch as a condition, since a comparison in Python would fix the sizes that a graph serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import default_out_dtype
from minblas import dispatch, operands
from minblas.cold import Call, request_of
from minblas.errors import MinblasError, OutError, ShapeError
from minblas.op_kernels import call_of
from minblas.problem import Request, describe
from minblas.values import check_activation_type

_TRANS_A: Final = 4  # its place among what follows a, b (and out)


def gemm(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    """The result, without data.

    Raises:
        MinblasError: the call is refused, as far as it can be without data.
    """
    shape, dtype = _result(call_of(a, b, *rest))
    return a.new_empty(shape, dtype=dtype)


def gemm_out(a: Tensor, b: Tensor, out: Tensor, *rest: Any) -> None:
    """Nothing but the checks.

    Raises:
        MinblasError: the call is refused, as far as it can be without data.
    """
    _result(replace(call_of(a, b, *rest), out=out))


def flops(a: Sequence[int], b: Sequence[int], *rest: Any, out_shape: Sequence[int], **_: Any) -> int:
    """A product's operations, an addition and a multiplication each, from the shapes."""
    turned = len(rest) > _TRANS_A and bool(rest[_TRANS_A])
    return 2 * math.prod(out_shape) * a[-2 if turned else -1]


def flops_out(a: Sequence[int], b: Sequence[int], out: Sequence[int], *rest: Any, **_: Any) -> int:
    """Likewise, of the op that writes into out."""
    return flops(a, b, *rest, out_shape=out)


def _result(call: Call) -> tuple[Sequence[int], torch.dtype]:
    """Its shape and dtype."""
    for name in ("alpha", "beta"):
        if isinstance(getattr(call, name), Tensor):
            operands.check_scalar_tensor(name, getattr(call, name))
    if call.variant is not None:
        dispatch.get(call.variant)
    known = replace(call, alpha=_known(call.alpha, 1.0), beta=_known(call.beta, 0.0 if call.c is None else 1.0))
    request = request_of(known)
    given = {**request.inputs, **({"out": request.out} if request.out is not None else {})}
    if all(type(size) is int for tensor in given.values() for size in tensor.shape):
        described = describe(request)
        return described.shape, described.dtype
    return _symbolic(request, given)


def _known(value: Any, instead: float) -> Any:
    """A scalar, or another in the place of one whose value is not known yet: reading it would fix it."""
    return value if isinstance(value, (int, float, complex)) else instead


def _symbolic(request: Request, given: dict[str, Tensor]) -> tuple[Sequence[int], torch.dtype]:
    """As `describe`, of sizes that are symbols."""
    for name, tensor in given.items():
        operands.check_plain(name, tensor)
    operands.check_devices(given)
    operands.check_gradients(request.inputs, request.out)
    a, b = request.a, request.b
    sizes = ", ".join(f"{name} is {operands.shape_of(tensor)}" for name, tensor in given.items())
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() < 2:
            raise ShapeError(sizes, f"{name} with at least 2 dimensions", f"add one with {name}.unsqueeze")
    _must(ShapeError, a.shape[-1] == b.shape[-2], f"{sizes}; needed: a's columns equal to b's rows, transposes applied")
    shape = (*_broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    inputs = operands.input_dtype(given)
    result = operands.result_dtype(inputs, default_out_dtype(inputs), request.out_dtype, request.out)
    for name in ("c", "bias"):
        if name in given:
            _check_broadcast(name, given[name], shape, sizes)
            operands.check_addend(name, given[name], inputs, result)
    check_activation_type(request.activation, inputs)
    if request.out is not None:
        same = len(shape) == request.out.dim()
        for size, wanted in zip(request.out.shape if same else (), shape, strict=False):
            _must(OutError, size == wanted, f"{sizes}; needed: an out of the result's shape; out is never resized")
        _must(OutError, same, f"{sizes}; needed: an out of the result's shape; out is never resized")
    return shape, TORCH_DTYPES[result]


def _check_broadcast(name: str, tensor: Tensor, shape: Sequence[Any], sizes: str) -> None:
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # takes half a second to import, and symbols have done so

    message = f"{sizes}; needed: a {name} that broadcasts to the result"
    _must(ShapeError, tensor.dim() <= len(shape), message)
    for size, full in zip(tensor.shape[::-1], shape[::-1], strict=False):
        if not guard_or_false(size == 1):
            _must(ShapeError, size == full, message)


def _broadcast(left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
    made: Sequence[Any] = torch.broadcast_shapes(left, right)  # type: ignore[no-untyped-call]
    return made


def _must(error: type[MinblasError], condition: Any, message: str) -> None:
    torch._check_with(error, condition, lambda: message)
