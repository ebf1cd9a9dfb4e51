"""The ops under torch.vmap: the mapped dimension becomes the first of the batch, which gemm has anyway.

A weight that is not mapped stays one matrix, and where it is b the batch becomes more rows of one product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor

from minblas.errors import OperandError, ShapeError

Dims = Sequence[int | None]

#: Where c and bias, and the tensors for alpha and beta, stand among what follows a, b (and out).
_ADDENDS: Final = {2: "c", 3: "bias"}
_SCALARS: Final = {13: "alpha", 14: "beta"}


def batching(op: Any) -> Callable[..., tuple[Tensor, int]]:
    """How gemm is mapped."""

    def gemm(info: Any, dims: Dims, a: Tensor, b: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return op(*_in_front(info.batch_size, a, b, rest, dims[:2], dims[2:])), 0

    return gemm


def batching_out(op: Any) -> Callable[..., tuple[None, None]]:
    """How gemm_out is mapped: out is mapped too, or it could not hold the results."""

    def gemm_out(info: Any, dims: Dims, a: Tensor, b: Tensor, out: Tensor, *rest: Any) -> tuple[None, None]:
        if dims[2] is None:
            raise OperandError("out is not mapped by torch.vmap and an operand is", "an out for every result", "leave out= away")
        a, b, *values = _in_front(info.batch_size, a, b, rest, dims[:2], dims[3:])
        op(a, b, out.movedim(dims[2], 0), *values)
        return None, None

    return gemm_out


def _in_front(size: int, a: Tensor, b: Tensor, rest: Sequence[Any], dims: Dims, rest_dims: Dims) -> list[Any]:
    """All arguments, the mapped dimension of each in front of every dimension of a result, of which there are `rank`."""
    for name, tensor, dim in (("a", a, dims[0]), ("b", b, dims[1])):
        seen = tensor.dim() - (dim is not None)
        if seen < 2:
            raise ShapeError(f"{name} has {seen} dimensions inside torch.vmap", "at least 2", f"add one with {name}.unsqueeze")
    for place, name in _SCALARS.items():
        if place < len(rest) and rest_dims[place] is not None:
            raise OperandError(
                f"{name} is mapped by torch.vmap", "one number for all results", "scale the result with torch instead"
            )
    rank = max(tensor.dim() - (dim is not None) for tensor, dim in ((a, dims[0]), (b, dims[1])))
    values = list(rest)
    for place, name in _ADDENDS.items():
        addend = values[place] if place < len(values) else None
        if addend is None:
            continue
        seen = addend.dim() - (rest_dims[place] is not None)
        if seen > rank:  # one that is not mapped would be taken for one that is
            raise ShapeError(
                f"{name} has {seen} dimensions inside torch.vmap and the result has {rank}",
                f"a {name} that broadcasts to the result",
                f"reshape or expand {name}",
            )
        values[place] = _move(addend, rest_dims[place], rank)
    if dims[0] is None and dims[1] is None:
        a = a.expand(size, *[1] * (rank - a.dim()), *a.shape)
    return [_move(a, dims[0], rank), _move(b, dims[1], rank), *values]


def _move(tensor: Tensor, dim: int | None, rank: int) -> Tensor:
    if dim is None:
        return tensor
    moved = tensor.movedim(dim, 0)
    return moved.reshape(moved.shape[0], *[1] * (rank - moved.dim() + 1), *moved.shape[1:])
