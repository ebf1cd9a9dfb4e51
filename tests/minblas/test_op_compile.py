"""gemm and its torch-named twins under torch.compile: one graph, sizes as symbols, and the choice made when the graph runs."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code

import minblas
from minblas import dispatch, launch
from minblas.op import GEMM, GEMM_OUT

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh(nothing_remembered):
    torch.manual_seed(17)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager", dynamic=True):
    """The function, in one graph, and what counts its graphs."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter), counter


def ops_of(counter):
    return [node.target for graph in counter.graphs for node in graph.graph.nodes if node.op == "call_function"]


W = torch.randn(16, 5)
#: Calls whose first operand has M rows, M being the size that changes. Every other size differs from all M.
TWINS = {
    "gemm": lambda x: minblas.gemm(x, W),
    "everything": lambda x: minblas.gemm(
        x,
        W.mT,
        0.5,
        2,
        x[:, :1],
        trans_b=True,
        bias=W[0],
        activation="gelu",
        out_dtype="bf16",
        precision="highest",
        deterministic=True,
    ),
    "tile": lambda x: minblas.gemm(x, W, variant="tiled", tile=minblas.TileConfig(16, 16, 16, num_warps=1)),
    "mm": lambda x: minblas.mm(x, W),
    "addmm": lambda x: minblas.addmm(W[0], x, W, beta=2, alpha=0.5),
    "bmm": lambda x: minblas.bmm(x.expand(2, *x.shape), W.expand(2, 16, 5)),
    "baddbmm": lambda x: minblas.baddbmm(W[0], x.expand(2, *x.shape), W.expand(2, 16, 5), alpha=0.5),
    "matmul": lambda x: minblas.matmul(x, W) + minblas.matmul(x, W[:, 0]).unsqueeze(1),
    "linear": lambda x: minblas.linear(x, W.mT, W[0]),
    "out": lambda x: minblas.gemm(x, W, out=torch.empty(x.shape[0], 5)),
    "c in place": lambda x: (lambda c: minblas.gemm(x, W, 1.0, 2.0, c, out=c))(x[:, :5].contiguous()),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", TWINS)
def test_one_graph_serves_all_sizes(name, backend):
    with minblas.options(interpret_cap=0 if name != "tile" else 2**24):
        function, counter = compiled(TWINS[name], backend)
        for m in (9, 64, 33):
            x = torch.randn(m, 16)
            torch.testing.assert_close(function(x), TWINS[name](x))
    assert counter.frame_count == 1
    served = [op for op in ops_of(counter) if op in (GEMM, GEMM_OUT)]
    assert len(served) == (2 if name == "matmul" else 1)
    assert not [op for op in ops_of(counter) if op in (torch.mm, torch.matmul, torch.ops.aten.mm.default)]


def test_the_choice_is_made_at_run_time(monkeypatch):
    """Compiled once for M = 8, 64, 4096, and once more for M = 1, as torch always does: eager's variants and tiles, for each M.

    What is chosen is what `launch.prepare` is asked for; on a CPU aten computes products of this size.
    """
    weight = torch.randn(1024, 1024)
    chosen = []
    prepare = launch.prepare

    def watched(variant, problem, tile, *rest, **keywords):
        chosen.append((problem.m, variant.name, tile))
        return prepare(variant, problem, tile, *rest, **keywords)

    monkeypatch.setattr(launch, "prepare", watched)
    function, counter = compiled(lambda x: minblas.linear(x, weight.mT))
    operands = [torch.randn(m, 1024) for m in (8, 64, 4096, 1)]
    with minblas.options(interpret_cap=0):
        results = [function(x) for x in operands]
        served, ours = minblas.stats(reset=True).calls, chosen[:]
        chosen.clear()
        dispatch.forget_plans()
        for x, result in zip(operands, results, strict=True):
            assert torch.equal(result, minblas.linear(x, weight.mT))
    assert ours == chosen
    assert [m for m, _, _ in ours] == [8, 64, 4096, 1]
    assert len({tile for _, _, tile in ours}) == 4  # the choice depends on M, or this test would say nothing
    assert len({variant for _, variant, _ in ours}) == 3
    assert served == minblas.stats().calls == {"aten": 4}
    assert counter.frame_count == 2


def test_eager_first_or_compiled_first():
    x = torch.randn(9, 16)
    for order in (("eager", "compiled"), ("compiled", "eager")):
        torch._dynamo.reset()
        dispatch.forget_plans()
        function, _ = compiled(TWINS["gemm"])
        results = [{"eager": TWINS["gemm"], "compiled": function}[name](x) for name in order * 2]
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_training_step(backend):
    """Forward and backward in compiled graphs; the gradients of eager code."""

    def step(x, weight, bias):
        hidden = minblas.gemm(x, weight, bias=bias, activation="gelu", trans_b=True)
        return minblas.matmul(hidden, weight).pow(2).sum()

    function, counter = compiled(step, backend)
    for m in (9, 33):
        ours = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, m, 16), (5, 16), (5,))]
        theirs = [x.detach().clone().requires_grad_() for x in ours]
        with minblas.options(interpret_cap=0):
            mine, right = function(*ours), step(*theirs)
            torch.testing.assert_close(mine, right)
            mine.backward()
            right.backward()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    assert counter.frame_count == 1


def test_inductor_serves_all_sizes_and_fuses_around():
    function, counter = compiled(lambda x: (minblas.linear(x.relu(), W.mT, W[0]) * 2).sigmoid(), "inductor")
    for m in (9, 64, 33, 1):
        x = torch.randn(m, 16)
        torch.testing.assert_close(function(x), (torch.nn.functional.linear(x.relu(), W.mT, W[0]) * 2).sigmoid())
    assert counter.frame_count == 2
    assert sum(minblas.stats().calls.values()) == 4
    assert "aten" not in minblas.stats().calls


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("place", ["whole", "one of several", "a column range", "an intermediate"])
def test_inductor_writes_where_out_is(place, dynamic):
    """Into memory that starts inside of another tensor, too: inductor loses that offset of an op's out (pytorch issue 198068)."""
    views = {
        "whole": lambda buffer: buffer,
        "one of several": lambda buffer: buffer[1],
        "a column range": lambda buffer: buffer[:, 2:7],
        "an intermediate": lambda buffer: buffer[1],
    }
    shape = {"whole": (9, 5), "a column range": (9, 8)}.get(place, (2, 9, 5))

    def function(x, buffer):
        target = buffer * 2 if place == "an intermediate" else buffer
        assert minblas.gemm(x, W, out=views[place](target)) is not None
        return target + 1

    x, ours = torch.randn(9, 16), torch.randn(shape)
    theirs = ours.clone()
    with torch._inductor.config.patch(force_disable_caches=True), minblas.options(interpret_cap=0):
        result, (code,) = run_and_get_code(torch.compile(function, fullgraph=True, dynamic=dynamic), x, ours)
        torch.testing.assert_close(result, function(x, theirs))
    torch.testing.assert_close(ours, theirs)
    if place == "whole":
        assert "gemm_out" in code  # in place, without a copy
        assert "copy_" not in code


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [(torch.float16, "fp32"), (torch.bfloat16, None), (torch.int8, None), (torch.float8_e4m3fn, "bf16")]
)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_types_and_ranks(dtype, out_dtype, batch):
    a, b = (torch.randint(-4, 5, shape).to(dtype) for shape in ((*batch, 5, 16), (*batch, 16, 4)))
    function, _ = compiled(lambda a, b: minblas.gemm(a, b, out_dtype=out_dtype))
    with minblas.options(interpret_cap=0):
        assert torch.equal(function(a, b), minblas.gemm(a, b, out_dtype=out_dtype))
        if len(batch) == 1 and dtype.is_floating_point and dtype.itemsize == 2:
            bmm, _ = compiled(lambda a, b: minblas.bmm(a, b, torch.float32))
            assert bmm(a, b).dtype == torch.float32


# --- scalars -------------------------------------------------------------------------------------------------------------------


def test_a_tensor_for_alpha_is_read_when_the_graph_runs():
    c = torch.randn(9, 5)
    function, counter = compiled(lambda x, alpha, beta: minblas.gemm(x, W, alpha, beta, c))
    x = torch.randn(9, 16)
    with minblas.options(interpret_cap=0):
        for alpha, beta in ((2.0, 0.5), (3.0, 0.0), (0.0, 1.0)):
            scalars = torch.tensor(alpha), torch.tensor(beta)
            torch.testing.assert_close(function(x, *scalars), alpha * x @ W + beta * c)
    assert counter.frame_count == 1


def test_a_number_for_alpha_is_part_of_the_graph():
    """As for torch's own scalars, each value is a graph of its own; the right one is used."""
    function, counter = compiled(lambda x, alpha: minblas.gemm(x, W, alpha))
    x = torch.randn(9, 16)
    with minblas.options(interpret_cap=0):
        for alpha in (2.5, 3.5, 0.0, 1.0, 2.5):
            torch.testing.assert_close(function(x, alpha), alpha * x @ W)
    assert counter.frame_count >= 4


# --- what surrounds a graph -----------------------------------------------------------------------------------------------------


def test_options_that_hold_when_the_graph_runs():
    """Compiled under others or none: a block around the call, or the process's."""
    function, counter = compiled(TWINS["gemm"])
    x = torch.randn(9, 16)

    def variants():
        made = set(minblas.stats().calls)
        minblas.stats(reset=True)
        return made

    function(x)
    assert "aten" not in variants()
    with minblas.options(variant="aten"):
        function(x)
    assert variants() == {"aten"}
    before = minblas.options.set(exclude="tiled")
    function(x)
    minblas.options.restore(before)
    assert not variants() & {"aten", "tiled"}
    function(x)
    assert "aten" not in variants()
    assert counter.frame_count == 1


def test_options_and_the_backward_graph():
    """Eager code keeps the forward pass's options for the backward pass; a compiled one runs under those in force when it runs."""
    weight = W.clone().requires_grad_()
    function, _ = compiled(lambda x: minblas.gemm(x, weight).sum())
    x = torch.randn(9, 16)
    with minblas.options(variant="aten"):
        loss = function(x)
    minblas.stats(reset=True)
    loss.backward()
    assert "aten" not in minblas.stats().calls
    with minblas.options(interpret_cap=0):
        function(x).backward()
    assert set(minblas.stats().calls) >= {"aten"}


def with_options(x):
    with minblas.options(variant="aten"):
        return minblas.gemm(x, W)


def setting_options(x):
    before = minblas.options.set(variant="aten")
    result = minblas.gemm(x, W)
    minblas.options.restore(before)
    return result


@pytest.mark.parametrize("function", [with_options, setting_options])
def test_options_inside_a_traced_function(function):
    """An error that says where to put them, where one graph is asked for; else the graph ends there and they hold."""
    x = torch.randn(9, 16)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="put it around the compiled call"):
        torch.compile(function, fullgraph=True, backend="eager")(x)
    minblas.stats(reset=True)
    torch.testing.assert_close(torch.compile(function, backend="eager")(x), x @ W)
    assert minblas.stats().calls == {"aten": 1}


def test_autocast_around_and_inside():
    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return minblas.linear(x, W.mT)

    x = torch.randn(9, 16)
    with minblas.options(interpret_cap=0):
        function, _ = compiled(inside)
        assert function(x).dtype == torch.bfloat16
        torch.testing.assert_close(function(x), inside(x))
        around, _ = compiled(TWINS["gemm"])
        with torch.autocast("cpu", torch.bfloat16):
            assert around(x).dtype == torch.bfloat16
        assert around(x).dtype == torch.float32


def test_inference_mode_and_no_grad():
    weight = W.clone().requires_grad_()
    function, _ = compiled(lambda x: minblas.gemm(x, weight))
    x = torch.randn(9, 16)
    with minblas.options(interpret_cap=0):
        with torch.inference_mode():
            assert function(x).is_inference()
        with torch.no_grad():
            assert not function(x).requires_grad
        assert function(x).requires_grad


def test_transforms_inside_a_graph():
    weight = torch.randn(16, 5).double()

    def per_sample(x):
        return torch.func.vmap(torch.func.grad(lambda w, x: minblas.mm(x, w).sin().sum()), (None, 0))(weight, x)

    x = torch.randn(3, 9, 16).double()
    function, _ = compiled(per_sample)
    torch.testing.assert_close(function(x), per_sample(x))


def test_a_kernel_is_never_traced():
    """Called from a frame that dynamo leaves to Python, the op's own code is not compiled, nor guarded by shape."""

    def function(x):
        torch._dynamo.graph_break()
        return GEMM(x, W)

    counter = CompileCounterWithBackend("eager")
    optimized = torch.compile(function, backend=counter)
    skipped = torch.compile(torch._dynamo.disable(function, recursive=False), backend=counter)
    with minblas.options(interpret_cap=0):
        for m in (9, 10, 11, 12):
            x = torch.randn(m, 16)
            torch.testing.assert_close(optimized(x), x @ W)
            torch.testing.assert_close(skipped(x), x @ W)
    assert set(ops_of(counter)) == {GEMM}


def test_compiled_autograd_tells_calls_apart():
    """Gradients of one size and other scalars or transposes, through a backward pass that is traced as a whole."""
    from torch._dynamo import compiled_autograd

    x, weight = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    with minblas.options(interpret_cap=0):
        for alpha, trans_a in ((2.0, False), (3.0, False), (3.0, True)):
            with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
                found = torch.autograd.grad(minblas.gemm(x, weight, alpha, trans_a=trans_a).sin().sum(), (x, weight))
            right = (alpha * ((x.mT if trans_a else x) @ weight)).sin().sum()
            torch.testing.assert_close(found, torch.autograd.grad(right, (x, weight)))
