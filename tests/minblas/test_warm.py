"""Warm calls: routes lead to the right plan or to none, and the direct one launches what the plan would."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import minblas
from minblas import errors, guards, launch, launch_cuda, log, warm
from minblas.cache import CACHE, MOST_ROUTES
from tests.minblas.fake_gpu import GPU, H200, FakeBinary
from tests.minblas.oracle import close, dirty

pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def served(monkeypatch):
    """The routes that served a call, in order."""
    found: list[warm.Route] = []
    for kind in (warm.Route, warm.DirectRoute):
        real = kind.serve

        def serve(self, *arguments, real=real):
            result = real(self, *arguments)
            if result is not None:
                found.append(self)
            return result

        monkeypatch.setattr(kind, "serve", serve)
    return found


def a_and_b(m=8, k=24, n=16, dtype=torch.float32):
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


def thrice(call):
    """A call made cold, by its whole key, and by a route."""
    return [call() for _ in range(3)]


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


# the direct route

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
    monkeypatch.setattr(warm, "written", lambda given: None)
    gpu.served = served
    real = minblas.plan.__globals__["LaunchPlan"].run

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
