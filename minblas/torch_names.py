"""torch's own products under torch's own names: same arguments, same meaning, computed by gemm.

Where torch and gemm differ, torch's rule holds here: integer products keep the inputs' type, mm and bmm do not broadcast, addmm's
beta is 1.
A result that torch would resize out= for is an error, as everywhere in minblas. torch.autocast casts as it does for torch's own
products, out= left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from minblas import operands
from minblas.api import gemm
from minblas.errors import OutError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Dtype = torch.dtype | str

_Tensor: Final = torch.Tensor
_STRIDED: Final = torch.strided


def mm(input: Tensor, mat2: Tensor, out_dtype: Dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """torch.mm: (M, K) @ (K, N)."""
    if not _strided(2, input, mat2):
        _check_dims("mm", 2, input=input, mat2=mat2)
    return gemm(input, mat2, out=out, out_dtype=_own_type(input, out_dtype))


def bmm(input: Tensor, mat2: Tensor, out_dtype: Dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """torch.bmm: (B, M, K) @ (B, K, N); the batch is not broadcast."""
    if not _strided(3, input, mat2):
        _check_dims("bmm", 3, input=input, mat2=mat2)
    _check_batch("bmm", input, mat2)
    return gemm(input, mat2, out=out, out_dtype=_own_type(input, out_dtype))


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    out_dtype: Dtype | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """torch.addmm: beta * input + alpha * (M, K) @ (K, N)."""
    if not _strided(2, mat1, mat2) or mat1.size(1) != mat2.size(0):
        _check_dims("addmm", 2, mat1=mat1, mat2=mat2)
        _check_inner("addmm", mat1=mat1, mat2=mat2)
    return gemm(mat1, mat2, alpha, beta, input, out=out, out_dtype=_own_type(mat1, out_dtype))


def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    out_dtype: Dtype | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """torch.baddbmm: beta * input + alpha * (B, M, K) @ (B, K, N)."""
    if not _strided(3, batch1, batch2) or batch1.size(0) != batch2.size(0) or batch1.size(2) != batch2.size(1):
        _check_dims("baddbmm", 3, batch1=batch1, batch2=batch2)
        _check_batch("baddbmm", batch1, batch2)
        _check_inner("baddbmm", batch1=batch1, batch2=batch2)
    return gemm(batch1, batch2, alpha, beta, input, out=out, out_dtype=_own_type(batch1, out_dtype))


def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """torch.matmul: vectors, matrices and batches of them; leading dimensions broadcast."""
    if out is None and _strided(2, input, other):
        return gemm(input, other, out_dtype=_own_type(input, None))
    _check_least("matmul", 1, input=input, other=other)
    row, column = input.dim() == 1, other.dim() == 1
    left = input.unsqueeze(0) if row else input
    right = other.unsqueeze(1) if column else other
    if out is None:
        result = gemm(left, right, out_dtype=_own_type(input, None))
        result = result.squeeze(-1) if column else result
        return result.squeeze(-2 + column) if row else result
    target = out
    if row or column:
        _check_vector_out(out, left, right, row, column)
        target = target.unsqueeze(-1) if column else target
        target = target.unsqueeze(-2) if row else target
    gemm(left, right, out=target, out_dtype=_own_type(input, None))
    return out


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear: input (..., in) @ weight (out, in) transposed + bias. A weight of shape (in,) gives (...)."""
    if _strided(None, input, weight) and input.dim() > 1 and weight.dim() == 2 and input.size(-1) == weight.size(1):
        return gemm(input, weight, bias=bias, trans_b=True, out_dtype=_own_type(input, None))
    _check_least("linear", 1, input=input, weight=weight)
    if weight.dim() > 2:
        raise ShapeError(
            f"linear: weight is {operands.shape_of(weight)}", "a weight of shape (out, in) or (in,)", "reshape the weight"
        )
    if input.shape[-1] != weight.shape[-1]:
        given = f"linear: input is {operands.shape_of(input)} and weight is {operands.shape_of(weight)}"
        raise ShapeError(given, "equal last dimensions", "a weight is stored (out, in); pass weight.mT where it is (in, out)")
    rows = input.unsqueeze(0) if input.dim() == 1 else input
    result = gemm(
        rows, weight if weight.dim() == 2 else weight.unsqueeze(0), bias=bias, trans_b=True, out_dtype=_own_type(input, None)
    )
    result = result if weight.dim() == 2 else result.squeeze(-1)
    return result.squeeze(0) if input.dim() == 1 else result


def _own_type(tensor: Tensor, asked: Dtype | None) -> Dtype | None:
    """torch's rule for the result's type: integers stay as they are; the others are left to gemm."""
    if asked is not None:
        return asked
    dtype = tensor.dtype
    return None if dtype.is_floating_point or dtype.is_complex else dtype


def _strided(dims: int | None, one: Any, other: Any) -> bool:
    """Whether both are strided tensors, of so many dimensions where that is said: what the checks below need not look at."""
    return (
        isinstance(one, _Tensor)
        and isinstance(other, _Tensor)
        and one.layout == _STRIDED == other.layout
        and (dims is None or (one.dim() == dims and other.dim() == dims))
    )


def _check_dims(function: str, wanted: int, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        operands.check_tensor(name, tensor)
        if tensor.dim() != wanted:
            given = f"{function}: {name} is {operands.shape_of(tensor)}"
            raise ShapeError(given, f"{wanted} dimensions", "minblas.matmul broadcasts and takes any number of dimensions")


def _check_least(function: str, least: int, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        operands.check_tensor(name, tensor)
        if tensor.dim() < least:
            raise ShapeError(f"{function}: {name} is a 0-d tensor", "at least 1 dimension", "multiply by a number with *")


def _check_batch(function: str, left: Tensor, right: Tensor) -> None:
    if left.shape[0] != right.shape[0]:
        given = f"{function}: the batches are {left.shape[0]} and {right.shape[0]}"
        raise ShapeError(given, "equal batches", "minblas.matmul broadcasts a batch of 1")


def _check_inner(function: str, **tensors: Tensor) -> None:
    (first, left), (second, right) = tensors.items()
    if left.shape[-1] != right.shape[-2]:
        given = f"{function}: {first} is {operands.shape_of(left)} and {second} is {operands.shape_of(right)}"
        needed = f"{first}'s last dimension equal to {second}'s second to last"
        raise ShapeError(given, needed, f"the order is {function}(input, {first}, {second}): what is added comes first")


def _check_vector_out(out: Any, left: Tensor, right: Tensor, row: bool, column: bool) -> None:
    """out= of a product with a vector, whose shape is checked before it is made a matrix."""
    operands.check_plain("out", out)
    batch = operands.broadcast(left.shape[:-2], right.shape[:-2])
    if batch is None:
        return  # gemm says so
    shape = (*batch, *(() if row else (left.shape[-2],)), *(() if column else (right.shape[-1],)))
    if operands.shape_of(out) != shape:
        raise OutError(
            f"out is {operands.shape_of(out)} and the result is {shape}", "an out of the result's shape", "out is never resized"
        )
