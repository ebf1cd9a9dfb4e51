"""Gradients: checked numerically in fp64, against torch in fp32, through every argument."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import minblas
from minblas.cache import CACHE


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


@pytest.mark.parametrize("activation", [None, "gelu", "gelu_tanh", "silu", "leaky_relu", "relu"])
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_everything_at_once(activation, trans):
    a, b = leaf(*((5, 3) if trans[0] else (3, 5))), leaf(*((4, 5) if trans[1] else (5, 4)))

    def function(a, b, c, bias):
        return minblas.gemm(a, b, 0.7, -1.3, c, bias=bias, trans_a=trans[0], trans_b=trans[1], activation=activation)

    operands = (a, b, leaf(3, 1), leaf(4))
    assert gradcheck(function, operands)
    assert gradgradcheck(function, operands)


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4)), ((2, 3, 5), (1, 5, 4)), ((2, 1, 3, 5), (3, 5, 4)), ((2, 2, 3, 5), (5, 4))],
)  # fmt: skip
def test_broadcast_batches(left, right):
    assert gradcheck(minblas.matmul, (leaf(*left), leaf(*right)))


def test_a_shared_weight_is_summed_inside_the_product():
    CACHE.clear()
    x, weight = torch.randn(6, 4, 5, dtype=torch.float64), leaf(3, 5)
    minblas.linear(x, weight).sum().backward()
    assert [plan.problem.batch for plan in CACHE.plans()] == [1, 1]
    assert weight.grad.shape == (3, 5)
    torch.testing.assert_close(weight.grad, x.reshape(-1, 5).sum(0).expand(3, 5))


def test_complex():
    assert gradcheck(
        lambda a, b, c: minblas.gemm(a, b, 0.5 + 1j, 2j, c),
        (leaf(3, 4, dtype=torch.complex128), leaf(4, 2, dtype=torch.complex128), leaf(3, 2, dtype=torch.complex128)),
    )
    assert gradcheck(
        lambda a, b: minblas.gemm(a.conj(), b.mH), (leaf(3, 4, dtype=torch.complex128), leaf(2, 4, dtype=torch.complex128))
    )


@pytest.mark.parametrize("wanted", range(4))
def test_each_operand_alone(wanted):
    operands = [torch.randn(s, dtype=torch.float64) for s in ((3, 5), (5, 4), (3, 4), (4,))]
    operands[wanted].requires_grad_()
    assert gradcheck(lambda a, b, c, bias: minblas.gemm(a, b, 2.0, 3.0, c, bias=bias), tuple(operands))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_give_torchs_gradients(dtype):
    x, weight, bias = (torch.randn(s, dtype=torch.float64) for s in ((2, 9, 20), (12, 20), (12,)))
    ours = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
    theirs = [t.detach().double().requires_grad_() for t in ours]
    minblas.linear(*ours).pow(2).sum().backward()
    torch.nn.functional.linear(*theirs).pow(2).sum().backward()
    for mine, right in zip(ours, theirs, strict=True):
        assert mine.grad.dtype == dtype
        scale = right.grad.abs().max()
        assert (mine.grad.double() - right.grad).abs().max() < (1e-5 if dtype == torch.float32 else 3e-2) * scale


def test_an_expanded_gradient():
    x = leaf(4, 3)
    (minblas.matmul(x, torch.ones(3, dtype=torch.float64))).sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 3, dtype=torch.float64))


def test_nothing_to_multiply_and_empty():
    a, b = leaf(3, 0), leaf(0, 4)
    minblas.mm(a, b).sum().backward()
    assert a.grad.shape == (3, 0)
    assert b.grad.shape == (0, 4)
    a, b = leaf(3, 5), leaf(5, 4)
    minblas.gemm(a, b, 0.0).sum().backward()
    assert a.grad.eq(0).all()
    assert b.grad.eq(0).all()
    a, b = leaf(0, 5), leaf(5, 4)
    minblas.mm(a, b).sum().backward()
    assert b.grad.eq(0).all()


def test_a_wider_result():
    a, b = leaf(4, 6, dtype=torch.float16), leaf(6, 5, dtype=torch.float16)
    result = minblas.gemm(a, b, out_dtype=torch.float32)
    assert result.dtype is torch.float32
    result.sum().backward()
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(4, 6), rtol=2e-3, atol=2e-3)


def test_a_forced_variant_is_for_the_forward_product_only():
    a, b = leaf(1, 64, dtype=torch.float32), leaf(64, 48, dtype=torch.float32)
    with minblas.options(variant="gemv"):
        result = minblas.gemm(a, b)
    result.sum().backward()
    minblas.gemm(a, b, variant="gemv").sum().backward()
    assert b.grad.shape == (64, 48)


def test_options_of_the_forward_pass_hold_in_the_backward_pass():
    a, b = leaf(8, 8, dtype=torch.float32), leaf(8, 8, dtype=torch.float32)
    minblas.stats(reset=True)
    with minblas.options(exclude={"tiled", "tma", "persistent", "split_k", "gemv"}):
        result = minblas.mm(a, b)
    result.sum().backward()
    assert minblas.stats().calls == {"aten": 3}


def test_no_graph_without_need():
    a, b = leaf(3, 4), torch.randn(4, 5, dtype=torch.float64)
    with torch.no_grad():
        assert not minblas.mm(a, b).requires_grad
    assert minblas.mm(a, b).requires_grad
    assert not minblas.mm(a.detach(), b).requires_grad


@pytest.mark.parametrize("wanted", ["a", "out"])
def test_out_is_refused_where_a_gradient_is_wanted_even_after_the_same_call_without(wanted):
    """A plan made under no_grad must not let a later call through: whether a gradient is wanted is no part of its key."""
    operands = {"a": torch.randn(16, 8), "b": torch.randn(8, 12), "out": torch.full((16, 12), 7.0)}
    operands[wanted].requires_grad_()
    with torch.no_grad():
        for _ in range(2):
            minblas.gemm(operands["a"], operands["b"], out=operands["out"])
        operands["out"].fill_(7.0)
    with pytest.raises(minblas.errors.GradientError, match=f"{wanted} requires a gradient"):
        minblas.gemm(operands["a"], operands["b"], out=operands["out"])
    assert bool((operands["out"] == 7.0).all())
