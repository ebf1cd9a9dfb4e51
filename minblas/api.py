"""gemm: one call. A warm call is a key, a dict lookup, an allocation and a launch; everything slow is in `cold`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from kernel_zoo.spec import TileConfig
from minblas import settings
from minblas.cache import CACHE
from minblas.cold import PLAIN, Call, cold, make_plan, number
from minblas.errors import GradientError
from minblas.plan import LaunchPlan

if TYPE_CHECKING:
    from torch import Tensor

_REAL: Final[frozenset[Any]] = frozenset((float, int))
_CLASSES: Final[dict[Any, int]] = {0: 0, 1: 1}
_FP32: Final = torch.float32

_find = CACHE.get
_grad_enabled = torch.is_grad_enabled
_deterministic = torch._C._get_deterministic_algorithms
_fp32_precision = torch._C._get_fp32_precision_getter
_options = settings.current


def gemm(
    a: Tensor,
    b: Tensor,
    alpha: float | Tensor = 1.0,
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
    if alpha.__class__ not in _REAL:
        alpha = number("alpha", alpha, a)
    if beta is None:
        beta = 0.0 if c is None else 1.0
    elif beta.__class__ not in _REAL:
        beta = number("beta", beta, a)
    key = plan = None
    differentiable = False
    if (
        a.__class__ in PLAIN
        and b.__class__ in PLAIN
        and (c is None or c.__class__ in PLAIN)
        and (bias is None or bias.__class__ in PLAIN)
        and (out is None or out.__class__ in PLAIN)
    ):
        differentiable = _grad_enabled() and _requires_grad(a, b, c, bias, out)
        if not differentiable:
            follows = precision is None and a.dtype is _FP32
            try:
                key = (
                    _view(a), _view(b),
                    None if c is None else _view(c), None if bias is None else _view(bias), None if out is None else _view(out),
                    _CLASSES.get(alpha, 2), _CLASSES.get(beta, 2), trans_a, trans_b, activation, out_dtype,
                    _fp32_precision("cuda" if a.is_cuda else "mkldnn", "matmul") if follows else precision,
                    deterministic, batch_invariant, _deterministic(), variant, tile, _options().token,
                )  # fmt: skip
                plan = _find(key)
            except (RuntimeError, TypeError):
                # No address (a function transform), no strides (a sparse tensor), a keyword without a hash: the cold path tells.
                key = plan = None
    if plan is not None:
        plan.calls += 1
        plan.used = True
        result: Tensor = plan.run(a, b, c, bias, out, alpha, beta)
        return result
    call = Call(
        a, b, alpha, beta, c, trans_a, trans_b, bias, activation, out, out_dtype, precision,
        deterministic, batch_invariant, variant, tile,
    )  # fmt: skip
    if differentiable and out is None:
        from minblas.autograd import differentiable_gemm

        return differentiable_gemm(call)
    return cold(key, call)


def _view(tensor: Tensor) -> tuple[Any, ...]:
    """All that a binary, or a refusal, depends on in a tensor."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.data_ptr() & 15,
        tensor.device,
        tensor.is_neg(),
        tensor.is_conj(),
    )


def _requires_grad(a: Tensor, b: Tensor, *others: Tensor | None) -> bool:
    if a.requires_grad or b.requires_grad:
        return True
    return any(tensor is not None and tensor.requires_grad for tensor in others)


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
