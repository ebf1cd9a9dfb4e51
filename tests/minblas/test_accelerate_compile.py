"""accelerate() and torch.compile: a graph calls what is in force when it runs; nothing of ours is traced or compiled anew."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import minblas
from tests.minblas.accelerating import covered, served
from tests.minblas.oracle import close

pytestmark = pytest.mark.usefixtures("nothing_remembered")

X, W, BIAS = torch.randn(8, 16), torch.randn(12, 16), torch.randn(12)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def cpu():
    return minblas.accelerate(devices="cpu")


def layer(x, w, bias):
    return torch.nn.functional.linear(x, w, bias).relu()


def test_a_graph_compiled_inside_reverts_outside_and_one_compiled_outside_is_served_inside():
    counter = CompileCounterWithBackend("aot_eager")
    for first in (True, False):
        torch._dynamo.reset()
        minblas.stats(reset=True)
        compiled = torch.compile(layer, backend=counter, fullgraph=True)
        if first:
            with cpu():
                compiled(X, W, BIAS)
            assert served() == 1
            compiled(X, W, BIAS)
            assert served() == 1
        else:
            compiled(X, W, BIAS)
            assert served() == 0
            with cpu():
                close(compiled(X, W, BIAS), X, W.T, bias=BIAS, activation="relu")
            assert served() == 1
    assert counter.frame_count == 2  # once each


def test_forward_and_backward_of_a_compiled_graph():
    x, w, bias = (tensor.clone().requires_grad_() for tensor in (X, W, BIAS))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with cpu():
        compiled(x, w, bias).sum().backward()
    assert served() == 3
    theirs = [tensor.clone().requires_grad_() for tensor in (X, W, BIAS)]
    layer(*theirs).sum().backward()
    for ours, other in zip((x, w, bias), theirs, strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_entering_and_leaving_compiles_nothing_anew():
    counter = CompileCounter()
    compiled = torch.compile(layer, backend=counter, dynamic=True)
    compiled(X, W, BIAS)
    for rows in (8, 5, 3, 8):
        with cpu():
            compiled(X[:rows], W, BIAS)
        compiled(X[:rows], W, BIAS)
    assert counter.frame_count == 1
    assert served() == 4


def test_dynamo_does_not_trace_our_kernels_in_frames_that_it_leaves_to_python():
    counter = CompileCounter()

    @torch._dynamo.disable(recursive=False)
    def eager(x, w):
        return torch.mm(x, w.T)  # dynamo's hook is still set while this runs

    @torch.compile(backend=counter)
    def function(x, w):
        return eager(x + 1, w) * 2

    with cpu():
        function(X, W)
        frames = counter.frame_count
        torch._dynamo.utils.counters.clear()
        for rows in (7, 6, 5):
            close(function(X[:rows], W), 2 * (X[:rows] + 1), W.T)
    assert served() == 4
    assert frames == 2
    assert counter.frame_count <= frames + 2  # x + 1 and * 2, once more, with sizes that vary
    assert all("eager" in reason for reason in torch._dynamo.utils.counters["graph_break"])


def test_resetting_the_compiler_does_not_let_it_in():
    torch._dynamo.reset()
    test_dynamo_does_not_trace_our_kernels_in_frames_that_it_leaves_to_python()


def test_entering_inside_a_compiled_function_ends_the_graph():
    def function(x, w):
        with minblas.accelerate(devices="cpu"):
            return torch.mm(x + 1, w.T)

    close(torch.compile(function, backend="eager")(X, W), X + 1, W.T)
    assert served() == 1
    assert covered() == set()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"minblas\.accelerate"):
        torch.compile(function, backend="eager", fullgraph=True)(X, W)
    assert covered() == set()


def test_a_decorated_function_may_call_a_compiled_one():
    compiled = torch.compile(layer, backend="aot_eager")
    result = cpu()(compiled)(X, W, BIAS)
    close(result, X, W.T, bias=BIAS, activation="relu")
    assert served() == 1


def test_export_is_the_same_inside():
    class Layer(torch.nn.Module):
        def forward(self, x, w, bias):
            return layer(x, w, bias)

    outside = torch.export.export(Layer(), (X, W, BIAS))
    with cpu():
        inside = torch.export.export(Layer(), (X, W, BIAS))
        assert served() == 0
        close(inside.module()(X, W, BIAS), X, W.T, bias=BIAS, activation="relu")
    assert str(inside.graph) == str(outside.graph)
    assert served() == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_inductor_calls_the_overloads_with_out():
    def work(x, w, bias, batch):
        return torch.nn.functional.linear(x, w, bias), x @ w.T, batch @ batch.mT, torch.baddbmm(bias[:8], batch, batch.mT, beta=2)

    batch = torch.randn(2, 8, 16)
    compiled = torch.compile(work, fullgraph=True)
    with cpu():
        results = compiled(X, W, BIAS, batch)
    stats = minblas.stats()
    assert set(stats.accelerated) >= {"addmm.out", "mm.out", "bmm.out"}, stats
    assert sum(map(sum, (found.values() for found in stats.accelerated.values()))) == 4
    assert stats.left_to_torch == {}
    close(results[1], X, W.T)
    close(results[2], batch, batch.mT)
    close(results[3], batch, batch.mT, 1.0, 2.0, BIAS[:8])
    compiled(X, W, BIAS, batch)
    assert served() == 4
