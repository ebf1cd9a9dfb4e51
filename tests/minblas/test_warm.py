"""Warm calls: routes lead to the right plan or to none."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import minblas
from minblas import errors, guards, log
from minblas.cache import CACHE, MOST_ROUTES
from tests.minblas.oracle import close, dirty
from tests.minblas.warming import a_and_b, thrice

pytestmark = pytest.mark.usefixtures("nothing_remembered")


# recognising operands


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_the_third_call_takes_the_route(served):
    a, b = a_and_b()
    for count in (0, 0, 1, 2):
        close(minblas.gemm(a, b), a, b)
        assert len(served) == count
    other = torch.randn(8, 24), torch.randn(24, 16)
    close(minblas.gemm(*other), *other)
    assert len(served) == 3
    assert sum(minblas.stats().calls.values()) == 5
    assert minblas.stats().warm_calls == 4


def complex_pair():
    return torch.randn(8, 24, dtype=torch.complex64), torch.randn(24, 16, dtype=torch.complex64)


A, B = a_and_b()
C, BIAS = torch.randn(8, 16), torch.randn(16)
Z, W = complex_pair()
#: Calls that differ in something that matters.
CALLS = {
    "plain": lambda: minblas.gemm(A, B),
    "strides of a": lambda: minblas.gemm(A.mT.contiguous().mT, B),
    "strides of b": lambda: minblas.gemm(A, B.mT.contiguous().mT),
    "alignment of a": lambda: minblas.gemm(dirty(8, 24, offset=1).copy_(A), B),
    "alignment of b": lambda: minblas.gemm(A, dirty(24, 16, offset=1).copy_(B)),
    "other alignment of b": lambda: minblas.gemm(A, dirty(24, 16, offset=2).copy_(B)),
    "a parameter": lambda: minblas.gemm(torch.nn.Parameter(A, requires_grad=False), B),
    "negative view": lambda: minblas.gemm(torch._neg_view(-A), B),
    "fp16": lambda: minblas.gemm(A.half(), B.half()),
    "fp64": lambda: minblas.gemm(A.double(), B.double()),
    "complex": lambda: minblas.gemm(Z, W),
    "conjugate": lambda: minblas.gemm(Z.conj(), W),
    "integers": lambda: minblas.gemm(A.mul(3).to(torch.int8), B.mul(3).to(torch.int8)),
    "zero alpha": lambda: minblas.gemm(A, B, 0.0),
    "alpha": lambda: minblas.gemm(A, B, 2.0),
    "c": lambda: minblas.gemm(A, B, 1.0, None, C),
    "c and beta": lambda: minblas.gemm(A, B, 1.0, 0.5, C),
    "c unread": lambda: minblas.gemm(A, B, 1.0, 0.0, C),
    "one row of c": lambda: minblas.gemm(A, B, 1.0, 1.0, C[:1]),
    "bias": lambda: minblas.gemm(A, B, bias=BIAS),
    "relu": lambda: minblas.gemm(A, B, activation="relu"),
    "out": lambda: minblas.gemm(A, B, out=torch.empty(8, 16)),
    "out by columns": lambda: minblas.gemm(A, B, out=torch.empty(16, 8).mT),
    "out unaligned": lambda: minblas.gemm(A, B, out=dirty(8, 16, offset=3)),
    "wide result": lambda: minblas.gemm(A.half(), B.half(), out_dtype="fp32"),
    "in place": lambda: in_place(C.clone()),
    "c beside out": lambda: minblas.gemm(A, B, 1.0, 1.0, C, out=torch.empty(8, 16)),
    "tiled": lambda: minblas.gemm(A, B, variant="tiled"),
    "deterministic": lambda: minblas.gemm(A, B, deterministic=True),
}
#: Those that come to another's plan: by a route of their own, or because a view is computed first.
SHARED = {"a parameter": "plain", "negative view": "plain", "conjugate": "complex", "in place": "c beside out"}


def in_place(c):
    assert minblas.gemm(A, B, 1.0, 1.0, c, out=c) is c
    return c


def test_no_two_descriptions_share_a_route(served):
    """Every call made warm, then all of them again in two orders: each gives its own result, by its own plan."""
    expected = {name: call().clone() for name, call in CALLS.items()}
    for name, call in CALLS.items():
        for result in thrice(call):
            assert torch.equal(result, expected[name]), name
    plans = {}
    for names in (list(CALLS), list(reversed(CALLS))):
        for name in names:
            served.clear()
            result = CALLS[name]()
            assert torch.equal(result, expected[name]), name
            assert result.dtype == expected[name].dtype
            assert result.stride() == expected[name].stride()
            if served:
                plans.setdefault(name, set()).add(id(served[-1].plan))
    assert all(len(found) == 1 for found in plans.values())
    assert set(plans) == set(CALLS)
    for name, other in SHARED.items():
        assert plans.pop(name) == plans[other]
    assert len(set().union(*plans.values())) == len(plans)


def test_a_matrix_squared_has_a_route_of_its_own(served):
    square, other = torch.randn(12, 12), torch.randn(12, 12)
    for result in thrice(lambda: minblas.gemm(square, square)):
        close(result, square, square)
    for result in thrice(lambda: minblas.gemm(square, other)):
        close(result, square, other)
    close(minblas.gemm(square, square), square, square)
    assert len(served) == 4, "the plan is one and the same; only the first product had to make it"


def test_tensors_under_a_mode_or_transform_are_not_taken_for_plain_ones(served):
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    (route,) = served
    seen = []

    def look(*_):
        seen.append(route._check(a, b, guards.marked_view()))
        return torch.ones(())

    look()
    with Counting():
        look()
    with torch.autocast("cpu", torch.bfloat16):
        look()
    with torch.inference_mode():
        look()
    torch.func.grad(lambda x: look() * x)(torch.ones(()))
    torch.vmap(lambda x: look() * x)(torch.ones(2))
    torch.func.jvp(lambda x: look() * x, (torch.ones(()),), (torch.ones(()),))
    torch.func.functionalize(lambda x: look() * x)(torch.ones(()))
    torch.jit.trace(lambda x: look() * x, (torch.ones(()),), check_trace=False)
    with FakeTensorMode() as mode:
        fakes = mode.from_tensor(a), mode.from_tensor(b)
        seen.append(route._check(*fakes, guards.marked_view()))
    assert seen == [True, *[False] * 9]


class Inside(TorchDispatchMode):
    """Calls gemm from its handler, where torch hides the keys of views, and of much else, from itself."""

    def __init__(self, call):
        super().__init__()
        self.call, self.result = call, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.result = self.call()
        return func(*args, **(kwargs or {}))


def test_views_are_told_apart_where_their_keys_are_hidden(served):
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    negative = torch._neg_view(a)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)
    blind = guards.guards_of([a, b])
    with torch._C._ExcludeDispatchKeyGuard(keys):
        assert blind(negative, b), "torch's check alone is taken in"
        assert not served[0]._check(negative, b, guards.marked_view())
        for result in thrice(lambda: minblas.gemm(negative, b)):
            close(result, -a, b)
    assert len(served) == 1, "nothing is recognised there, and nothing learned"


def test_inside_a_modes_handler_plans_are_found_by_their_whole_key(served):
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    with Inside(lambda: thrice(lambda: minblas.gemm(a, b))) as mode:
        torch.ones(())
    for result in mode.result:
        close(result, a, b)
    assert len(served) == 1
    assert guards.guards_work()


def test_what_recognises_is_made_outside_every_mode(monkeypatch):
    guards.guards_work.cache_clear()
    guards.marked_view.cache_clear()
    with FakeTensorMode(), torch.inference_mode():
        view = guards.marked_view()
        assert guards.guards_work()
    assert type(view) is torch.Tensor
    assert view.is_conj()
    assert view.is_neg()
    assert not view.is_inference()


def test_inference_mode_has_routes_of_its_own(served):
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    served.clear()
    with torch.inference_mode():
        for result in thrice(lambda: minblas.gemm(a, b)):
            assert result.is_inference()
            close(result, a, b)
    assert len(served) == 2, "the plan is known already; the route is new"
    assert not minblas.gemm(a, b).is_inference()


def test_a_level_of_forward_differentiation_is_part_of_the_key(served):
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    served.clear()
    with forward_ad.dual_level():
        minblas.gemm(a, b)
    assert served == []


def test_gradients_decide_anew_at_every_call(served):
    a, b = a_and_b()
    a.requires_grad_()
    with torch.no_grad():
        thrice(lambda: minblas.gemm(a, b))
    assert len(served) == 1
    result = minblas.gemm(a, b)
    result.sum().backward()
    assert torch.allclose(a.grad, torch.ones(8, 16) @ b.mT, atol=1e-5)
    with torch.no_grad():
        assert not minblas.gemm(a, b).requires_grad


def test_torchs_settings_decide_anew_at_every_call(served):
    a, b = a_and_b()
    torch.set_float32_matmul_precision("highest")
    thrice(lambda: minblas.gemm(a, b))
    first = served[-1].plan
    try:
        torch.set_float32_matmul_precision("high")
        thrice(lambda: minblas.gemm(a, b))
        assert served[-1].plan is not first
        assert served[-1].plan.problem.precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")
    minblas.gemm(a, b)
    assert served[-1].plan is first
    count = len(served)
    with minblas.options(exclude="tma"):
        minblas.gemm(a, b)
    torch.use_deterministic_algorithms(True)
    try:
        minblas.gemm(a, b)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(served) == count


def test_a_setting_of_torchs_is_no_precision_to_ask_for():
    """What torch is set to stands in the key beside what a caller asked for: "none" is a setting's value and no precision."""
    a, b = a_and_b()
    setting = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    thrice(lambda: minblas.gemm(a, b))
    with pytest.raises(errors.MinblasError, match="precision"):
        minblas.gemm(a, b, precision="none" if setting == "none" else "bf16")


def test_an_out_of_inference_mode_is_written_in_it_only(served):
    """As torch has it: such a tensor has no version by which autograd would see that it was written."""
    a, b = a_and_b()
    with torch.inference_mode():
        out = torch.zeros(8, 16)
        for variant in ("tiled", "aten"):
            thrice(lambda variant=variant: minblas.gemm(a, b, out=out, variant=variant))
            close(out, a, b)
    count = len(served)
    before = out.clone()
    for variant in ("tiled", "aten"):
        thrice(lambda variant=variant: minblas.gemm(a, b, out=torch.empty(8, 16), variant=variant))
        with pytest.raises(errors.OutError, match="out was made in inference mode"):
            minblas.gemm(a * 2, b, out=out, variant=variant)
        with pytest.raises(errors.OutError, match="out was made in inference mode"):
            minblas.plan(a, b, variant=variant)(a, b, out=out)
    assert torch.equal(out, before)
    assert len(served) == count + 4
    assert not minblas.stats().quarantined


def freed(*shape):
    tensor = torch.randn(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def test_freed_memory_is_refused_by_every_path(served):
    """As torch refuses it: a kernel would read address 0, which looks aligned."""
    a, b = a_and_b()
    c, bias = torch.randn(8, 16), torch.randn(16)
    plan = minblas.plan(a, b)
    for call in (
        lambda **other: minblas.gemm(**{"a": a, "b": b} | other),
        lambda **other: minblas.gemm(**{"a": a, "b": b, "c": c, "bias": bias, "out": torch.empty(8, 16)} | other),
        lambda **other: plan(**{"a": a, "b": b} | other),
    ):
        thrice(call)
        assert served
        for name, shape in (("a", (8, 24)), ("b", (24, 16))):
            with pytest.raises(errors.OperandError, match=f"{name} has no memory: its storage was freed"):
                call(**{name: freed(*shape)})
    for name, shape in (("c", (8, 16)), ("bias", (16,)), ("out", (8, 16))):
        given = {"c": c, "bias": bias, "out": torch.empty(8, 16), name: freed(*shape)}
        with pytest.raises(errors.OperandError, match=f"{name} has no memory"):
            minblas.gemm(a, b, **given)


def test_empty_operands_have_no_memory_and_keep_their_routes(served):
    a, b = torch.empty(8, 0), torch.empty(0, 16)
    for result in thrice(lambda: minblas.gemm(a, b)):
        assert torch.equal(result, torch.zeros(8, 16))
    assert len(served) == 1


def test_zeros_without_memory_are_zeros(monkeypatch):
    """torch's own stand-ins for tangents and gradients that are zero: kernels are given zeros that lie somewhere."""
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    seen = []
    real = minblas.plan.__globals__["LaunchPlan"].run
    run = lambda self, *given: seen.append(given[0].data_ptr()) or real(self, *given)  # noqa: E731
    monkeypatch.setattr(minblas.plan.__globals__["LaunchPlan"], "run", run)
    for _ in range(3):
        assert torch.equal(minblas.gemm(torch._efficientzerotensor((8, 24)), b), torch.zeros(8, 16))
    assert len(seen) == 3
    assert all(seen)


def test_a_dropped_plan_takes_its_routes_along(served):
    a, b = a_and_b()
    thrice(lambda: minblas.gemm(a, b))
    watched = weakref.ref(served[-1].plan._prepared)
    CACHE.clear()
    served.clear()
    assert watched() is None
    for result in thrice(lambda: minblas.gemm(a, b)):
        close(result, a, b)
    assert len(served) == 1


def test_routes_of_one_short_key_are_bounded(served):
    b = torch.randn(24, 16)
    storage = torch.randn(8, 24 * 64)
    for step in range(1, 3 * MOST_ROUTES):
        a = storage[:, : 24 * step : step]
        for result in thrice(lambda a=a: minblas.gemm(a, b, variant="aten")):
            assert torch.allclose(result, a @ b, atol=1e-4)
    (chain,) = CACHE._routes.values()
    length = 0
    while chain is not None:
        chain, length = chain.next, length + 1
    assert length == MOST_ROUTES


def test_threads_share_routes():
    pairs = [a_and_b(m) for m in (3, 5, 8)]
    wrong: list[object] = []

    def work():
        try:
            for _ in range(60):
                wrong.extend("wrong" for a, b in pairs if not torch.allclose(minblas.gemm(a, b, variant="aten"), a @ b, atol=1e-4))
        except Exception as error:  # a thread's failure must reach the test
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        CACHE.clear()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_torch_whose_guards_confuse_tensors_is_not_trusted(monkeypatch, served, caplog):
    monkeypatch.setattr(guards, "guards_of", lambda tensors: lambda *given: True)
    monkeypatch.setattr(log, "_SAID", set())
    guards.guards_work.cache_clear()
    try:
        with caplog.at_level("WARNING", logger="minblas"):
            a, b = a_and_b()
            for result in thrice(lambda: minblas.gemm(a, b)):
                close(result, a, b)
        assert served == []
        (said,) = [record.getMessage() for record in caplog.records if "guards confuse" in record.getMessage()]
        for name in ("sizes", "strides", "dtypes", "devices", "gradients", "conjugate views", "dispatch modes", "autocast"):
            assert name in said
    finally:
        guards.guards_work.cache_clear()


def test_this_torchs_guards_tell_everything_apart():
    assert guards._confused() == []


def test_autograd_learns_that_out_was_written():
    a, b = a_and_b()
    out = torch.empty(8, 16)
    plan = minblas.plan(a, b, out=out)
    for call in (*[lambda: minblas.gemm(a, b, out=out)] * 3, *[lambda: plan(a, b, out=out)] * 3):
        version = out._version
        call()
        assert out._version > version
    x = torch.randn(8, 16, requires_grad=True)
    saved = x * 1.0
    loss = (saved * saved).sum()
    with torch.no_grad():
        minblas.gemm(a, b, out=saved.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
