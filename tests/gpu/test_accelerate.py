"""accelerate() on the GPU: what only a GPU shows: its overloads, its errors, autograd's threads, graphs, streams, compiled code."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading

import pytest
import torch

import minblas
from minblas.accelerate_kernels import OVERLOADS
from minblas.cache import CACHE
from tests.gpu.support import DEVICE
from tests.minblas.accelerating import covered, make_up, outcome, served, tables

two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def untouched():
    before = tables()
    CACHE.clear()
    minblas.stats(reset=True)
    yield
    assert tables() == before
    torch._dynamo.reset()


def randn(*shape, dtype=torch.bfloat16, device=DEVICE):
    return torch.randn(*shape, device=device).to(dtype)


def right(result, a, b, alpha=1.0, beta=0.0, c=None):
    """Within two roundings of float64's answer and what sums in fp32 lose."""
    exact = alpha * (a.double() @ b.double()) + (beta * c.double() if c is not None else 0)
    magnitude = abs(alpha) * (a.double().abs() @ b.double().abs()) + (abs(beta) * c.double().abs() if c is not None else 0)
    bound = torch.finfo(result.dtype).eps * exact.abs() + 2 * math.sqrt(a.shape[-1] + 6) * 2**-24 * magnitude
    return bool(((result.double() - exact).abs() <= bound).all())


def test_the_default_is_the_gpu():
    with minblas.accelerate():
        assert minblas.accelerate.devices() == ("cuda",)
        assert covered("cuda") == set(OVERLOADS)
        torch.mm(torch.randn(4, 4), torch.randn(4, 4))  # the CPU's are torch's
        assert served() == 0
        assert minblas.stats().left_to_torch == {}


def test_entering_does_not_wake_the_gpu():
    code = "import torch, minblas; minblas.accelerate().__enter__(); assert not torch.cuda.is_initialized(), 'woken'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_every_overload_is_served(dtype):
    a, b, c = randn(3, 64, 96, dtype=dtype), randn(3, 96, 80, dtype=dtype), randn(80, dtype=dtype)
    with minblas.accelerate():
        results = [
            (torch.mm(a[0], b[0]), a[0], b[0], 1.0, 0.0, None),
            (torch.mm(a[0], b[0], out=torch.empty(64, 80, device=DEVICE, dtype=dtype)), a[0], b[0], 1.0, 0.0, None),
            (torch.bmm(a, b), a, b, 1.0, 0.0, None),
            (torch.bmm(a, b, out=torch.empty(3, 64, 80, device=DEVICE, dtype=dtype)), a, b, 1.0, 0.0, None),
            (torch.addmm(c, a[0], b[0], beta=0.5, alpha=2), a[0], b[0], 2.0, 0.5, c),
            (torch.addmm(c, a[0], b[0], out=torch.empty(64, 80, device=DEVICE, dtype=dtype)), a[0], b[0], 1.0, 1.0, c),
            (c.expand(64, 80).clone().addmm_(a[0], b[0]), a[0], b[0], 1.0, 1.0, c),
            (torch.baddbmm(c, a, b, beta=0.5, alpha=2), a, b, 2.0, 0.5, c),
            (torch.baddbmm(c, a, b, out=torch.empty(3, 64, 80, device=DEVICE, dtype=dtype)), a, b, 1.0, 1.0, c),
            (c.expand(3, 64, 80).clone().baddbmm_(a, b), a, b, 1.0, 1.0, c),
            (torch.mv(a[0], b[0, :, 0])[:, None], a[0], b[0, :, :1], 1.0, 0.0, None),
            (torch.addmv(c[:64], a[0], b[0, :, 0], beta=2)[:, None], a[0], b[0, :, :1], 1.0, 2.0, c[:64, None]),
        ]
        assert served() == len(results), minblas.stats()
        assert minblas.stats().left_to_torch == {}
    for i, (result, *rest) in enumerate(results):
        assert right(result, *rest), i


@pytest.mark.parametrize("dtype", HALVES)
def test_overloads_with_a_type_of_their_own(dtype):
    a, b, wide = randn(3, 64, 96, dtype=dtype), randn(3, 96, 80, dtype=dtype), torch.float32
    narrow, c = randn(80, dtype=dtype), randn(80, dtype=wide)

    def calls():
        return [
            (torch.mm(a[0], b[0], out_dtype=wide), a[0], b[0], 1.0, 0.0, None),
            (torch.bmm(a, b, out_dtype=wide), a, b, 1.0, 0.0, None),
            (torch.addmm(c, a[0], b[0], out_dtype=wide), a[0], b[0], 1.0, 1.0, c),
            (torch.addmm(narrow, a[0], b[0], out_dtype=wide), a[0], b[0], 1.0, 1.0, narrow),
            (torch.baddbmm(c, a, b, out_dtype=wide), a, b, 1.0, 1.0, c),
        ]

    for result, *_ in calls():
        assert result.dtype is wide  # torch takes all of these
    with minblas.accelerate():
        ours = calls()
        assert served() == len(ours), minblas.stats()
    for result, *rest in ours:
        assert result.dtype is wide
        assert right(result, *rest)


REFUSED = {
    "integers": lambda: torch.mm(
        torch.ones(4, 4, device=DEVICE, dtype=torch.int32), torch.ones(4, 4, device=DEVICE, dtype=torch.int32)
    ),
    "inner sizes": lambda: torch.mm(randn(3, 4), randn(5, 6)),
    "types that mix": lambda: torch.mm(randn(3, 4), randn(4, 6, dtype=torch.float32)),
    "devices that mix": lambda: torch.mm(randn(3, 4), torch.randn(4, 6).bfloat16()),
    "an addend of another type": lambda: torch.addmm(randn(6, dtype=torch.float32), randn(3, 4), randn(4, 6)),
    "an addend that does not fit": lambda: torch.addmm(randn(5), randn(3, 4), randn(4, 6)),
    "batches": lambda: torch.bmm(randn(1, 3, 4), randn(2, 4, 6)),
    "out of another type": lambda: torch.mm(randn(3, 4), randn(4, 6), out=torch.empty(3, 6, device=DEVICE)),
    "a narrower result": lambda: torch.mm(randn(3, 4).float(), randn(4, 6).float(), out_dtype=torch.bfloat16),
    "a leaf in place": lambda: torch.empty(3, 6, device=DEVICE, requires_grad=True).addmm_(
        randn(3, 4).float(), randn(4, 6).float()
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_torchs(case):
    outside = outcome(REFUSED[case])
    with minblas.accelerate():
        inside = outcome(REFUSED[case])
    assert isinstance(outside[0], type), outside
    assert inside == outside
    assert served() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(randn(3, 4, dtype=torch.float64), randn(4, 6, dtype=torch.float64)),
        lambda: torch.mm(randn(3, 4, dtype=torch.complex64), randn(6, 4, dtype=torch.complex64).mH),
        lambda: torch.mm(randn(3, 0), randn(0, 6)),
        lambda: torch.mm(randn(3, 4), randn(4, 6), out=torch.empty(0, device=DEVICE, dtype=torch.bfloat16)),
        lambda: torch.mm(randn(8, 4).to_sparse(), randn(4, 6, dtype=torch.bfloat16).float().bfloat16()),
    ],
)
def test_what_is_left_is_torchs(call):
    torch.manual_seed(0)
    outside = outcome(call)
    with minblas.accelerate():
        torch.manual_seed(0)
        inside = outcome(call)
    assert served() == 0
    if isinstance(outside[0], torch.Tensor):
        assert make_up(inside[0]) == make_up(outside[0])
        assert torch.equal(inside[0], outside[0])
        assert inside[1:] == outside[1:]
    else:
        assert inside == outside


# autograd


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)).to(DEVICE, torch.bfloat16)


def gradients(model, x):
    model.zero_grad()
    model(x).float().square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_training_is_served_forward_and_backward_and_has_torchs_gradients():
    model, x = mlp(), randn(64, 256)
    exact = [g.double() for g in gradients(mlp().double(), x.double())]
    theirs = gradients(model, x)
    with minblas.accelerate():
        ours = gradients(model, x)
    assert served() == 5, minblas.stats()  # two forward, three backward: x wants no gradient
    assert minblas.stats().left_to_torch == {}
    for own, other, right_one in zip(ours, theirs, exact, strict=True):
        allowed = 2 * (other.double() - right_one).norm() + torch.finfo(own.dtype).eps * right_one.norm()
        assert (own.double() - right_one).norm() <= allowed


def test_options_reach_autograds_thread():
    x, w = randn(64, 64).requires_grad_(), randn(64, 64)
    for variant in ("persistent", "tiled"):
        minblas.stats(reset=True)
        with minblas.options(variant=variant), minblas.accelerate():
            torch.mm(x, w).sum().backward()
        assert minblas.stats().accelerated == {"mm": {variant: 2}}


def test_autocast_and_a_gradient_scaler():
    model = mlp().float()
    with minblas.accelerate(), torch.autocast("cuda", torch.bfloat16):
        assert model(randn(64, 256, dtype=torch.float32)).dtype is torch.bfloat16
    assert served() == 2


# graphs, streams, devices, threads


def test_a_graph_captured_inside_keeps_our_kernels_and_one_captured_outside_torchs():
    a, b = randn(256, 256), randn(256, 256)

    def captured():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.mm(a, b)
        return graph, out

    torch.mm(a, b)
    outside = captured()
    with minblas.accelerate():
        torch.mm(a, b)
        count = served()
        inside = captured()
        assert served() == count + 1
    count = served()
    for graph, out in (outside, inside):
        a.copy_(randn(256, 256))
        graph.replay()
        assert right(out, a, b)
    with minblas.accelerate():
        outside[0].replay()
    assert served() == count


def test_a_call_that_is_cold_during_capture_is_torchs():
    a, b = randn(72, 328), randn(328, 136)
    torch.mm(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with minblas.accelerate(), torch.cuda.graph(graph):
        out = torch.mm(a, b)
    graph.replay()
    assert right(out, a, b)
    stats = minblas.stats()
    if stats.left_to_torch:  # the binary may be loaded already: another test's shape can share it
        assert stats.left_to_torch == {"mm": {"its kernel is not compiled, and may not be now (on_cold, or a graph capture)": 1}}
    with minblas.accelerate():
        assert right(torch.mm(a, b), a, b)
    assert served() >= 1


def test_side_streams():
    a, b = randn(512, 4096), randn(4096, 512)
    with minblas.accelerate():
        expected = torch.mm(a, b)
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(3)]
        results = []
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(torch.mm(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)
    assert served() == 4


@two_devices
def test_tensors_of_a_device_that_is_not_current():
    other = torch.device("cuda", 1)
    a, b = randn(64, 64, device=other), randn(64, 64, device=other)
    with minblas.accelerate():
        result = torch.mm(a, b)
        assert torch.cuda.current_device() == 0
        with pytest.raises(RuntimeError, match="device"):
            torch.mm(a, randn(64, 64))
    assert right(result, a, b)
    assert served() == 1


def test_threads():
    a, b = randn(128, 128), randn(128, 128)
    expected = torch.mm(a.double(), b.double())
    wrong = []

    def work():
        for _ in range(200):
            result = torch.mm(a, b)
            if not torch.allclose(result.double(), expected, rtol=0.02, atol=0.2):
                wrong.append(result)

    with minblas.accelerate():
        torch.mm(a, b)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert served() == 801


def test_entering_and_leaving_while_others_compute():
    a, b = randn(64, 64), randn(64, 64)
    stop, wrong = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                torch.mm(a, b)
        except BaseException as error:
            wrong.append(error)

    with minblas.accelerate():
        torch.mm(a, b)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with minblas.accelerate():
            pass
    stop.set()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not wrong


# settings


def test_the_fp32_setting_is_read_at_every_call():
    a = 1 + torch.arange(256.0, device=DEVICE).repeat(256, 1) * 2**-20
    eye = torch.eye(256, device=DEVICE)
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    try:
        with minblas.accelerate():
            exact = []
            for chosen in ("ieee", "tf32", "ieee"):
                setting.fp32_precision = chosen
                exact.append(torch.equal(torch.mm(eye, a), a))
    finally:
        setting.fp32_precision = before
    assert exact == [True, False, True]
    assert served() == 3


def test_deterministic_algorithms():
    a, b = randn(96, 8192), randn(8192, 128)
    torch.use_deterministic_algorithms(True)
    try:
        with minblas.accelerate():
            results = {torch.mm(a, b).view(torch.int16).sum().item() for _ in range(5)}
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(results) == 1
    assert served() == 5


def test_attentions_math_path():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (randn(2, 4, 64, 32).requires_grad_() for _ in range(3))
    with minblas.accelerate(), sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert sum(minblas.stats().accelerated["bmm"].values()) == 6


# compiled code


@contextlib.contextmanager
def compiled_anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_inductor_forward_and_backward(mode):
    model, x = mlp(), randn(64, 256)
    exact = [g.double() for g in gradients(mlp().double(), x.double())]
    theirs = gradients(model, x)
    with compiled_anew():
        compiled = torch.compile(model, mode=mode, fullgraph=True)
        with minblas.accelerate():
            gradients(compiled, x)  # warm: a graph cannot be captured of what is cold
            minblas.stats(reset=True)
            for _ in range(3):
                ours = gradients(compiled, x)
            print(mode, minblas.stats())
            count = served()
        if mode is None:
            assert count == 15, minblas.stats()
        gradients(compiled, x)
        assert served() == count  # outside it is torch's again, or what a graph holds
    for own, other, right_one in zip(ours, theirs, exact, strict=True):
        allowed = 3 * (other.double() - right_one).norm() + 2 * torch.finfo(own.dtype).eps * right_one.norm()
        assert (own.double() - right_one).norm() <= allowed


def test_sizes_that_vary_choose_at_run_time():
    w = randn(512, 256)
    with compiled_anew():
        compiled = torch.compile(lambda x: torch.nn.functional.linear(x, w), dynamic=True, fullgraph=True)
        picks = {}
        for rows in (1, 8, 64, 4096):
            x = randn(rows, 256)
            minblas.stats(reset=True)
            with minblas.accelerate():
                assert right(compiled(x), x, w.T)
            (found,) = minblas.stats().accelerated.values()
            (picks[rows],) = found
            minblas.stats(reset=True)
            assert right(minblas.linear(x, w), x, w.T)
            assert set(minblas.stats().calls) == {picks[rows]}
    assert len(set(picks.values())) > 1, picks


def test_cpp_wrapper_is_not_reached_and_stats_say_so():
    from torch._inductor import config

    a, b = randn(64, 64), randn(64, 64)
    with compiled_anew(), minblas.accelerate():
        torch.mm(a, b)
        count = served()
        with config.patch(cpp_wrapper=True):
            assert right(torch.compile(lambda x: torch.mm(x, b), fullgraph=True)(a), a, b)
            assert "past the dispatcher" in str(minblas.stats())
        print("served under cpp_wrapper:", served() - count)
        assert served() == count
