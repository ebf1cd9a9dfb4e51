"""gemm: one call. A warm call is a short key, a dict lookup and what `warm` does; everything slow is in `cold`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import forward_ad

from kernel_zoo.spec import TileConfig
from minblas import op, settings
from minblas.cache import CACHE
from minblas.cold import Call, cold, make_plan, number
from minblas.dynamo import unseen_by_dynamo
from minblas.errors import GradientError
from minblas.guards import PLAIN
from minblas.op_handover import must_be_seen
from minblas.plan import LaunchPlan
from minblas.signature import CLASSES, REAL, key_of
from minblas.warm import DirectRoute, Route, route_to

if TYPE_CHECKING:
    from torch import Tensor

_FP32: Final = torch.float32
_UNIT: Final = 1  # an int: torch.compile would make a float that is left away an input of the graph

_find_route = CACHE.route
_is_traced = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_deterministic = torch._C._get_deterministic_algorithms
_fp32_precision = torch._C._get_fp32_precision_getter
_options = settings.current


def gemm(
    a: Tensor,
    b: Tensor,
    alpha: float | Tensor = _UNIT,
    beta: float | Tensor | None = None,
    c: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Tensor | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    precision: str | None = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
    variant: str | None = None,
    tile: TileConfig | None = None,
) -> Tensor:
    """activation(alpha * op(a) @ op(b) + beta * c + bias), summed wide and rounded once.

    Args:
        a: (..., M, K); leading dimensions broadcast as in torch.matmul.
        b: (..., K, N).
        alpha: a number or a 0-d CPU tensor.
        beta: likewise; 1 where c is given and 0 where it is not. With beta 0, c is not read.
        c: broadcasts to (..., M, N); the inputs' dtype, the result's, or fp32.
        trans_a: a is stored (..., K, M). Costs nothing: layouts are read off the strides.
        trans_b: b is stored (..., N, K).
        bias: broadcasts to (..., M, N), like c.
        activation: "relu", "gelu", "gelu_tanh", "silu" or "leaky_relu", applied last.
        out: written and returned; the result's shape; may be c itself.
        out_dtype: by default out's or the inputs' (fp8 gives bf16, int8 gives int32).
        precision: how fp32 products are formed: "ieee", "tf32", "tf32x3", "bf16x3", "bf16x6", or torch's "highest", "high",
            "medium"; by default as torch is set.
        deterministic: only variants that repeat bit for bit; by default as torch is set.
        batch_invariant: a row's bits depend neither on M nor on the batch.
        variant: force this variant; an error with the reason where it cannot serve. On CPU tensors torch's own product stands in
            for one that the interpreter cannot run, and `minblas.stats` says so.
        tile: force its tile too.

    Returns:
        (..., M, N)

    Raises:
        MinblasError: the call is refused; out is untouched. See `minblas.errors` for the kinds.
    """
    short = None
    if not _is_traced() and alpha.__class__ in REAL and (beta is None or beta.__class__ in REAL):
        route = None
        try:
            short = (
                a.shape, b.shape, 1 if alpha is _UNIT else CLASSES.get(alpha, 2), None if beta is None else CLASSES.get(beta, 2),
                a is b, c is None, c is out, bias is None, out is None, trans_a, trans_b, activation, out_dtype, precision,
                deterministic, batch_invariant, variant, tile, _deterministic(), _options().token, forward_ad._current_level,
            )  # fmt: skip
            route = _find_route(short)
        except (AttributeError, RuntimeError, TypeError):
            short = None  # no tensor, sizes without a number, a keyword without a hash: the paths below tell
        while route is not None:
            factor = beta if beta is not None else 0.0 if c is None else 1.0
            result: Tensor | None = route.serve(route.plan, a, b, c, bias, out, alpha, factor)
            if result is not None:
                return result
            route = route.next
    if _is_traced() or must_be_seen(a, b, c, bias, out):
        return op.gemm_op(
            a, b, alpha, beta, c, bias, trans_a=trans_a, trans_b=trans_b, activation=activation, out=out, out_dtype=out_dtype,
            precision=precision, deterministic=deterministic, batch_invariant=batch_invariant, variant=variant, tile=tile,
        )  # fmt: skip
    call = Call(
        a, b, alpha, beta, c, trans_a, trans_b, bias, activation, out, out_dtype, precision,
        deterministic, batch_invariant, variant, tile,
    )  # fmt: skip
    return _by_whole_key(call, short)


def _by_whole_key(call: Call, short: Hashable) -> Tensor:
    """A call that no route served: by its plan where there is one, to which `short` leads from then on; else cold."""
    a, b, c, bias, out = given = (call.a, call.b, call.c, call.bias, call.out)
    if call.beta is None or call.alpha.__class__ not in REAL or call.beta.__class__ not in REAL:
        beta = call.beta if call.beta is not None else 0.0 if c is None else 1.0
        call = replace(call, alpha=number("alpha", call.alpha, a), beta=number("beta", beta, a))
    if not all(tensor is None or tensor.__class__ in PLAIN for tensor in given):
        return cold(None, call)
    if _grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given):
        if out is not None:
            return cold(None, call)
        from minblas.autograd import differentiable_gemm

        return differentiable_gemm(call)
    follows = None
    try:
        if call.precision is None and a.dtype is _FP32:
            kind = "cuda" if a.is_cuda else "mkldnn"
            follows = (kind, _fp32_precision(kind, "matmul"))
        # All that a binary, or a refusal, depends on.
        key = (
            *[None if tensor is None else key_of(tensor) for tensor in given],
            CLASSES.get(call.alpha, 2), CLASSES.get(call.beta, 2), call.trans_a, call.trans_b, call.activation, call.out_dtype,
            follows or call.precision, call.deterministic, call.batch_invariant, _deterministic(),
            call.variant, call.tile, _options().token,
        )  # fmt: skip
        plan = CACHE.get(key)
    except (RuntimeError, TypeError):
        # No address (a function transform), no strides (a sparse tensor), a keyword without a hash: the cold path tells.
        return cold(None, call)
    if plan is None:
        return cold(key, call)
    plan.calls += 1
    plan.used = True
    result: Tensor = plan.run(a, b, c, bias, out, call.alpha, call.beta)
    route = None if short is None else route_to(plan, given, follows)
    if route is not None:
        CACHE.learn(key, short, plan, route)
    return result


def plan(
    a: Tensor,
    b: Tensor,
    alpha: float = 1.0,
    beta: float | None = None,
    c: Tensor | None = None,
    **keywords: Any,
) -> LaunchPlan:
    """A reusable plan for products like this one: chosen and compiled now, computed when the plan is called.

    Args:
        a: as in `gemm`, and so are all others.
        b: likewise.
        alpha: the plan takes 0, 1, or any other number, whichever of the three this is.
        beta: likewise.
        c: given here, it must be given at every call.
        **keywords: the other keywords of `gemm`.

    Raises:
        MinblasError: the call is refused.
    """
    call = Call.of(a, b, alpha, beta, c, **keywords)
    if _grad_enabled():
        for name in ("a", "b", "c", "bias"):
            tensor = getattr(call, name)
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                needed = "operands without gradients: a plan has none"
                raise GradientError(f"{name} requires a gradient", needed, "use minblas.gemm, or torch.no_grad()")
    return make_plan(call.plain())


# gemm itself is traced, as far as the operator.
unseen_by_dynamo(
    (_by_whole_key, plan, Route.serve, DirectRoute.serve, LaunchPlan.__call__), "plans are made and called outside of graphs"
)
