"""gemm as an operator of torch's dispatcher: `torch.ops.minblas.gemm`, and `gemm_out`, which writes into a tensor.

Importing this module registers both; so does the first use of `minblas.gemm` and of the functions with torch's names. A process
that loads an exported program imports it first. What the ops do under each of torch's systems is in `op_kernels` (compute,
autograd, autocast), `op_fake` (shapes) and `op_vmap`. Here is how they are called with gemm's arguments; torch.compile traces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.library import Library, register_fake, register_torch_dispatch, register_vmap
from torch.utils.flop_counter import register_flop_formula

from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import TileConfig
from minblas import op_fake, op_kernels, op_vmap, settings
from minblas.cold import Call, number
from minblas.dynamo import unseen_by_dynamo
from minblas.errors import ArgumentError
from minblas.guards import PLAIN
from minblas.op_handover import prepare_sharding, prepare_sharding_of_any
from minblas.operands import check_gradients, dtype_name, input_dtype
from minblas.values import check_activation, check_flag, check_precision

if TYPE_CHECKING:
    from torch import Tensor

#: gemm's parameters in its order, bias among the operands; all by position, since DTensor redistributes no other tensors. A tile is
#: its description. alpha_tensor and beta_tensor stand for alpha and beta where these are 0-d CPU tensors: they are read when the
#: product is computed.
_ARGUMENTS: Final = (
    "Scalar alpha=1, Scalar? beta=None, Tensor? c=None, Tensor? bias=None, bool trans_a=False, bool trans_b=False, "
    "str? activation=None, ScalarType? out_dtype=None, str? precision=None, bool? deterministic=None, bool? batch_invariant=None, "
    "str? variant=None, str? tile=None, Tensor? alpha_tensor=None, Tensor? beta_tensor=None"
)
#: Compiled code gives the op operands with the strides that eager code would: what is chosen depends on them.
_TAGS: Final = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

_LIBRARY: Final = Library("minblas", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"gemm(Tensor a, Tensor b, {_ARGUMENTS}) -> Tensor", tags=_TAGS)  # type: ignore[no-untyped-call]
_LIBRARY.define(f"gemm_out(Tensor a, Tensor b, Tensor(a!) out, {_ARGUMENTS}) -> ()", tags=_TAGS)  # type: ignore[no-untyped-call]

GEMM: Final = torch.ops.minblas.gemm.default
GEMM_OUT: Final = torch.ops.minblas.gemm_out.default

_NUMBERS: Final = (int, float, complex, torch.SymInt, torch.SymFloat)
_AROUND: Final = "minblas.options holds when a product is computed, not when it is traced: put it around the compiled call"

_is_traced = torch.compiler.is_dynamo_compiling


def gemm_op(
    a: Tensor,
    b: Tensor,
    alpha: Any = 1,
    beta: Any = None,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    activation: str | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    precision: str | None = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
    variant: str | None = None,
    tile: TileConfig | None = None,
) -> Tensor:
    """gemm of these arguments, as one call of the op.

    Raises:
        MinblasError: an argument is not what the op takes. What depends on the operands' sizes is for the op to say; their types
            are compared here, because torch.compile puts an error of its own in the place of one that the op raises while traced.
    """
    if not all(tensor is None or tensor.__class__ in PLAIN for tensor in (a, b, c, bias, out)):
        if _is_traced():
            prepare_sharding_of_any()
        else:
            prepare_sharding(a, b, c, bias, out)
    if a.dtype != b.dtype and not torch.is_autocast_enabled(a.device.type):
        input_dtype({"a": a, "b": b})
    alpha_tensor = alpha if isinstance(alpha, torch.Tensor) else None
    beta_tensor = beta if isinstance(beta, torch.Tensor) else None
    alpha = 1 if alpha_tensor is not None else alpha if isinstance(alpha, _NUMBERS) else number("alpha", alpha, a)
    beta = None if beta_tensor is not None or beta is None else beta if isinstance(beta, _NUMBERS) else number("beta", beta, a)
    for name, value in (
        ("trans_a", trans_a), ("trans_b", trans_b), ("deterministic", deterministic), ("batch_invariant", batch_invariant)
    ):  # fmt: skip
        check_flag(name, value)
    if activation is not None:
        check_activation(activation)
    if precision is not None:
        check_precision(precision)
    if isinstance(out_dtype, str):
        out_dtype = TORCH_DTYPES[dtype_name("out_dtype", out_dtype)]
    if tile is not None and not isinstance(tile, TileConfig):
        raise ArgumentError(f"tile is {tile!r}", "a minblas.TileConfig", "for example minblas.TileConfig(128, 128, 64)")
    rest = (
        alpha, beta, c, bias, bool(trans_a), bool(trans_b), activation, out_dtype, precision,
        None if deterministic is None else bool(deterministic), None if batch_invariant is None else bool(batch_invariant),
        variant, None if tile is None else tile.describe(), alpha_tensor, beta_tensor,
    )  # fmt: skip
    if out is None:
        result: Tensor = GEMM(a, b, *rest)
        return result
    if _is_traced():
        check_gradients({name: t for name, t in (("a", a), ("b", b), ("c", c), ("bias", bias)) if t is not None}, out)
    GEMM_OUT(a, b, out, *rest)
    return out


def _functionalized(mode: Any, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """gemm_out while a graph is made free of mutations: as torch does it, but for an out that starts inside of another tensor.

    inductor rebuilds a view that an op writes into from its base, and takes an offset that is a symbol for 0 (pytorch issue
    198068): what is computed is copied there instead.
    """
    a, b, out, *rest = args
    if type(out.storage_offset()) is int:
        return mode.__torch_dispatch__(op, types, args, kwargs)
    with mode:
        out.copy_(GEMM(a, b, *op_kernels.with_out_dtype(rest, out.dtype)))


def gemm_of(call: Call) -> Tensor:
    """A call, without out, as a call of the op."""
    return gemm_op(
        call.a, call.b, call.alpha, call.beta, call.c, call.bias,
        trans_a=call.trans_a, trans_b=call.trans_b, activation=call.activation, out_dtype=call.out_dtype, precision=call.precision,
        deterministic=call.deterministic, batch_invariant=call.batch_invariant, variant=call.variant, tile=call.tile,
    )  # fmt: skip


def _register() -> None:
    for name, kernels in (("gemm", op_kernels.kernels(GEMM, gemm_of)), ("gemm_out", op_kernels.out_kernels(GEMM_OUT))):
        for key, kernel, with_keyset in kernels:
            _LIBRARY.impl(name, kernel, key, with_keyset=with_keyset)  # type: ignore[no-untyped-call]
    register_fake("minblas::gemm", op_fake.gemm, lib=_LIBRARY)
    register_fake("minblas::gemm_out", op_fake.gemm_out, lib=_LIBRARY)
    register_vmap("minblas::gemm", op_vmap.batching(GEMM), lib=_LIBRARY)
    register_vmap("minblas::gemm_out", op_vmap.batching_out(GEMM_OUT), lib=_LIBRARY)
    register_flop_formula(torch.ops.minblas.gemm)(op_fake.flops)
    register_flop_formula(torch.ops.minblas.gemm_out)(op_fake.flops_out)
    register_torch_dispatch("minblas::gemm_out", FunctionalTensorMode, _functionalized, lib=_LIBRARY)
    options = settings.options
    unseen_by_dynamo(
        (vars(options)["__init__"], options.__enter__, options.__exit__, options.set, options.restore, options.get), _AROUND
    )


_register()
