"""Gradients of gemm: the backward products go through gemm too, so that they are chosen, tuned and differentiable in turn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import accumulator_dtype
from minblas import settings
from minblas.cold import Call
from minblas.operands import DTYPE_NAMES, check_plain

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "leaky_relu": functional.leaky_relu,
}


def differentiable_gemm(call: Call) -> Tensor:
    """gemm, recorded for the backward pass.

    A forced variant is forced for the forward product only: the backward ones have other shapes and layouts.
    """
    for name in ("a", "b", "c", "bias"):
        if getattr(call, name) is not None:
            check_plain(name, getattr(call, name))
    result: Tensor = _Gemm.apply(call.a, call.b, call.c, call.bias, call)  # type: ignore[no-untyped-call]
    return result


class _Gemm(torch.autograd.Function):
    """activation(alpha * op(a) @ op(b) + beta * c + bias) and its gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, call: Call) -> Tensor:
        """The product, through the ordinary path."""
        result = replace(call, a=a, b=b, c=c, bias=bias).repeat()
        ctx.call = replace(call, a=None, b=None, c=None, bias=None, variant=None, tile=None)
        ctx.options = replace(settings.current(), variant=None)
        ctx.addends = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in (c, bias)]
        ctx.activated = call.activation not in (None, "none")
        ctx.save_for_backward(a, b, c if ctx.activated else None, bias if ctx.activated else None)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of a, b, c and bias; each is computed only where it is wanted."""
        a, b, c, bias = ctx.saved_tensors
        call: Call = replace(ctx.call, a=a, b=b, c=c, bias=bias)
        wants = ctx.needs_input_grad
        with settings.under(ctx.options):
            if ctx.activated:
                grad = _through_activation(grad, call)
            left = a.mT if call.trans_a else a
            right = b.mT if call.trans_b else b
            narrow = grad.to(a.dtype)
            grad_a = grad_b = None
            if wants[0]:
                grad_a = _left_gradient(narrow, right, left.shape, call)
                grad_a = grad_a.mT if call.trans_a else grad_a
            if wants[1]:
                # (A @ B).mT = B.mT @ A.mT: the right operand's gradient is the left one's of the transposed product.
                grad_b = _left_gradient(narrow.mT, left.mT, right.mT.shape, call)
                grad_b = grad_b if call.trans_b else grad_b.mT
        scales = (_conjugate(call.beta), 1.0)
        addends = [
            (grad * scale).sum_to_size(known[0]).to(known[1]) if known is not None and wanted else None
            for known, wanted, scale in zip(ctx.addends, wants[2:4], scales, strict=True)
        ]
        return grad_a, grad_b, *addends, None


def _conjugate(value: complex) -> Any:
    return value.conjugate() if isinstance(value, complex) else value


def _through_activation(grad: Tensor, call: Call) -> Tensor:
    """The gradient before the activation, which is computed again from the operands."""
    wide = TORCH_DTYPES[accumulator_dtype(DTYPE_NAMES[call.a.dtype])]
    twice = torch.is_grad_enabled()  # the backward pass is itself being recorded
    before = replace(call, activation=None, out_dtype=wide).repeat()
    if not twice:
        before = before.detach().requires_grad_()
    with torch.enable_grad():
        after = _ACTIVATIONS[str(call.activation)](before)
    (through,) = torch.autograd.grad(after, before, grad.to(wide), create_graph=twice)
    return through


def _left_gradient(grad: Tensor, right: Tensor, shape: torch.Size, call: Call) -> Tensor:
    """alpha * grad @ right.mH, summed over what was broadcast to give the left operand's shape."""
    plain = Call(
        grad, right.mH, _conjugate(call.alpha), 0.0,
        precision=call.precision, deterministic=call.deterministic, batch_invariant=call.batch_invariant,
    )  # fmt: skip
    if len(shape) != 2 or grad.dim() == 2:
        return plain.repeat().sum_to_size(shape)
    # One matrix served the whole batch: the sum over the batch is part of the product's own sum.
    columns = right.mT.expand(*grad.shape[:-2], *right.mT.shape[-2:]).reshape(-1, right.shape[-2])
    rows = grad.mT.reshape(-1, grad.shape[-2])
    return replace(plain, a=columns.mH, b=rows).repeat().mT
