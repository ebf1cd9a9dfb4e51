"""The direct route of a warm call launches what its plan would, or gives way to it."""

from __future__ import annotations

import itertools
import sys
import weakref

import pytest
import torch

import minblas
from minblas import counters, dispatch, errors, launch, launch_cuda, warm
from tests.kernel_zoo.counting import PROGRAMS, WORDS, variant_of
from tests.minblas.fake_gpu import GPU, H200, STREAM, FakeBinary
from tests.minblas.oracle import close
from tests.minblas.warming import a_and_b, thrice

pytestmark = pytest.mark.usefixtures("nothing_remembered")


_NUMBERS = itertools.count()


@pytest.fixture
def direct(gpu, monkeypatch, served):
    """CPU tensors served as a GPU's are, by kernels that check and interpret their launches."""
    gpu.devices = 1

    def prepare(variant, problem, tile, arch, device, *, forced=False):
        return launch_cuda.Compiled(variant, variant.plan(problem, tile, arch), H200, GPU)

    def empty(shape, strides, dtype):
        tensor = torch.empty_strided(shape, strides, dtype=dtype)
        return known(tensor)[0]

    monkeypatch.setattr(launch, "prepare", prepare)
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", empty, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu.devices)
    gpu.served = served
    real = minblas.plan.__globals__["LaunchPlan"].run  # imports what takes `written` from there, before it is another
    monkeypatch.setattr(warm, "written", lambda given: None)

    def run(self, a, b, c, bias, out, alpha, beta):
        """The path of a plan that has no route yet; a result of its own must be memory that the fakes know."""
        gpu.runs.append(self)
        out = empty(self.shape, self.strides, self.dtype) if out is None else out
        return real(self, a, b, c, bias, out, alpha, beta)

    gpu.runs = []
    monkeypatch.setattr(minblas.plan.__globals__["LaunchPlan"], "run", run)
    return gpu


def known(*tensors):
    """Memory that the fakes may be given."""
    for tensor in tensors:
        FakeBinary.memory[tensor.data_ptr()] = (f"slot{next(_NUMBERS)}", tensor)
    return tensors


VARIANTS = [("tiled", 33, 40, 18), ("persistent", 40, 64, 33), ("tma", 48, 64, 40), ("split_k", 16, 1024, 32)]


@pytest.mark.parametrize(("variant", "m", "k", "n"), VARIANTS, ids=[case[0] for case in VARIANTS])
def test_a_direct_route_launches_the_plans_kernels(direct, variant, m, k, n):
    c, bias = known(torch.randn(m, n), torch.randn(n))
    for _ in range(4):
        a, b = known(*a_and_b(m, k, n, torch.float16))
        arguments = {"bias": bias, "activation": "relu", "variant": variant, "out_dtype": "fp32"}
        close(minblas.gemm(a, b, 1.5, -0.5, c, **arguments), a, b, 1.5, -0.5, c, bias, "relu")
    assert [type(route) for route in direct.served] == [warm.DirectRoute] * 2
    assert len(direct.runs) == 2


@pytest.mark.parametrize("workspace", [True, False])
def test_a_direct_route_gives_counters(direct, workspace):
    name = "test.tally"
    dispatch.register(variant_of(name, workspace=workspace))
    try:
        a, b = known(*a_and_b(16, 16, 16, torch.float16))
        for _ in range(4):
            assert minblas.gemm(a, b, variant=name).flatten()[0] == PROGRAMS
            assert not counters.ZEROED._kept[0, STREAM].any()
    finally:
        dispatch.unregister(name)
    assert [type(route) for route in direct.served] == [warm.DirectRoute] * 2
    assert direct.served[0].plan is None or direct.served[0].plan.counters == WORDS
    assert len(counters.ZEROED._kept) == 1


@pytest.mark.parametrize("keywords", [{}, {"alpha": 2.0}, {"alpha": 2}, {"beta": 0.5}], ids=str)
def test_a_direct_route_with_and_without_out(direct, keywords):
    c = known(torch.randn(16, 16).half())[0] if "beta" in keywords else None
    for _ in range(4):
        a, b = known(*a_and_b(16, 16, 16, torch.float16))
        scalars = keywords.get("alpha", 1.0), keywords.get("beta", 0.0)
        (out,) = known(torch.full((16, 16), float("nan")).half())
        close(minblas.gemm(a, b, c=c, **keywords, variant="tiled"), a, b, *scalars, c)
        assert minblas.gemm(a, b, c=c, **keywords, variant="tiled", out=out) is out
        close(out, a, b, *scalars, c)
    assert len(direct.served) == 4
    assert len(direct.runs) == 4


def test_a_direct_route_in_place_and_squared(direct):
    (a,) = known(torch.randn(16, 16).half())
    for _ in range(4):
        (c,) = known(torch.randn(16, 16).half())
        before = c.clone()
        assert minblas.gemm(a, a, 1.0, 1.0, c, out=c, variant="tiled") is c
        close(c, a, a, 1.0, 1.0, before)
    assert len(direct.served) == 2


def test_overlap_is_found_by_the_route(direct):
    storage = torch.randn(64, 16).half()
    a, b, out = known(storage[:16], torch.randn(16, 16).half(), storage[32:48])
    for _ in range(3):
        minblas.gemm(a, b, out=out, variant="tiled")
    assert len(direct.served) == 1
    untouched = storage.clone()
    for start in (0, 1, 15):
        with pytest.raises(errors.OverlapError, match="out shares memory with a"):
            minblas.gemm(a, b, out=storage[start : start + 16], variant="tiled")
    with pytest.raises(errors.OverlapError, match="out shares memory with b"):
        minblas.gemm(b, a, out=storage[8:24], variant="tiled")
    assert torch.equal(storage, untouched)
    close(minblas.gemm(a, b, out=known(storage[16:32])[0], variant="tiled"), a, b)


@pytest.mark.parametrize("name", ["a", "b", "c", "bias", "out"])
def test_a_direct_route_launches_nothing_on_freed_memory(direct, name):
    given = dict(zip(("a", "b"), known(*a_and_b(16, 16, 16, torch.float16)), strict=True))
    if name in ("c", "bias"):
        given |= {"c": known(torch.randn(16, 16).half())[0], "bias": known(torch.randn(16).half())[0]}
    if name == "out":
        given["out"] = known(torch.empty(16, 16).half())[0]
    thrice(lambda: minblas.gemm(**given, variant="tiled"))
    assert [type(route) for route in direct.served] == [warm.DirectRoute]
    launched = [len(binary.launches) for binary in direct.made]
    lost = given[name].clone()
    lost.untyped_storage().resize_(0)
    with pytest.raises(errors.OperandError, match=f"{name} has no memory"):
        minblas.gemm(**given | {name: lost}, variant="tiled")
    assert [len(binary.launches) for binary in direct.made] == launched


def test_hooks_and_other_devices_take_the_long_way(direct):
    import triton

    direct.devices = 2
    a, b = known(*a_and_b(16, 16, 16, torch.float16))

    def call():
        close(minblas.gemm(a, b, variant="tiled"), a, b)
        return len(direct.runs)

    assert [call(), call(), call()] == [1, 2, 2]
    told: list[object] = []
    triton.knobs.runtime.launch_enter_hook.add(told.append)
    try:
        assert call() == 3
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(told.append)
    assert len(told) == 1
    assert call() == 3
    direct.entered.clear()
    direct.current = 1
    assert call() == 4
    assert direct.entered == [0]
    direct.current = 0
    assert call() == 4
    whole = triton.knobs.runtime.launch_exit_hook
    triton.knobs.runtime.launch_exit_hook = told.append
    try:
        assert call() == 5
    finally:
        triton.knobs.runtime.launch_exit_hook = whole
    assert len(told) == 2


def test_a_plan_of_the_callers_has_a_route_too(direct):
    a, b = known(*a_and_b(16, 16, 16, torch.float16))
    plan = minblas.plan(a, b, variant="tiled")
    for _ in range(3):
        a, b, out = known(*a_and_b(16, 16, 16, torch.float16), torch.empty(16, 16).half())
        close(plan(a, b), a, b)
        assert plan(a, b, out=out) is out
        close(out, a, b)
    assert len(direct.served) == 4
    assert plan.calls == 6
    with pytest.raises(errors.PlanMismatch, match=r"a has strides \(1, 16\)"):
        plan(a.mT, b)
    with pytest.raises(errors.PlanMismatch, match="bias is given"):
        plan(a, b, bias=b[0])
    with pytest.raises(errors.GradientError):
        plan(a.clone().requires_grad_(), b)
    watched = weakref.ref(plan._prepared)
    del plan
    direct.served.clear()
    direct.runs.clear()
    assert watched() is None, "no cycle keeps a plan, and the kernels it holds, until a collection"


def test_how_much_python_a_warm_call_is(direct, monkeypatch):
    """Functions entered on the warm path, Python's and C's: a budget that does not depend on the machine."""
    a, b, out = known(*a_and_b(16, 16, 16, torch.float16), torch.empty(16, 16).half())
    calls = {
        26: lambda: minblas.gemm(a, b, variant="tiled"),
        27: lambda: minblas.gemm(a, b, variant="tiled", out=out),
    }
    for budget, call in calls.items():
        thrice(call)
        monkeypatch.setattr(FakeBinary, "idle", True)
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument, events=events: events.append(event))
        try:
            call()
        finally:
            sys.setprofile(None)
        monkeypatch.setattr(FakeBinary, "idle", False)
        assert sum(event in ("call", "c_call") for event in events) <= budget
