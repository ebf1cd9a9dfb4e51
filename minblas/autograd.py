"""Gradients of gemm: the products they are made of go through gemm or its op too, and are chosen, tuned and differentiable in turn.

One autograd function serves both the plain call and the op's autograd kernel; they differ in how it computes a product.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import accumulator_dtype
from minblas import settings
from minblas.cold import Call
from minblas.operands import DTYPE_NAMES, check_tensor

Multiply = Callable[[Call], Tensor]

_ATEN: Final = torch.ops.aten
_LEAK: Final = 0.01  # the slope of torch.nn.functional.leaky_relu

#: Each activation's derivative times a gradient, given what the activation was applied to. torch's own, differentiable themselves.
_DERIVATIVES: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": lambda grad, before: _ATEN.threshold_backward(grad, before, 0),
    "gelu": lambda grad, before: _ATEN.gelu_backward(grad, before),
    "gelu_tanh": lambda grad, before: _ATEN.gelu_backward(grad, before, approximate="tanh"),
    "silu": lambda grad, before: _silu_backward(grad, before),
    "leaky_relu": lambda grad, before: _ATEN.leaky_relu_backward(grad, before, _LEAK, False),
}


def _silu_backward(grad: Tensor, before: Tensor) -> Tensor:
    """torch's own kernel has no derivative, so where one may be wanted the formula is spelt out, as torch does too."""
    if not torch.is_grad_enabled() and forward_ad._current_level < 0:
        made: Tensor = _ATEN.silu_backward(grad, before)
        return made
    sigmoid = before.sigmoid()
    return grad * sigmoid * (1 + before * (1 - sigmoid))


def differentiable_gemm(call: Call) -> Tensor:
    """gemm, recorded for the backward pass.

    A forced variant is forced for the forward product only: the backward ones have other shapes and layouts.
    """
    for name in ("a", "b", "c", "bias"):
        if getattr(call, name) is not None:
            check_tensor(name, getattr(call, name))
    return record(call, Call.repeat, Call.repeat)


def record(call: Call, forward: Multiply, multiply: Multiply) -> Tensor:
    """A product of differentiable operands, out not being one of them.

    Args:
        call: the product.
        forward: computes it, and records nothing.
        multiply: computes any other product, differentiably.
    """
    # Function.apply less its rules for function transforms, which need not take apart what the dispatcher has brought to one level.
    result: Tensor = super(Function, _Gemm).apply(call.a, call.b, call.c, call.bias, call, forward, multiply)  # type: ignore[no-untyped-call]
    return result


class _Gemm(Function):
    """activation(alpha * op(a) @ op(b) + beta * c + bias), its gradients and its tangent."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, call: Call, forward: Multiply, multiply: Multiply
    ) -> Tensor:
        """The product, and what of its operands the gradients that are wanted will read."""
        result = forward(replace(call, a=a, b=b, c=c, bias=bias))
        ctx.call = replace(call, a=None, b=None, c=None, bias=None, variant=None, tile=None)
        ctx.multiply = multiply
        ctx.options = replace(settings.current(), variant=None)
        ctx.shapes = (a.shape, b.shape)
        ctx.addends = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in (c, bias)]
        ctx.activated = call.activation not in (None, "none")
        ctx.result = (result.shape, result.dtype)
        wants = ctx.needs_input_grad
        whole = (a, b, c if ctx.activated else None, bias if ctx.activated else None)
        needed = (wants[1] or ctx.activated, wants[0] or ctx.activated, True, True)
        ctx.save_for_backward(*(tensor if needs else None for tensor, needs in zip(whole, needed, strict=True)))
        ctx.save_for_forward(*whole)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of a, b, c and bias; each is computed only where it is wanted."""
        if grad is None:
            return (None,) * 7
        a, b, c, bias = ctx.saved_tensors
        call: Call = replace(ctx.call, a=a, b=b, c=c, bias=bias)
        wants = ctx.needs_input_grad
        with _under(ctx.options):
            if ctx.activated:
                grad = _DERIVATIVES[str(call.activation)](*_with_operand(ctx, grad, call))
            narrow = grad.to((a if a is not None else b).dtype) if wants[0] or wants[1] else grad
            grad_a = grad_b = None
            if wants[0]:
                grad_a = _left_gradient(ctx, narrow, b.mT if call.trans_b else b, _turned(ctx.shapes[0], call.trans_a))
                grad_a = grad_a.mT if call.trans_a else grad_a
            if wants[1]:
                # (A @ B).mT = B.mT @ A.mT: the right operand's gradient is the left one's of the transposed product.
                left = a.mT if call.trans_a else a
                grad_b = _left_gradient(ctx, narrow.mT, left.mT, _turned(ctx.shapes[1], not call.trans_b))
                grad_b = grad_b if call.trans_b else grad_b.mT
        scales = (_conjugate(call.beta), 1.0)
        addends = [
            _scaled(grad, scale).sum_to_size(known[0]).to(known[1]) if known is not None and wanted else None
            for known, wanted, scale in zip(ctx.addends, wants[2:4], scales, strict=True)
        ]
        return grad_a, grad_b, *addends, None, None, None

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor | None, b_t: Tensor | None, c_t: Tensor | None, bias_t: Tensor | None, *_: None) -> Tensor:
        """The tangent of the result, from those of a, b, c and bias; None stands for zero."""
        shape, dtype = ctx.result
        terms: list[Tensor] = []
        # torch turns forward mode off here, and a level further out would take the tangent for a constant.
        with _under(ctx.options), forward_ad._set_fwd_grad_enabled(True):
            a, b, c, bias = map(_primal, ctx.saved_tensors)
            call: Call = replace(ctx.call, a=a, b=b, c=c, bias=bias)
            wide = _accumulator(call.a)
            for left, right in ((a_t, b), (a, b_t)):
                if left is not None and right is not None:
                    plain = replace(call, a=left, b=right, beta=0.0, c=None, bias=None, activation=None, out_dtype=wide)
                    terms.append(ctx.multiply(plain))
            terms += [
                _scaled(tangent.to(wide), scale) for tangent, scale in ((c_t, call.beta), (bias_t, 1.0)) if tangent is not None
            ]
            total = sum(terms[1:], start=terms[0]).expand(shape)
            if ctx.activated:
                total = _DERIVATIVES[str(call.activation)](*_with_operand(ctx, total, call))
        made: Tensor = total.to(dtype)
        return made if made.is_contiguous() else made.contiguous()


def _under(options: settings.Options) -> AbstractContextManager[None]:
    """The options of the forward pass; where the backward pass is compiled, those in force when it runs hold."""
    return nullcontext() if torch.compiler.is_dynamo_compiling() else settings.under(options)


def _primal(tensor: Tensor | None) -> Any:
    """A saved operand without the tangent that it came with."""
    return None if tensor is None else forward_ad.unpack_dual(tensor).primal  # type: ignore[no-untyped-call]


def _scaled(grad: Tensor, scale: Any) -> Tensor:
    return grad if isinstance(scale, float | int) and scale == 1 else grad * scale


def _conjugate(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.conj()
    return value.conjugate() if isinstance(value, complex) else value


def _turned(shape: torch.Size, transposed: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


def _accumulator(tensor: Tensor) -> torch.dtype:
    return TORCH_DTYPES[accumulator_dtype(DTYPE_NAMES[tensor.dtype])]


def _with_operand(ctx: Any, grad: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """A gradient and what the activation was applied to, computed again from the operands; both as wide as the sums are."""
    wide = _accumulator(call.a)
    return grad.to(wide), ctx.multiply(replace(call, activation=None, out_dtype=wide))


def _left_gradient(ctx: Any, grad: Tensor, right: Tensor, shape: tuple[int, ...]) -> Tensor:
    """alpha * grad @ right.mH, summed over what was broadcast to give the left operand's shape."""
    call: Call = ctx.call
    plain = Call(
        grad, right.mH, _conjugate(call.alpha), 0.0,
        precision=call.precision, deterministic=call.deterministic, batch_invariant=call.batch_invariant,
    )  # fmt: skip
    if len(shape) != 2 or grad.dim() == 2:
        summed: Tensor = ctx.multiply(plain).sum_to_size(shape)
        return summed
    # One matrix served the whole batch: the sum over the batch is part of the product's own sum.
    columns = right.mT.expand(*grad.shape[:-2], *right.mT.shape[-2:]).reshape(-1, right.shape[-2])
    rows = grad.mT.reshape(-1, grad.shape[-2])
    turned: Tensor = ctx.multiply(replace(plain, a=columns.mH, b=rows))
    return turned.mT
