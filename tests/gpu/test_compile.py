"""torch.compile, export, autograd and autocast on the GPU: inductor's graphs reach our kernels, chosen when they run."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import minblas
from minblas import dispatch
from minblas.cache import CACHE
from minblas.op import GEMM, GEMM_OUT
from tests.minblas.op_samples import SAMPLES

BF16 = torch.bfloat16
DEPTH, WIDTH = 1024, 768


@pytest.fixture(autouse=True)
def fresh(device):
    torch.manual_seed(23)
    torch._dynamo.reset()
    dispatch.forget_plans()
    minblas.stats(reset=True)
    yield
    torch._dynamo.reset()


def on(device, tensor, grad=False):
    """The same storage, offset and strides on the device."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    memory = torch.empty(0, dtype=tensor.dtype, device=device)
    storage = tensor.detach().untyped_storage().cuda(device.index)
    return memory.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride()).requires_grad_(
        grad and tensor.requires_grad
    )


def random(*shape, dtype=BF16, device, grad=False):
    return torch.randn(shape, device=device).to(dtype).requires_grad_(grad)


def near(result, *operands):
    """A bf16 product, with float64's beside it: the rounding of the result and of DEPTH sums in fp32."""
    a, b, *bias = (x.detach().double() for x in operands)
    exact = a @ b + (bias[0] if bias else 0)
    bound = 2**-8 * exact.abs() + 2e-7 * DEPTH**0.5 * (a.abs() @ b.abs()) + 1e-6
    assert ((result.double() - exact).abs() <= bound).all()


def counted(function, backend="inductor", **options):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter, **options), counter


def chosen():
    """What serves, by M; the plans are forgotten."""
    made = {plan.problem.m: (plan.variant, plan.tile, plan.rung) for plan in CACHE.plans() if plan.problem is not None}
    dispatch.forget_plans()
    return made


def test_inductor_calls_what_eager_code_would(device):
    """M = 8, 64, 4096 in one graph, M = 1 in one of its own; no call is left to aten."""
    weight, bias = random(WIDTH, DEPTH, device=device), random(WIDTH, device=device)
    function, counter = counted(lambda x: minblas.linear(x, weight, bias).relu())
    sizes = (8, 64, 4096, 1)
    operands = [random(m, DEPTH, device=device) for m in sizes]
    results = [function(x) for x in operands]
    torch.cuda.synchronize()
    calls, ours = minblas.stats(reset=True).calls, chosen()
    for x, result in zip(operands, results, strict=True):
        near(minblas.linear(x, weight, bias), x, weight.mT, bias)
        assert torch.equal(result, minblas.linear(x, weight, bias).relu())
    assert ours == chosen()
    assert set(ours) == set(sizes)
    assert len(set(ours.values())) > 1
    assert sum(calls.values()) == len(sizes)
    assert "aten" not in calls
    assert counter.frame_count == 2


def test_a_compiled_training_step(device):
    """Forward and backward on our kernels, counted; gradients as torch's."""

    def step(x, weight, bias):
        return functional.gelu(minblas.linear(x, weight, bias)).square().mean()

    def reference(x, weight, bias):
        return functional.gelu(functional.linear(x, weight, bias)).square().mean()

    function, counter = counted(step)
    for m in (96, 512):
        ours = [random(*shape, device=device, grad=True) for shape in ((m, DEPTH), (WIDTH, DEPTH), (WIDTH,))]
        theirs = [x.detach().double().requires_grad_() for x in ours]
        minblas.stats(reset=True)
        function(*ours).backward()
        reference(*theirs).backward()
        torch.cuda.synchronize()
        calls = minblas.stats().calls
        assert sum(calls.values()) == 3
        assert "aten" not in calls
        for one, other in zip(ours, theirs, strict=True):
            scale = other.grad.abs().max()
            assert (one.grad.double() - other.grad).abs().max() < 3e-2 * scale
    assert counter.frame_count == 1


def test_options_of_the_process_reach_a_compiled_backward_pass(device):
    """Autograd runs it in a thread of its own, where a block of options does not hold: said in docs/pytorch.md."""
    weight = random(WIDTH, DEPTH, device=device, grad=True)
    function, _ = counted(lambda x: minblas.linear(x, weight).sum())
    x = random(64, DEPTH, device=device)
    function(x).backward()
    minblas.stats(reset=True)
    with minblas.options(variant="aten"):
        loss = function(x)
        assert minblas.stats(reset=True).calls == {"aten": 1}
        loss.backward()
        assert "aten" not in minblas.stats(reset=True).calls
    before = minblas.options.set(variant="aten")
    try:
        function(x).backward()
        assert minblas.stats().calls == {"aten": 2}
    finally:
        minblas.options.restore(before)


def test_inductor_writes_into_out_without_a_copy(device):
    weight = random(DEPTH, WIDTH, device=device)

    def function(x, out):
        minblas.gemm(x, weight, out=out)
        return out.relu()

    x, out = random(96, DEPTH, device=device), random(96, WIDTH, device=device)
    result, (code,) = run_and_get_code(torch.compile(function, fullgraph=True, dynamic=True), x, out)
    near(out, x, weight)
    assert torch.equal(result, out.relu())
    assert "gemm_out" in code
    assert "copy_" not in code


@pytest.mark.parametrize("dynamic", [True, False])
def test_inductor_writes_into_a_part_of_a_buffer(device, dynamic):
    weight = random(DEPTH, WIDTH, device=device)

    def function(x, cache):
        minblas.gemm(x, weight, out=cache[1])
        return cache + 1

    x, cache = random(96, DEPTH, device=device), random(3, 96, WIDTH, device=device)
    before = cache.clone()
    torch.compile(function, fullgraph=True, dynamic=dynamic)(x, cache)
    near(cache[1], x, weight)
    assert torch.equal(cache[::2], before[::2])


def test_cuda_graphs_of_inductor(device):
    """mode="reduce-overhead": warmed up, captured, replayed with other inputs."""
    weight = random(DEPTH, WIDTH, device=device)
    function = torch.compile(lambda x: minblas.mm(x, weight) * 2, mode="reduce-overhead", fullgraph=True)
    for _ in range(5):
        x = random(64, DEPTH, device=device)
        torch.compiler.cudagraph_mark_step_begin()
        result = function(x).clone()
        assert torch.equal(result, minblas.mm(x, weight) * 2)
    assert "aten" not in minblas.stats().calls


def test_a_tensor_for_alpha(device):
    weight, c = random(DEPTH, WIDTH, device=device), random(96, WIDTH, device=device)
    function, counter = counted(lambda x, alpha, beta: minblas.gemm(x, weight, alpha, beta, c))
    x = random(96, DEPTH, device=device)
    for alpha, beta in ((2.0, 0.5), (3.0, 0.0)):
        result = function(x, torch.tensor(alpha), torch.tensor(beta))
        assert torch.equal(result, minblas.gemm(x, weight, alpha, beta, c))
    assert counter.frame_count == 1


# --- the op ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_opcheck(device, sample):
    args = [on(device, x, grad=True) for x in sample.args(grad=True)]
    assert set(opcheck(GEMM, tuple(args)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("sample", SAMPLES[::3], ids=lambda sample: sample.name)
def test_opcheck_out(device, sample):
    a, b, *rest = (on(device, x) for x in sample.args())
    out = torch.empty_like(GEMM(a, b, *rest))
    assert set(opcheck(GEMM_OUT, (a, b, out, *rest)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_gradients(device, activation):
    shapes = ((3, 5), (5, 4), (3, 1), (4,))
    operands = tuple(random(*shape, dtype=torch.float64, device=device, grad=True) for shape in shapes)

    def function(a, b, c, bias):
        return GEMM(a, b, 0.7, -1.3, c, bias, False, False, activation)

    assert gradcheck(function, operands, check_forward_ad=True, nondet_tol=1e-12)
    assert gradgradcheck(function, operands, nondet_tol=1e-12)


def test_vmap_is_one_product(device):
    x, weight = random(4, 96, DEPTH, device=device), random(WIDTH, DEPTH, device=device)
    near(torch.vmap(lambda x: minblas.linear(x, weight))(x).view(-1, WIDTH), x.view(-1, DEPTH), weight.mT)
    assert [(plan.problem.batch, plan.problem.m) for plan in CACHE.plans()] == [(1, 4 * 96)]
    assert "aten" not in minblas.stats().calls


@pytest.mark.parametrize("bias", [None, torch.float32, BF16], ids=str)
def test_autocast(device, bias):
    x, weight = (random(*shape, dtype=torch.float32, device=device, grad=True) for shape in ((96, DEPTH), (WIDTH, DEPTH)))
    given = (x, weight) if bias is None else (x, weight, random(WIDTH, dtype=bias, device=device))
    with torch.autocast("cuda", BF16):
        ours, theirs = minblas.linear(*given), functional.linear(*given)
    assert ours.dtype == theirs.dtype == BF16
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-1)
    ours.sum().backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32


def test_a_warm_call_is_still_seen(device):
    """By a mode, autocast, a gradient, a tangent: a call served by the shortest way must notice each."""
    a, b = random(96, DEPTH, device=device), random(DEPTH, WIDTH, device=device)
    for _ in range(4):
        minblas.gemm(a, b)
    with FlopCounterMode(display=False) as counter:
        minblas.gemm(a, b)
    assert counter.get_total_flops() == 2 * 96 * DEPTH * WIDTH
    with torch.autocast("cuda", torch.float16):
        assert minblas.gemm(a, b).dtype == torch.float16
    with forward_ad.dual_level():
        tangent = torch.randn_like(a)
        found = forward_ad.unpack_dual(minblas.gemm(forward_ad.make_dual(a, tangent), b)).tangent
        near(found, tangent, b)
    assert minblas.gemm(a.requires_grad_(), b).grad_fn is not None
    with torch.no_grad():
        assert minblas.gemm(a, b).grad_fn is None
    near(torch.func.vmap(lambda a: minblas.gemm(a, b))(a.detach().unsqueeze(0))[0], a, b)


def test_export(device):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(random(WIDTH, DEPTH, device=device))

        def forward(self, x):
            return minblas.linear(x, self.weight).relu()

    layer, x = Layer(), random(96, DEPTH, device=device)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=8192)},))
    assert [node.target for node in program.graph.nodes].count(GEMM) == 1
    for m in (96, 4096):
        x = random(m, DEPTH, device=device)
        assert torch.equal(program.module()(x), layer(x))
    assert "aten" not in minblas.stats().calls
