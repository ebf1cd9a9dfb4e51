"""Calls over the life of a process: captures, streams, devices, threads, forks, hooks, and what is let go while it is in use."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import triton

import minblas
from minblas import errors, guards, launch_check, warm
from minblas.cache import CACHE
from minblas.launch_adapters import adapters
from tests.gpu.support import DEVICE, served, sizes_for
from tests.processes import environment

VARIANTS = served()
#: Some of all kinds: with a workspace, with counters, with barriers of their own, with more launches than one.
SEVERAL = [name for name in VARIANTS if name not in ("tiled", "persistent", "ping_pong")]
each_variant = pytest.mark.parametrize("variant", VARIANTS)
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
_LATE = 50_000_000  # clocks that a slow producer sleeps: some 25 ms


@pytest.fixture(autouse=True)
def _nothing_remembered():
    CACHE.clear()
    minblas.stats(reset=True)


def randn(*shape, device=DEVICE, dtype=torch.bfloat16):
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def pair(variant, seed=0, device=DEVICE):
    torch.manual_seed(seed)
    m, n, k = sizes_for(variant)
    return randn(m, k, device=device), randn(n, k, device=device).T


def warmed(variant, a, b, **keywords):
    """The result of a call that has been cold, warm by its key, and warm by a route."""
    for _ in range(3):
        result = minblas.gemm(a, b, variant=variant, **keywords)
    return result


def right(result, a, b):
    """Within two roundings of the float64 product and what fp32 sums lose."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    bound = torch.finfo(result.dtype).eps * exact.abs() + 2 * math.sqrt(a.shape[-1]) * 2**-24 * magnitude
    return bool(((result.double() - exact).abs() <= bound).all())


def routes():
    found = []
    for route in list(CACHE._routes.values()):
        while route is not None:
            found.append(route)
            route = route.next
    return found


def in_a_process(code, **variables):
    """Run code where nothing of ours has run yet."""
    head = "import torch, minblas\nfrom minblas import errors\n"
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# the warm path itself


@pytest.mark.parametrize("described", [False, True])
def test_the_fastest_adapter_passed_its_check(described):
    from minblas.device import arch_of

    assert launch_check.adapter_for(described, arch_of(DEVICE), DEVICE) is adapters(triton.__version__)[0]


@each_variant
def test_warm_calls_take_the_direct_route_and_give_the_plans_bits(variant):
    a, b = pair(variant)
    out = torch.empty(a.shape[0], b.shape[1], device=DEVICE, dtype=torch.bfloat16)
    cold = minblas.gemm(a, b, variant=variant)
    results = [cold, *(minblas.gemm(a, b, variant=variant) for _ in range(4))]
    results += [minblas.gemm(a, b, variant=variant, out=out).clone() for _ in range(4)]
    assert [type(route) for route in routes()] == [warm.DirectRoute] * 2
    assert right(cold, a, b)
    assert all(torch.equal(result, cold) for result in results)


def test_guards_tell_what_only_a_gpu_has_apart():
    a = randn(16, 16)
    check = guards.guards_of([a])
    assert check(randn(16, 16))
    assert not check(a.cpu())
    with torch.autocast("cuda", torch.float16):
        assert not check(a)
    if torch.cuda.device_count() > 1:
        assert not check(a.to("cuda:1"))


@pytest.mark.parametrize("variant", ["tma", "tiled"])
def test_another_tensor_at_an_address_that_was_seen_before(variant):
    """Tensor maps are kept by address: those of a freed tensor must not serve the next one there."""
    for sizes in ((256, 512, 128), (128, 1024, 128), (512, 256, 64), (256, 512, 128)):
        m, k, n = sizes
        for layout in ("n", "t"):
            a = randn(m, k) if layout == "n" else randn(k, m).T
            b = randn(k, n)
            for _ in range(3):
                assert right(minblas.gemm(a, b, variant=variant), a, b)
            del a, b


# captures


@each_variant
def test_a_call_is_captured_after_warmup_alone(variant):
    m, n, k = sizes_for(variant)
    a, b = randn(m, k), randn(k, n)
    with minblas.options(variant=variant):
        report = minblas.warmup([(m, n, k)], dtype="bf16", layout="nn", device=DEVICE)
        assert not report.failures
        compiled = minblas.stats().compiled
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = minblas.gemm(a, b)
    for seed in range(2):
        torch.manual_seed(seed)
        a.copy_(randn(m, k))
        graph.replay()
        assert right(captured, a, b)
    assert minblas.stats().compiled == compiled


FIRST_CALLS = {
    "gemm": "minblas.gemm(a, b)",
    "gemm, out=": "minblas.gemm(a, b, out=out)",
    "mm": "minblas.mm(a, b)",
    "addmm": "minblas.addmm(c, a, b)",
    "linear": "minblas.linear(a, b.T, c[0])",
    "bmm": "minblas.bmm(a[None], b[None])",
    "plan": "minblas.plan(a, b)",
    "the op": "torch.ops.minblas.gemm(a, b)",
}


@pytest.mark.parametrize("call", list(FIRST_CALLS.values()), ids=list(FIRST_CALLS))
def test_a_capture_as_the_very_first_call_is_refused_and_goes_on(call):
    """The error names warmup, and comes before anything touches the stream: the capture is whole without the call."""
    in_a_process(f"""
import minblas.op
a, b = (torch.randn(80, 80, device="cuda").half() for _ in "ab")
c = out = torch.zeros(80, 80, device="cuda").half()
count = torch.zeros(1, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
refused = None
with torch.cuda.graph(graph):
    count.add_(1)
    try:
        with minblas.options(variant="tiled"):
            {call}
    except errors.ColdCallError as error:
        refused = str(error)
    count.add_(1)
assert refused and "minblas.warmup" in refused and "captured" in refused, refused
assert not out.any()
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
assert count.item() == 6, count
with minblas.options(variant="tiled"):
    {call}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        {call}
graph.replay()
torch.cuda.synchronize()
""")


@pytest.mark.parametrize("variant", SEVERAL)
def test_two_graphs_that_share_a_pool_and_eager_calls_between(variant):
    """Workspaces are the graph's own: neither the other graph, nor eager calls, nor what is allocated between, disturb them."""
    first, second, third = (pair(variant, seed) for seed in range(3))
    expected = [warmed(variant, *given) for given in (first, second, third)]
    torch.cuda.synchronize()
    pool = torch.cuda.graph_pool_handle()
    graphs, captured = [], []
    for given in (first, second):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            captured.append(minblas.gemm(*given, variant=variant))
        graphs.append(graph)
    canary = torch.full((1 << 20,), 7.0, device=DEVICE)
    for order in ((0, 1), (1, 0), (0, 0)):
        for index in order:
            eager = minblas.gemm(*third, variant=variant)
            graphs[index].replay()
            again = minblas.gemm(*third, variant=variant)
            assert torch.equal(captured[index], expected[index])
            assert torch.equal(eager, expected[2])
            assert torch.equal(again, expected[2])
    assert bool((canary == 7.0).all())


def test_a_routes_first_use_may_be_in_a_capture():
    """The second call of a description, which makes its route, and the third, which takes it, both captured."""
    a, b = pair("tiled")
    expected = minblas.gemm(a, b, variant="tiled")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [minblas.gemm(a, b, variant="tiled") for _ in range(3)]
    graph.replay()
    assert all(torch.equal(result, expected) for result in captured)
    assert minblas.stats().warm_calls == 3


# streams


@each_variant
def test_a_warm_call_waits_for_a_slow_producer_on_its_own_stream(variant):
    a, b = pair(variant)
    warmed(variant, a, b)
    fresh = pair(variant, seed=5)[0]
    late = torch.full_like(a, float("nan"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_LATE)
        late.copy_(fresh)
        result = minblas.gemm(late, b, variant=variant)
        consumed = result.clone()
    stream.synchronize()
    assert right(consumed, fresh, b)


def test_streams_do_not_share_a_workspace():
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [pair("split_k", seed) for seed in range(4)]
    expected = [warmed("split_k", *given) for given in inputs]
    torch.cuda.synchronize()
    results = []
    for _ in range(10):
        for stream, given in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(minblas.gemm(*given, variant="split_k"))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected[i % 4]) for i, result in enumerate(results))


# devices


@two_devices
@each_variant
def test_a_call_runs_where_its_operands_are(variant):
    torch.cuda.set_device(0)
    for device in (torch.device("cuda", 1), DEVICE, torch.device("cuda", 1)):
        a, b = pair(variant, device=device)
        result = warmed(variant, a, b)
        assert result.device == device
        assert right(result, a, b)
        out = torch.empty_like(result)
        assert torch.equal(warmed(variant, a, b, out=out), result)
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert right(warmed(variant, a, b), a, b)
        assert torch.cuda.current_device() == 1


@two_devices
def test_operands_of_two_devices_are_refused():
    a, b = pair("tiled")
    warmed("tiled", a, b)
    with pytest.raises(errors.DeviceError, match="cuda:1"):
        minblas.gemm(a, b.to("cuda:1"), variant="tiled")
    assert torch.cuda.current_device() == 0


# threads and processes


def test_threads_call_at_once_from_cold():
    """Each thread on a stream of its own, over the same shapes; one of them drops all plans now and then."""
    given = {(variant, seed): pair(variant, seed) for variant in ("tiled", *SEVERAL) for seed in range(2)}
    expected = {key: minblas.gemm(*operands, variant=key[0]) for key, operands in given.items()}
    torch.cuda.synchronize()
    CACHE.clear()
    start, wrong = threading.Barrier(8), []

    def work(number):
        try:
            start.wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(40):
                    if number == 0 and turn % 10 == 9:
                        CACHE.clear()
                    for key, operands in given.items():
                        result = minblas.gemm(*operands, variant=key[0])
                        if not torch.equal(result, expected[key]):
                            wrong.append(key)
        except Exception as error:  # a thread's failure must reach the test
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_that_has_no_context_yet():
    a, b = pair("tma")
    expected = warmed("tma", a, b)
    torch.cuda.synchronize()
    results = []
    thread = threading.Thread(target=lambda: results.append(minblas.gemm(a, b, variant="tma")))
    thread.start()
    thread.join()
    assert torch.equal(results[0], expected)


def test_fork_after_import():
    """Importing everything, choosing and planning tables leave CUDA alone: a forked child may use it, and so may the parent."""
    in_a_process("""
import os
import minblas.api, minblas.torch_names, minblas.launch_cuda, minblas.warm, minblas.op, minblas.accelerate
minblas.explain(256, 256, 256, dtype="bf16", arch="h200")
assert not torch.cuda.is_initialized()

def works():
    a, b = (torch.randn(64, 64, device="cuda").half() for _ in "ab")
    results = [minblas.gemm(a, b) for _ in range(3)]
    return all(torch.allclose(result.float(), a.float() @ b.float(), atol=0.1) for result in results)

child = os.fork()
if child == 0:
    os._exit(0 if works() else 1)
assert os.waitpid(child, 0)[1] == 0
assert works()
""")


# what is let go while it is in use


@each_variant
def test_plans_dropped_while_their_launches_wait(variant):
    """The launches are queued behind a slow kernel; plan, route, tensor maps, operands and workspace go before they run."""
    a, b = pair(variant)
    expected = warmed(variant, a, b).clone()
    plan = minblas.plan(a, b, variant=variant)
    torch.cuda.synchronize()
    torch.cuda._sleep(_LATE)
    results = [minblas.gemm(a, b, variant=variant), plan(a, b), minblas.gemm(a.clone(), b.clone(), variant=variant)]
    del plan, a, b
    CACHE.clear()
    gc.collect()
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)


# hooks


def test_hooks_set_between_warm_calls_see_them_and_only_them():
    a, b = pair("split_k")
    expected = warmed("split_k", a, b)
    seen = []

    def enter(metadata):
        seen.append(("enter", metadata.get()["name"]))

    def leave(metadata):
        seen.append(("leave", metadata.get()["name"]))

    runtime = triton.knobs.runtime
    runtime.launch_enter_hook.add(enter)
    runtime.launch_exit_hook.add(leave)
    try:
        hooked = minblas.gemm(a, b, variant="split_k")
    finally:
        runtime.launch_enter_hook.remove(enter)
        runtime.launch_exit_hook.remove(leave)
    assert torch.equal(hooked, expected)
    assert [kind for kind, _ in seen] == ["enter", "leave"] * 2
    assert torch.equal(minblas.gemm(a, b, variant="split_k"), expected)
    assert len(seen) == 4


def test_proton_sees_the_kernels(tmp_path):
    proton = pytest.importorskip("triton.profiler")
    a, b = pair("split_k")
    warmed("split_k", a, b)
    name = str(tmp_path / "profile")
    try:
        proton.start(name, hook="triton")
    except RuntimeError as error:
        pytest.skip(f"proton does not start here: {error}")
    try:
        minblas.gemm(a, b, variant="split_k")
        torch.cuda.synchronize()
    finally:
        proton.finalize()
    told = Path(f"{name}.hatchet").read_text()
    names = {step._call.kernel.__name__ for route in routes() for step in route.plan.direct}
    assert len(names) == 2
    assert all(kernel in told for kernel in names)
