"""Inside accelerate(), what stands above the kernels sees what it always sees: modes, subclasses, fakes, transforms, scripts."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import minblas
from minblas import accelerate_product
from tests.minblas.accelerating import make_up, served, t
from tests.minblas.oracle import close

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def cpu():
    return minblas.accelerate(devices="cpu")


class Calls(TorchDispatchMode):
    """Notes every call that torch dispatches."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes every function of torch that is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def some_work():
    x = t(3, 4).requires_grad_()
    loss = (
        torch.nn.functional.linear(x, t(5, 4), t(5)).sum() + torch.mv(t(3, 4), t(4)).sum() + torch.bmm(t(2, 3, 4), t(2, 4, 5)).sum()
    )
    loss.backward()
    return torch.mm(t(3, 4), t(4, 5), out=torch.empty(3, 5))


@pytest.mark.parametrize("mode", [Calls, Functions])
def test_a_mode_sees_the_same_calls(mode):
    with mode() as outside:
        some_work()
    with cpu(), mode() as inside:
        some_work()
    assert inside.seen == outside.seen
    assert served() == 5
    with cpu(), mode() as inside, mode() as around:  # two at once
        some_work()
    assert inside.seen[: len(outside.seen)] == outside.seen or mode is Functions
    assert len(around.seen) >= len(outside.seen)


def test_flops_are_counted_once():
    from torch.utils.flop_counter import FlopCounterMode

    with cpu(), FlopCounterMode(display=False) as counter:
        torch.mm(t(3, 4), t(4, 5))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5
    assert served() == 1


class Loud(torch.Tensor):
    """A subclass that notes what is done with it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs)


def test_a_subclass_that_listens_hears_the_same():
    def step():
        Loud.seen.clear()
        weight = t(4, 5).as_subclass(Loud).requires_grad_()
        (torch.mm(t(3, 4), weight) * 2).sum().backward()
        return list(Loud.seen), weight.grad.as_subclass(torch.Tensor)

    outside, expected = step()
    with cpu():
        inside, grad = step()
    assert inside == outside
    torch.testing.assert_close(grad, expected)
    assert served() == 2


class Renamed(torch.Tensor):
    """A subclass that only bears another name."""


class Wrapped(torch.Tensor):
    """A subclass whose products are its own business."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


def test_subclasses():
    with cpu():
        renamed = torch.mm(t(3, 4).as_subclass(Renamed), t(4, 5))
        out = torch.empty(3, 5).as_subclass(Renamed)
        assert torch.mm(t(3, 4), t(4, 5), out=out) is out
        assert served() == 2
        wrapped = torch.mm(torch.Tensor._make_subclass(Wrapped, t(3, 4)), t(4, 5))
    assert type(renamed) is Renamed
    close(renamed.as_subclass(torch.Tensor), t(3, 4), t(4, 5))
    close(out.as_subclass(torch.Tensor), t(3, 4), t(4, 5))
    close(wrapped.as_subclass(torch.Tensor), t(3, 4), t(4, 5))
    assert served() == 2
    assert minblas.stats().left_to_torch == {"mm": {"a tensor subclass with a dispatch of its own": 1}}


def test_what_has_no_address_is_torchs():
    level = torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        wrapped = torch._C._functorch._add_batch_dim(t(2, 3, 4), 0, level)
        assert accelerate_product.product("mm", wrapped, t(4, 5), None, None, 1.0, 0.0) is None
    finally:
        torch._C._functorch._vmap_decrement_nesting()
    assert minblas.stats().left_to_torch == {"mm": {"operands without memory of their own": 1}}


def test_freed_memory_is_torchs_to_refuse():
    a, b = t(4, 5), t(5, 6)
    lost = a.clone()
    lost.untyped_storage().resize_(0)
    with minblas.accelerate("cpu"):
        for _ in range(3):
            torch.mm(a, b)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="its data is not allocated yet"):
                torch.mm(lost, b)


def test_fake_tensors_go_to_torchs_shapes():
    from torch._subclasses import FakeTensorMode

    def strides():
        real = t(2, 3, 4), t(2, 4, 5), t(5), torch.empty(3, 5)
        with FakeTensorMode() as mode:
            a, b, c, out = map(mode.from_tensor, real)
            made = [torch.bmm(a, b), torch.mm(a[0], b[0]), torch.addmm(c, a[0], b[0]), torch.baddbmm(c, a, b)]
            made += [torch.mv(a[0], b[0][:, 0]), torch.mm(a[0], b[0], out=out)]
            with pytest.raises(RuntimeError):
                torch.mm(a[0], a[0])
            return [(type(x).__name__, x.shape, x.stride(), x.dtype, x.device) for x in made]

    outside = strides()
    with cpu():
        assert strides() == outside
    stats = minblas.stats()
    assert (stats.accelerated, stats.left_to_torch) == ({}, {})


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
def test_make_fx_traces_the_same_graph(tracing):
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x, w, bias):
        return torch.nn.functional.linear(x, w, bias).relu() @ w

    args = (t(3, 4), t(5, 4), t(5))
    outside = make_fx(function, tracing_mode=tracing)(*args)
    with cpu():
        inside = make_fx(function, tracing_mode=tracing)(*args)
        assert inside.code == outside.code
        assert served() == (2 if tracing == "real" else 0)
        assert inside(*args).shape == (3, 4)
    assert served() == (4 if tracing == "real" else 2)


TRANSFORMS = {
    "vmap over a batch of both": lambda: torch.vmap(torch.mm)(t(2, 3, 4), t(2, 4, 5)),
    "vmap over the left": lambda: torch.vmap(torch.mm, (0, None))(t(2, 3, 4), t(4, 5)),
    "vmap of a sum": lambda: torch.vmap(torch.addmm, (0, None, 0))(t(2, 5), t(3, 4), t(2, 4, 5)),
    "grad": lambda: torch.func.grad(lambda x: torch.mm(x, t(4, 5)).sin().sum())(t(3, 4)),
    "grad of vmap": lambda: torch.func.grad(lambda x: torch.vmap(torch.mm)(x, t(2, 4, 5)).sum())(t(2, 3, 4)),
    "vmap of grad": lambda: torch.vmap(torch.func.grad(lambda x: torch.mm(x, t(4, 5)).sum()))(t(2, 3, 4)),
    "jvp": lambda: torch.func.jvp(lambda x: torch.mm(x, t(4, 5)), (t(3, 4),), (t(3, 4),))[1],
    "jacrev": lambda: torch.func.jacrev(lambda x: torch.mm(x, t(4, 5)))(t(3, 4)),
    "hessian": lambda: torch.func.hessian(lambda x: torch.mm(x, x.T).sum())(t(2, 3)),
    "functionalize": lambda: torch.func.functionalize(lambda x: torch.mm(x, t(4, 5)).add_(1))(t(3, 4)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms(name):
    outside = TRANSFORMS[name]()
    with cpu():
        inside = TRANSFORMS[name]()
    assert served() > 0
    assert make_up(inside) == make_up(outside)
    torch.testing.assert_close(inside, outside, rtol=1e-4, atol=1e-4)


def test_what_comes_down_to_products():
    x, w = t(2, 3, 4), t(5, 4)
    calls = {
        "linear": lambda: torch.nn.functional.linear(x, w, t(5)),
        "matmul": lambda: torch.matmul(x, w.T),
        "matmul by a vector": lambda: torch.matmul(x, t(4)),
        "einsum": lambda: torch.einsum("bij,kj->bik", x, w),
        "multi_dot": lambda: torch.linalg.multi_dot([t(3, 4), t(4, 5), t(5, 2)]),
        "tensordot": lambda: torch.tensordot(x, w, dims=([2], [1])),
        "addbmm": lambda: torch.addbmm(t(3, 5), x, w.T.expand(2, 4, 5)),
        "cdist": lambda: torch.cdist(t(30, 4), t(30, 4)),
    }
    for name, call in calls.items():
        outside = call()
        minblas.stats(reset=True)
        with cpu():
            inside = call()
        assert served() > 0, name
        torch.testing.assert_close(inside, outside, rtol=1e-4, atol=2e-3 if name == "cdist" else 1e-4)


def test_attentions_math_path():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (t(1, 2, 5, 8).div(8).requires_grad_() for _ in range(3))
    with cpu(), sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert sum(minblas.stats().accelerated["bmm"].values()) == 6


def test_a_scripted_and_a_traced_module():
    linear = torch.nn.Linear(4, 5)
    for module in (torch.jit.script(linear), torch.jit.trace(linear, t(3, 4))):
        minblas.stats(reset=True)
        with cpu(), torch.no_grad():
            close(module(t(3, 4)), t(3, 4), linear.weight.T, bias=linear.bias)
            assert served() == 1


@contextlib.contextmanager
def filled():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_that_torch_fills_first_is_written_all_over():
    with filled(), cpu():
        result = torch.mm(t(19, 21), t(21, 17))
    close(result, t(19, 21), t(21, 17))
    assert served() == 1
