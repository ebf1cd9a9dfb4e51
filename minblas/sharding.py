"""Where the shards of a product go: rules that make torch's DTensor run gemm on every rank, with the communication it needs.

A rule says, for one dimension of the device mesh, how the result is placed when the operands are placed so. DTensor combines the
rules over the mesh, moves what is placed otherwise (all-gather, all-to-all, reduce-scatter) and calls the op on the local shards.

    rows        a by rows, b whole             -> result by rows
    columns     a whole, b by columns          -> result by columns (ColwiseParallel)
    inner       a by columns, b by rows        -> partial sums, which an all-reduce adds up (RowwiseParallel)
    batch       both along the batch           -> result along the batch; an operand that is broadcast there is whole
    linear      one a partial sum, one whole   -> partial sums

An activation of partial sums is not the activation of their sum: with one there is neither an inner nor a linear rule, and DTensor
moves the operands so that another applies. c and bias are added once over all ranks: beside partial sums they must be partial sums,
and DTensor makes such of a whole one by dividing it by the number of ranks, which is exact for a power of two.

The one file that knows DTensor; nothing imports it, nor torch.distributed, before a call has a DTensor among its operands.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from minblas.errors import OperandError
from minblas.operands import broadcast

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.distributed.tensor import Placement

    Rule = tuple[Placement, dict[str, Placement]]

_OPERANDS: Final = ("a", "b", "c", "bias")
_SCALARS: Final = ("alpha_tensor", "beta_tensor")
_NO_ACTIVATION: Final = (None, "none")
#: Arguments whose values no rule depends on: left out of DTensor's cache, which never forgets.
_FREE: Final = ("a", "b", "alpha", "beta")

_LOCK: Final = threading.Lock()
_registered = False


def ensure_registered() -> None:
    """Make torch's DTensor know the op; does nothing the second time.

    Raises:
        OperandError: this torch's DTensor cannot be told.
    """
    global _registered
    if _registered:
        return
    with _LOCK:
        if not _registered:
            from minblas.op import GEMM

            register(GEMM)
            _registered = True


def register(op: OpOverload) -> None:
    """Give DTensor the rules of an op with gemm's argument names, all of them positional.

    Raises:
        OperandError: this torch's DTensor cannot be told.
    """
    try:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
        from torch.distributed.tensor.experimental import register_sharding

        # The experimental function has DTensor remember a decision by the operands' placements and the ints among the arguments:
        # that for trans_b=False would serve True. What it registered there is replaced by a description that tells them apart.
        descriptions = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    except (ImportError, AttributeError) as error:
        given = f"an operand is a DTensor, and torch {torch.__version__} takes no sharding rules ({error})"
        raise OperandError(given, "torch.distributed.tensor.experimental.register_sharding", "call to_local() first") from error
    names = [argument.name for argument in op._schema.arguments]

    def acceptable(*arguments: Any) -> list[tuple[list[Placement], list[Placement | None]]]:
        given = dict(zip(names, arguments, strict=False))  # defaults at the end are left out
        return [([result], [operands.get(name) for name in given]) for result, operands in rules(given)]

    register_sharding(op)(acceptable)
    descriptions[op] = RuntimeSchemaInfo(static_argnum=next(i for i, name in enumerate(names) if name not in _FREE))


def rules(call: Mapping[str, Any]) -> list[Rule]:
    """The acceptable placements along one mesh dimension: the result's, and one for each operand that is there.

    Args:
        call: gemm's arguments by name, where they are not the defaults. Operands are anything with a shape and a tensor_meta, as
            DTensor's specs are.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    shapes = {name: tuple(call[name].shape) for name in _OPERANDS if call.get(name) is not None}
    a, b = shapes["a"], shapes["b"]
    a_rows, a_inner = _last_two(a, call.get("trans_a", False))
    b_inner, b_columns = _last_two(b, call.get("trans_b", False))
    result = (*(broadcast(a[:-2], b[:-2]) or ()), a[a_rows], b[b_columns])
    rank = len(result)
    addends = [name for name in ("c", "bias") if name in shapes]

    def with_addends(dim: int, **products: Placement) -> Rule:
        return Shard(dim), products | {name: _along(shapes[name], dim, result) for name in addends}

    found: list[Rule] = [(Replicate(), dict.fromkeys(shapes, Replicate()))]
    found += [with_addends(dim, a=_along(a, dim, result), b=_along(b, dim, result)) for dim in range(rank - 2)]
    found.append(with_addends(rank - 2, a=Shard(a_rows), b=Replicate()))
    found.append(with_addends(rank - 1, a=Replicate(), b=Shard(b_columns)))
    if call.get("activation") in _NO_ACTIVATION and all(_divides(call[name]) for name in addends):
        partial: dict[str, Placement] = {name: Partial() for name in addends}
        found.append((Partial(), {"a": Shard(a_inner), "b": Shard(b_inner), **partial}))
        found.append((Partial(), {"a": Partial(), "b": Replicate(), **partial}))
        found.append((Partial(), {"a": Replicate(), "b": Partial(), **partial}))
    scalars = dict.fromkeys((name for name in _SCALARS if call.get(name) is not None), Replicate())
    return [(placement, operands | scalars) for placement, operands in found]


def _last_two(shape: tuple[int, ...], transposed: bool) -> tuple[int, int]:
    """Which dimensions are the matrix's rows and columns."""
    dims = (len(shape) - 2, len(shape) - 1)
    return dims[::-1] if transposed else dims


def _along(shape: tuple[int, ...], dim: int, result: tuple[int, ...]) -> Placement:
    """The placement of an operand beside a result that is sharded along `dim`: whole where it is broadcast there."""
    from torch.distributed.tensor import Replicate, Shard

    own = dim - len(result) + len(shape)
    return Shard(own) if own >= 0 and shape[own] == result[dim] else Replicate()


def _divides(addend: Any) -> bool:
    """Whether DTensor can make partial sums of it: it divides, and an integer would become a fraction."""
    dtype: torch.dtype = addend.tensor_meta.dtype
    return dtype.is_floating_point or dtype.is_complex
