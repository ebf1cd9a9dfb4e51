"""Gradients of the op: reverse, forward and mixed, to any order, plain and inside torch.func's transforms."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional

import minblas
from minblas.op import GEMM, GEMM_OUT
from tests.minblas.op_samples import laid
from tests.minblas.oracle import ACTIVATIONS


def leaf(*shape, dtype=torch.float64, layout="plain"):
    return laid(shape, layout, dtype, grad=True)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_to_second_order_in_both_directions(activation):
    def function(a, b, c, bias):
        return GEMM(a, b, 0.7, -1.3, c, bias, True, True, activation)

    operands = (leaf(3, 2), leaf(4, 3), leaf(2, 1), leaf(4))
    assert gradcheck(function, operands, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, operands, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize(("left", "right"), [((2, 3, 4), (4, 2)), ((3, 4), (2, 4, 2)), ((2, 1, 3, 4), (3, 4, 2))])
def test_broadcast_and_expanded_operands(left, right):
    assert gradcheck(GEMM, (leaf(*left), leaf(*right)), check_forward_ad=True)
    narrow = leaf(1, *left[-2:])
    assert gradcheck(lambda a, b: GEMM(a.expand(2, *left[-2:]), b), (narrow, leaf(*right[-2:])), check_forward_ad=True)


@pytest.mark.parametrize("layout", ["turned", "pitched", "odd"])
def test_strided_operands_and_gradients(layout):
    a, b = leaf(5, 4, layout=layout), leaf(4, 3, layout=layout)
    for gradient in (laid((5, 3), layout), torch.ones(()).double().expand(5, 3), torch.randn(3, 5).double().mT):
        found = torch.autograd.grad(GEMM(a, b), (a, b), gradient)
        torch.testing.assert_close(found, (gradient @ b.detach().mT, a.detach().mT @ gradient))


def test_only_the_gradients_that_are_wanted_are_computed_and_saved():
    """Of a product whose weights are frozen, the activations are not kept."""
    operands = {"a": torch.randn(5, 4), "b": torch.randn(4, 3), "c": torch.randn(5, 3), "bias": torch.randn(3)}
    kept = {"a": ["b"], "b": ["a"], "c": [], "bias": []}
    products = {"a": 1, "b": 1, "c": 0, "bias": 0}
    for wanted, values in kept.items():
        given = {name: x.double().clone().requires_grad_(name == wanted) for name, x in operands.items()}
        for function in (GEMM, minblas.gemm):
            saved = []
            with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x.shape) or x, lambda x: x):
                result = function(given["a"], given["b"], 2.0, 3.0, given["c"], bias=given["bias"])
            assert saved == [given[name].shape for name in values]
            minblas.stats(reset=True)
            (gradient,) = torch.autograd.grad(result, (given[wanted],), torch.ones_like(result))
            assert sum(minblas.stats().calls.values()) == products[wanted]
            assert gradient.shape == given[wanted].shape


def test_no_graph_without_need():
    a, b = leaf(3, 4), torch.randn(4, 5).double()
    assert GEMM(a, b).requires_grad
    assert GEMM(a, b).grad_fn is not None
    with torch.no_grad():
        assert not GEMM(a, b).requires_grad
    with torch.inference_mode():
        assert GEMM(a, b).is_inference()
    assert not GEMM(a.detach(), b).requires_grad


def test_the_op_and_gemm_give_the_same_gradients():
    shapes = ((2, 9, 20), (20, 12), (9, 1), (12,))
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = ([laid(shape, dtype=dtype, grad=True) for shape in shapes] for _ in range(2))
        for one, other in zip(ours, theirs, strict=True):
            other.data.copy_(one.data)
        GEMM(*ours[:2], 1, 2, *ours[2:], False, False, "gelu").pow(2).sum().backward()
        minblas.gemm(*theirs[:2], 1, 2, theirs[2], bias=theirs[3], activation="gelu").pow(2).sum().backward()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.grad, other.grad)


def test_complex():
    operands = (leaf(3, 4, dtype=torch.complex128), leaf(4, 2, dtype=torch.complex128), leaf(3, 2, dtype=torch.complex128))
    assert gradcheck(lambda a, b, c: GEMM(a.conj(), b, 0.5 + 1j, 2j, c), operands, check_forward_ad=True)
    scale = torch.tensor(0.5 + 1j, dtype=torch.complex128)
    assert gradcheck(lambda a, b, c: minblas.gemm(a, b, scale, scale, c), operands)


def test_a_tensor_for_alpha_has_no_gradient():
    scale = torch.tensor(2.0, requires_grad=True, dtype=torch.float64)
    with pytest.raises(minblas.errors.GradientError, match="alpha requires a gradient"):
        GEMM(leaf(3, 4), leaf(4, 2), alpha_tensor=scale)
    with pytest.raises(minblas.errors.GradientError, match="beta requires a gradient"):
        vmap(lambda a: minblas.gemm(a, a, 1.0, scale, a))(torch.ones(2, 3, 3).double())


# --- torch.func ----------------------------------------------------------------------------------------------------------------


def ours(activation, b):
    return lambda a: minblas.gemm(a, b, 0.7, activation=activation).sin().sum()


def theirs(activation, b):
    return lambda a: ACTIVATIONS[activation](0.7 * (a @ b)).sin().sum()


@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_every_order_of_transforms(activation):
    """Up to the third derivative, each forward or in reverse: forward over forward, torch's autograd functions lose terms."""
    a, b = torch.randn(2, 3).double(), torch.randn(3, 2).double()
    for order in (1, 2, 3):
        for kinds in itertools.product((jacfwd, jacrev), repeat=order):
            mine, right = ours(activation, b), theirs(activation, b)
            for kind in kinds:
                mine, right = kind(mine), kind(right)
            torch.testing.assert_close(mine(a), right(a), msg=str(kinds))


def test_transforms_of_addends_and_batches():
    a, b, c, bias = torch.randn(2, 3, 4).double(), torch.randn(4, 5).double(), torch.randn(3, 1).double(), torch.randn(5).double()

    def mine(a, b, c, bias):
        return minblas.gemm(a, b, 2.0, 3.0, c, bias=bias, activation="gelu")

    def right(a, b, c, bias):
        return functional.gelu(2 * a @ b + 3 * c + bias)

    operands = (a, b, c, bias)
    tangents = tuple(map(torch.randn_like, operands))
    torch.testing.assert_close(jvp(mine, operands, tangents), jvp(right, operands, tangents))
    for i in range(4):  # one tangent alone
        alone = tuple(t if j == i else torch.zeros_like(t) for j, t in enumerate(tangents))
        torch.testing.assert_close(jvp(mine, operands, alone), jvp(right, operands, alone))
    cotangent = torch.randn(2, 3, 5).double()
    torch.testing.assert_close(vjp(mine, *operands)[1](cotangent), vjp(right, *operands)[1](cotangent))


def test_gradients_per_sample():
    """vmap of grad: what torch.func is most used for."""
    weight, x = torch.randn(4, 5).double(), torch.randn(6, 3, 4).double()

    def loss(multiply):
        return lambda weight, x: multiply(x, weight).sin().sum()

    found = vmap(grad(loss(minblas.matmul)), in_dims=(None, 0))(weight, x)
    torch.testing.assert_close(found, vmap(grad(loss(torch.matmul)), in_dims=(None, 0))(weight, x))
    found = vmap(hessian(loss(minblas.matmul)), in_dims=(None, 0))(weight, x)
    torch.testing.assert_close(found, vmap(hessian(loss(torch.matmul)), in_dims=(None, 0))(weight, x))


def test_forward_mode_outside_of_torch_func():
    """A dual tensor is an ordinary torch.Tensor that wants no gradient: its tangent must not be lost, warm or cold."""
    a, b, tangent = torch.randn(3, 4).double(), torch.randn(4, 2).double(), torch.randn(3, 4).double()
    for _ in range(2):
        minblas.gemm(a, b)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, tangent)
        for function in (minblas.gemm, minblas.mm, GEMM):
            primal, found = forward_ad.unpack_dual(function(dual, b))
            torch.testing.assert_close(primal, a @ b)
            torch.testing.assert_close(found, tangent @ b)
        assert forward_ad.unpack_dual(minblas.gemm(a, b)).tangent is None
        with pytest.raises(minblas.errors.GradientError, match="has a tangent"):
            minblas.gemm(dual, b, out=torch.empty(3, 2).double())
        with pytest.raises(minblas.errors.GradientError, match="has a tangent"):
            GEMM_OUT(dual, b, torch.empty(3, 2).double())


def test_out_is_refused_where_a_gradient_is_wanted():
    a, b, out = leaf(3, 4), torch.randn(4, 2).double(), torch.full((3, 2), 7.0).double()
    with pytest.raises(minblas.errors.GradientError, match="requires a gradient"):
        GEMM_OUT(a, b, out)
    with pytest.raises(minblas.errors.GradientError, match="requires a gradient"):
        grad(lambda a: GEMM_OUT(a, b, out) or out.sum())(a.detach())
    assert bool((out == 7).all())
    with torch.no_grad():
        GEMM_OUT(a, b, out)
    torch.testing.assert_close(out, a.detach() @ b)
