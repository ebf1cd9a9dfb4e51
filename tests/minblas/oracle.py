"""What a product should be, in float64, and how far from it a result may lie: the project's bound, element by element."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

ACTIVATIONS = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "leaky_relu": functional.leaky_relu,
}


def close(result, a, b, alpha=1.0, beta=0.0, c=None, bias=None, activation=None):
    """Assert that a result is the product, within eps of its own type and the rounding of K sums."""
    wide = torch.complex128 if a.is_complex() else torch.float64

    def full(x):
        return torch.zeros((), dtype=wide) if x is None else x.detach().to(wide)

    a64, b64 = full(a), full(b)
    product = torch.matmul(a64, b64) if alpha != 0 else torch.zeros(result.shape, dtype=wide)
    terms = alpha * product + (beta * full(c) if beta != 0 else 0) + full(bias)
    expected = ACTIVATIONS[activation](terms)
    assert result.shape == expected.shape, (result.shape, expected.shape)
    if not (result.dtype.is_floating_point or result.dtype.is_complex):
        assert torch.equal(result.double(), expected.real)
        return
    magnitude = abs(alpha) * torch.matmul(a64.abs(), b64.abs()) if alpha != 0 else torch.zeros(())
    magnitude = magnitude + abs(beta) * full(c).abs() + full(bias).abs()
    sum_eps = 1.2e-7 if a.dtype not in (torch.float64, torch.complex128) else 2.3e-16
    bound = 2 * torch.finfo(result.dtype).eps * expected.abs() + 4 * math.sqrt(max(a.shape[-1], 1)) * sum_eps * magnitude
    wrong = ~((result.to(wide) - expected).abs() <= bound) & ~(torch.isnan(result.to(wide)) & torch.isnan(expected))
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements wrong, first at {wrong.nonzero()[0].tolist()}"


def dirty(*shape, dtype=torch.float32, pitch=None, offset=0, transposed=False):
    """A random matrix inside a buffer that is otherwise NaN, at an offset and with a row pitch."""
    *batch, rows, cols = shape
    lines, length = (cols, rows) if transposed else (rows, cols)
    pitch = pitch or length
    buffer = torch.full((math.prod(batch) * lines * pitch + offset + 8,), float("nan"), dtype=dtype)
    strides = [lines * pitch * math.prod(batch[i + 1 :]) for i in range(len(batch))]
    view = buffer.as_strided((*batch, rows, cols), (*strides, *((1, pitch) if transposed else (pitch, 1))), offset)
    view.copy_(torch.randn(view.shape))
    return view
