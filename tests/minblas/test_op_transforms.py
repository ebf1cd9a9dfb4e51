"""The op under what works on operations: vmap, autocast, dispatch modes, tensor subclasses, tracers. gemm must be seen by all."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functionalize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import minblas
from minblas.cache import CACHE
from minblas.op import GEMM, GEMM_OUT

A, B, BIAS = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)


@pytest.fixture(autouse=True)
def _seed(nothing_remembered):
    torch.manual_seed(13)


def wide(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# --- vmap ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, 0), (2, 1), (-1, -2), (1, None), (None, 2), (0, None)])
def test_vmap_over_any_dimension(in_dims):
    shapes = [(5, 7), (7, 3)]
    a, b = (
        wide(*shape) if dim is None else wide(4, *shape).movedim(0, dim) for shape, dim in zip(shapes, in_dims, strict=True)
    )  # fmt: skip
    torch.testing.assert_close(vmap(minblas.mm, in_dims)(a, b), vmap(torch.mm, in_dims)(a, b))


def test_a_mapped_product_is_one_product():
    """Folded into the batch; where the weight is shared, into its rows."""
    x, weight = torch.randn(4, 5, 7), torch.randn(7, 3)
    vmap(lambda x: minblas.linear(x, weight.mT, BIAS))(x)
    assert [(plan.problem.batch, plan.problem.m) for plan in CACHE.plans()] == [(1, 20)]
    vmap(vmap(lambda x, y: minblas.mm(x, y)))(x.expand(2, 4, 5, 7), torch.randn(2, 4, 7, 3))
    assert [(plan.problem.batch, plan.problem.m) for plan in CACHE.plans()][1:] == [(8, 5)]


def test_vmap_of_everything():
    a, b, c, bias = wide(4, 2, 5, 7), wide(7, 6, 3), wide(4, 5, 1), wide(3, 4)

    def ours(a, b, c, bias):
        return minblas.gemm(a, b, 2.0, 3.0, c, bias=bias, activation="gelu")

    def theirs(a, b, c, bias):
        return functional.gelu(2 * a @ b + 3 * c + bias)

    dims = (0, None, 0, 1)
    b = b[:, 0]
    torch.testing.assert_close(vmap(ours, dims)(a, b, c, bias), vmap(theirs, dims)(a, b, c, bias))
    for dims in ((None, None, 0, None), (None, None, None, 1), (None, None, 0, 1)):
        given = [
            x if dim is not None else x.select(0 if x is not bias else 1, 0) for x, dim in zip((a, b, c, bias), dims, strict=True)
        ]
        given[1] = b
        torch.testing.assert_close(vmap(ours, dims)(*given), vmap(theirs, dims)(*given))


def test_nested_vmap_with_batches_that_broadcast():
    a, b = wide(2, 4, 1, 5, 7), wide(4, 3, 7, 6)
    ours = vmap(vmap(minblas.matmul, (0, 0)), (0, None))(a, b)
    torch.testing.assert_close(ours, vmap(vmap(torch.matmul, (0, 0)), (0, None))(a, b))


def test_vmap_into_out():
    a, b, c, out = wide(4, 5, 7), wide(7, 3), wide(4, 5, 3), wide(5, 4, 3)
    vmap(lambda a, out: GEMM_OUT(a, b, out), (0, 1), out_dims=None)(a, out)
    torch.testing.assert_close(out, (a @ b).movedim(0, 1))
    out = wide(4, 5, 3)
    vmap(lambda c, out: minblas.gemm(a[0], b, 1.0, 2.0, c, out=out))(c, out)
    torch.testing.assert_close(out, a[0] @ b + 2 * c)
    vmap(lambda out: minblas.gemm(a[0], b, out=out))(out)
    torch.testing.assert_close(out, (a[0] @ b).expand(4, 5, 3))
    with pytest.raises(minblas.errors.OperandError, match="out is not mapped"):
        vmap(lambda a: minblas.gemm(a, b, out=out[0]))(a)


def test_vmap_refusals():
    with pytest.raises(minblas.errors.ShapeError, match="a has 1 dimensions inside"):
        vmap(lambda a: minblas.gemm(a, B))(torch.randn(5, 7))
    with pytest.raises(minblas.errors.OperandError, match="alpha is mapped"):
        vmap(lambda a, s: minblas.gemm(a, B, s))(torch.randn(2, 5, 7), torch.randn(2))


@pytest.mark.parametrize("name", ["c", "bias"])
def test_an_addend_of_too_many_dimensions_is_not_taken_for_a_mapped_one(name):
    """Three addends beside three mapped products: outside of vmap each product refuses them, so none may be handed out."""
    a, addend = torch.randn(3, 5, 7), torch.randn(3, 5, B.shape[1])
    for in_dims in (None, 0):
        given = addend if in_dims is None else torch.randn(3, *addend.shape)
        with pytest.raises(minblas.errors.ShapeError, match=f"{name} has 3 dimensions inside torch.vmap and the result has 2"):
            vmap(lambda a, x: minblas.gemm(a, B, **{name: x}), in_dims=(0, in_dims))(a, given)


# --- autocast ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("x_type", "w_type"), [(torch.float32, torch.bfloat16), (torch.float32, torch.float32)], ids=str)
def test_autocast_casts_as_torch_does(dtype, bias, x_type, w_type):
    """Whether there is a bias changes no type."""
    x, weight = torch.randn(5, 16).to(x_type).requires_grad_(), torch.randn(6, 16).to(w_type).requires_grad_()
    given = (x, weight) if bias is None else (x, weight, torch.randn(6).to(bias).requires_grad_())
    with torch.autocast("cpu", dtype):
        ours, theirs = minblas.linear(*given), functional.linear(*given)
        assert minblas.mm(x, weight.mT).dtype == torch.mm(x, weight.mT).dtype == dtype
    assert ours.dtype == theirs.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    for mine, right in zip(torch.autograd.grad(ours.sum(), given), torch.autograd.grad(theirs.sum(), given), strict=True):
        assert mine.dtype == right.dtype
        torch.testing.assert_close(mine, right, rtol=3e-2, atol=3e-2)


def test_autocast_leaves_what_torch_leaves():
    with torch.autocast("cpu", torch.bfloat16):
        assert minblas.mm(A.double(), B.double()).dtype == torch.mm(A.double(), B.double()).dtype == torch.float64
        assert minblas.mm(A.long(), B.long()).dtype == torch.int64
        assert minblas.gemm(A, B, out_dtype="fp32").dtype == torch.float32
        out = torch.empty(5, 3)
        assert minblas.gemm(A, B, out=out) is out  # as torch.mm(out=): nothing is cast
        torch.testing.assert_close(out, torch.mm(A, B, out=torch.empty(5, 3)))
        with pytest.raises(minblas.errors.DTypeError, match=r"a is torch\.float64 and b is torch\.bfloat16"):
            minblas.gemm(A.double(), B)
        with torch.autocast("cpu", enabled=False):
            assert minblas.mm(A, B).dtype == torch.float32
    assert minblas.mm(A, B).dtype == torch.float32


def test_autocast_is_noticed_by_a_warm_call():
    for _ in range(3):
        assert minblas.gemm(A, B).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert [minblas.gemm(A, B).dtype for _ in range(3)] == [torch.bfloat16] * 3


# --- modes ---------------------------------------------------------------------------------------------------------------------


class Log(TorchDispatchMode):
    """What it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("warm", [False, True])
def test_a_dispatch_mode_sees_one_op(warm):
    leaf = A.clone().requires_grad_()
    for _ in range(3 * warm):
        minblas.gemm(A, B)
    with Log() as inner, Log() as outer:
        minblas.gemm(A, B)
        minblas.gemm(A, B, out=torch.empty(5, 3))
        minblas.gemm(leaf, B).sum().backward()
    wanted = [GEMM, GEMM_OUT, GEMM, GEMM]
    for log in (inner, outer):
        assert [func for func in log.seen if func in (GEMM, GEMM_OUT)] == wanted
        assert not [func for func in log.seen if func in (torch.ops.aten.mm.default, torch.ops.aten.empty_strided.default)]


def test_what_a_mode_leaves_switched_off_is_not_asked_again():
    """A mode that computes with dispatch switched off, others being active beneath it: no endless handing back and forth."""
    with Log() as log, torch._C._DisableTorchDispatch():
        torch.testing.assert_close(minblas.gemm(A, B), A @ B)
        torch.testing.assert_close(GEMM(A, B), A @ B)
    assert log.seen == []


def test_fake_tensors():
    with FakeTensorMode() as mode:
        a, b = mode.from_tensor(A), mode.from_tensor(B)
        for function in (minblas.gemm, minblas.mm):
            assert isinstance(function(a, b), FakeTensor)
        with pytest.raises(minblas.errors.ShapeError, match="a's last dimension"):
            minblas.gemm(a, a)
        with pytest.raises(minblas.errors.DTypeError, match="inputs of one dtype"):
            minblas.gemm(a, b.half())
        with pytest.raises(minblas.errors.ArgumentError, match="alpha is a tensor of shape"):
            minblas.gemm(a, b, a)
        scaled = minblas.gemm(a, b, torch.tensor(2.0))
    assert isinstance(minblas.linear(a, b.mT, torch.nn.Parameter(mode.from_tensor(BIAS))), FakeTensor)
    assert isinstance(scaled, FakeTensor)
    assert not minblas.stats().quarantined


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic", "pre_dispatch"])
def test_make_fx_records_the_op(mode):
    options = {"pre_dispatch": True} if mode == "pre_dispatch" else {"tracing_mode": mode}
    out = torch.empty(5, 3)
    graph = make_fx(lambda a, b, out: minblas.gemm(a, b) + minblas.gemm(a, b, out=out), **options)(A, B, out)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [GEMM, GEMM_OUT, torch.ops.aten.add.Tensor]
    torch.testing.assert_close(graph(A, B, out), 2 * A @ B)
    assert not minblas.stats().quarantined


def test_make_fx_of_a_gradient():
    def function(a, b):
        return torch.autograd.grad(minblas.gemm(a, b, activation="gelu").sum(), (a, b))

    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    graph = make_fx(function, tracing_mode="symbolic")(a, b)
    assert [node.target for node in graph.graph.nodes].count(GEMM) == 4  # forward, again for the activation, two gradients
    torch.testing.assert_close(graph(a, b), function(a, b))


def test_functionalize():
    torch.testing.assert_close(functionalize(lambda a, b: minblas.gemm(a, b).add_(1))(A, B), A @ B + 1)
    graph = make_fx(functionalize(lambda a, b: minblas.gemm(a, b).add_(1)))(A, B)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [GEMM, torch.ops.aten.add.Tensor]
    with pytest.raises(RuntimeError, match="minblas::gemm_out"):  # torch: no op that writes, through this transform
        functionalize(lambda a, b: minblas.gemm(a, b, out=torch.empty(5, 3)))(A, B)


@pytest.mark.filterwarnings("ignore")
def test_jit_trace():
    traced = torch.jit.trace(lambda a, b: minblas.gemm(a, b) + 1, (A, B))
    assert "minblas::gemm" in str(traced.graph)
    other = torch.randn(9, 7)
    torch.testing.assert_close(traced(other, B), other @ B + 1)
    assert not minblas.stats().quarantined


# --- subclasses ----------------------------------------------------------------------------------------------------------------


def test_a_subclass_is_taken_apart_by_itself():
    a = TwoTensor(A.clone(), 2 * A).requires_grad_()
    b = torch.nn.Parameter(B.clone())
    result = minblas.linear(a, b.mT, BIAS)
    assert type(result) is TwoTensor
    result.sum().backward()
    assert type(a.grad) is TwoTensor
    torch.testing.assert_close(result.b, 2 * A @ B + BIAS)
    torch.testing.assert_close(a.grad.a, B.sum(1).expand(5, 7))
    torch.testing.assert_close(b.grad.b, 2 * A.sum(0).unsqueeze(1).expand(7, 3))
    assert type(minblas.gemm(A, TwoTensor(B, B))) is TwoTensor
    out = TwoTensor(torch.empty(5, 3), torch.empty(5, 3))
    assert minblas.gemm(A, TwoTensor(B, 3 * B), out=out) is out
    torch.testing.assert_close(out.b, 3 * A @ B)


def test_parameters_and_meta():
    assert type(minblas.mm(torch.nn.Parameter(A), B).detach()) is torch.Tensor
    made = minblas.mm(A.to("meta"), B.to("meta").requires_grad_())
    assert made.is_meta
    assert made.requires_grad
