"""What the tests of accelerate share: the dispatcher's tables as text, numbers, and calls compared inside and outside."""

from __future__ import annotations

import functools
import math
import warnings

import torch

import minblas
from minblas.accelerate_kernels import OVERLOADS

KEYS = {"cpu": "CPU", "cuda": "CUDA"}


def tables():
    """All that the dispatcher knows of the ops that accelerate covers: registrations, and what is computed from them."""
    names = [f"aten::{name}" for name in OVERLOADS]
    return {name: (torch._C._dispatch_dump(name), torch._C._dispatch_dump_table(name)) for name in names}


def covered(device="cpu"):
    """The overloads whose kernel on a device is ours now."""
    found = set()
    for name in OVERLOADS:
        active = [line for line in torch._C._dispatch_dump(f"aten::{name}").splitlines() if line.startswith(f"{KEYS[device]}: ")]
        if active and "accelerate_switch.py" in active[0]:
            found.add(name)
    return found


def outcome(call):
    """What a call comes to, in words that can be compared: its tensors' make-up and values, or its error; and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's, of triton's interpreter
        try:
            made = call()
        except Exception as error:
            return type(error), str(error).split("\nException raised from")[0], [str(each.message) for each in caught]
    return made, [str(each.message).split(" (Triggered")[0] for each in caught]


def make_up(tensor):
    """All of a tensor but its values."""
    return type(tensor), tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), tensor.requires_grad, tensor.layout


def served():
    """Calls that accelerate served since the counts were reset."""
    return sum(sum(by_variant.values()) for by_variant in minblas.stats().accelerated.values())


@functools.cache
def numbers(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape))).mul(4) if shape else torch.tensor(1.5)


def t(*shape, dtype=torch.float32):
    """The same numbers for the same sizes, every time."""
    return numbers(shape).detach().clone().to(dtype)


def same(inside, outside):
    """Equal words for equal outcomes; products may round differently."""
    if not isinstance(outside[0], torch.Tensor):
        assert inside == outside
        return
    assert inside[1:] == outside[1:]  # warnings
    ours, theirs = inside[0], outside[0]
    assert make_up(ours) == make_up(theirs)
    if ours.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    if ours.dtype.is_floating_point or ours.dtype.is_complex:
        eps = torch.finfo(ours.dtype).eps
        # 16 * K roundings of products of at most about 16 * 16.
        torch.testing.assert_close(ours, theirs, rtol=8 * eps, atol=16 * 256 * eps, equal_nan=True)
    else:
        assert torch.equal(ours, theirs)
