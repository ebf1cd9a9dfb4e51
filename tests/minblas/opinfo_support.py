"""PyTorch's own samples inside accelerate(): each product judged by the library's oracle, each result and gradient by float64.

Used on a CPU, through the interpreter, and on a GPU.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import minblas
from kernel_zoo.reference import verify
from minblas import launch
from minblas.inside import INSIDE

#: Ops of torch's list whose products are accelerate's business.
NAMES = (
    "mm", "addmm", "addmv", "mv", "bmm", "baddbmm", "matmul", "nn.functional.linear", "einsum", "linalg.multi_dot", "tensordot",
    "nn.functional.scaled_dot_product_attention",
)  # fmt: skip
ATTENTION = NAMES[-1]
WITH_OUT = ("mm", "addmm", "addmv", "mv", "bmm", "baddbmm", "matmul", "linalg.multi_dot")
#: Why a call of these samples may rightly be torch's own.
FAIR = {"nothing to compute, or nothing to sum"}


def op_infos(names):
    """Torch's descriptions of ops, by name, each without its variants. What importing them warns of is torch's own business."""
    pytest.importorskip("expecttest")  # torch.testing._internal imports it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {info.name: info for info in op_db if info.name in names and not info.variant_test_name}


def samples(info, device, dtype, layout):
    """The samples of an op: "contiguous", "strided", or "turns": half of them if they are many, each second one strided.

    Left out are those that draw numbers. Of attention, whose samples are the largest by far, each kind of mask comes once,
    scaled so that its softmax does not saturate.
    """
    found = [each for each in info.sample_inputs(device, dtype, requires_grad=True) if not each.kwargs.get("dropout_p")]
    if info.name == ATTENTION:
        kinds = {(each.kwargs.get("is_causal"), "attn_mask" in each.kwargs): each for each in reversed(found)}
        found = [converted(each, lambda x: x / 8) for each in kinds.values()]
    elif layout == "turns" and len(found) > 3:
        found = found[dtype == torch.bfloat16 :: 2]
    for i, sample in enumerate(found):
        yield sample.noncontiguous() if layout == "strided" or (layout == "turns" and i % 2) else sample


class Judged(launch.Prepared):
    """A launch that is judged by the library's oracle after every call."""

    def __init__(self, prepared, problem, verdicts):
        self.variant, self.reason = prepared.variant, prepared.reason
        self.workspace_bytes, self.compile_seconds = prepared.workspace_bytes, prepared.compile_seconds
        self._prepared, self._problem, self._verdicts = prepared, problem, verdicts

    @property
    def spills(self):
        return self._prepared.spills

    def __call__(self, slots, alpha, beta):
        before = dict(slots)
        if "C" in slots and slots["C"].untyped_storage().data_ptr() == slots["OUT"].untyped_storage().data_ptr():
            before["C"] = _copy_of_memory(slots["C"])
        self._prepared(slots, alpha, beta)
        if self.variant == "aten":
            return
        with INSIDE, torch.no_grad(), contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast(slots["OUT"].device.type, enabled=False))
            self._verdicts.append((self._problem, verify(self._problem, {**before, "OUT": slots["OUT"]}, alpha, beta)))


def _copy_of_memory(tensor):
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0).clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def judge(monkeypatch):
    """Have every product judged from here on; the list grows with (problem, verdict)."""
    verdicts = []
    prepare = launch.prepare

    def judged(variant, problem, tile, arch, device, *, forced=False):
        return Judged(prepare(variant, problem, tile, arch, device, forced=forced), problem, verdicts)

    monkeypatch.setattr(launch, "prepare", judged)
    return verdicts


@dataclass
class Results:
    """What an op gave, and the gradients of the tensors that it was given."""

    output: torch.Tensor
    gradients: list = field(default_factory=list)

    def all(self):
        return [self.output, *self.gradients]


def run(info, sample, weights=None):
    """The op and its backward pass, for the sum of the result times `weights`."""
    with sdpa_kernel(SDPBackend.MATH) if info.name == ATTENTION else contextlib.nullcontext():
        output = info.op(sample.input, *sample.args, **sample.kwargs)
        if weights is None:
            return Results(output)
        leaves = [x for x in tensors(sample) if x.requires_grad]
        found = torch.autograd.grad(output, leaves, weights.to(output.dtype), allow_unused=True)
    return Results(output, [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in zip(found, leaves, strict=True)])


def tensors(sample):
    flat = [sample.input] if isinstance(sample.input, torch.Tensor) else list(sample.input)
    for x in [*sample.args, *sample.kwargs.values()]:
        flat += [each for each in (x if isinstance(x, (list, tuple)) else [x]) if isinstance(each, torch.Tensor)]
    return [x for x in flat if isinstance(x, torch.Tensor)]


def described(info, sample):
    """An op and a sample without its numbers."""
    shapes = ", ".join(f"{tuple(x.shape)} {x.stride()}" for x in tensors(sample))
    return f"{info.name}({shapes}; {[x for x in sample.args if isinstance(x, str)]} {sorted(sample.kwargs)})"


def converted(sample, function):
    """The sample with floating-point tensors replaced, their wish for a gradient kept, and numbers made positive if tensors are."""

    def convert(x):
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            return function(x.detach()).requires_grad_(x.requires_grad)
        return x

    return sample.transform(convert)


def positive(sample):
    made = converted(sample, lambda x: x.double().abs())
    made.kwargs = {
        name: abs(x) if isinstance(x, (int, float)) and not isinstance(x, bool) else x for name, x in made.kwargs.items()
    }
    return made


def check(info, sample, device, verdicts):
    """One sample, inside and outside. Returns the products that were ours."""
    torch.manual_seed(len(tensors(sample)))
    shape = run(info, converted(sample, torch.Tensor.double)).output.shape
    weights = torch.randn(shape, device=device, dtype=torch.float64).to(tensors(sample)[0].dtype)
    exact = run(info, converted(sample, torch.Tensor.double), weights)
    theirs = run(info, sample, weights)
    before = len(verdicts)
    with minblas.accelerate(devices=device):
        ours = run(info, sample, weights)
    mine = verdicts[before:]
    for problem, verdict in mine:
        assert verdict.ok, f"{described(info, sample)}: {problem.describe()}: {verdict.message}"
    if info.name == ATTENTION:
        _close_as_a_whole(ours, theirs, exact, len(mine), str(sample.kwargs))
    else:
        largest = run(info, positive(sample), weights.double().abs())
        _close_by_element(ours, theirs, exact, largest, mine, described(info, sample))
    return len(mine)


def check_out(info, sample, device, verdicts):
    """One sample inside, into out=, on top of NaN. Returns the products that were ours."""
    with torch.no_grad():
        exact, theirs = run(info, converted(sample, torch.Tensor.double)), run(info, sample)
        out = torch.full_like(theirs.output, math.nan)
        before = len(verdicts)
        with minblas.accelerate(devices=device):
            assert info.op(sample.input, *sample.args, **sample.kwargs, out=out) is out
        mine = verdicts[before:]
        assert all(verdict.ok for _, verdict in mine), described(info, sample)
        _close_by_element(Results(out), theirs, exact, run(info, positive(sample)), mine, described(info, sample))
    return len(mine)


def _close_by_element(ours, theirs, exact, largest, mine, what):
    """As kernel_zoo.reference bounds a product; here each result may be rounded before the next product, or a sum, reads it."""
    depth = max((problem.k for problem, _ in mine), default=1)
    for own, other, right, most in zip(ours.all(), theirs.all(), exact.all(), largest.all(), strict=True):
        assert own.dtype == other.dtype, what
        assert own.shape == other.shape, what
        info = torch.finfo(own.dtype)
        unit = torch.finfo(torch.float32).eps / 2
        spread = (2 * math.sqrt(depth + 6) * unit + len(mine) * info.eps) * most.abs()
        allowed = 2 * (other.double() - right).abs() + info.eps * right.abs().clamp(min=info.tiny) + spread
        error = (own.double() - right).abs()
        assert bool((error <= allowed).all()), f"{what}: worst error {float((error / allowed).max()):.3g} of the bound"


def _close_as_a_whole(ours, theirs, exact, products, what):
    """Softmax is no sum of products: the whole error is held against torch's own, and a rounding of every product."""
    for own, other, right in zip(ours.all(), theirs.all(), exact.all(), strict=True):
        assert own.dtype == other.dtype, what
        assert own.shape == other.shape, what
        with torch.no_grad():
            allowed = 2 * (other.double() - right).norm() + products * torch.finfo(own.dtype).eps * right.norm()
            assert float((own.double() - right).norm()) <= float(allowed), what
