"""The torch-named functions: torch's arguments, torch's answers."""

from __future__ import annotations

import inspect

import pytest
import torch

import minblas
from minblas import errors


def same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "right"),
    [((6,), (6,)), ((6,), (6, 4)), ((3, 6), (6,)), ((2, 3, 6), (6,)), ((6,), (2, 6, 4)), ((3, 6), (6, 4)),
     ((5, 2, 3, 6), (2, 6, 4)),
     ((0,), (0,)), ((0, 6), (6,)), ((2, 3, 0), (0,)), ((1,), (1,)), ((2, 1, 6), (1, 6, 3))],
)  # fmt: skip
def test_matmul(left, right):
    a, b = torch.randn(left), torch.randn(right)
    expected = torch.matmul(a, b)
    same(minblas.matmul(a, b), expected)
    target = torch.full_like(expected, float("nan"))
    assert minblas.matmul(a, b, out=target) is target
    same(target, expected)


@pytest.mark.parametrize("c", [(), (1,), (4,), (1, 4), (3, 1), (3, 4)])
def test_addmm(c):
    c, a, b = torch.randn(c), torch.randn(3, 5), torch.randn(5, 4)
    same(minblas.addmm(c, a, b), torch.addmm(c, a, b))
    same(minblas.addmm(c, a, b, beta=0.2, alpha=0.6), torch.addmm(c, a, b, beta=0.2, alpha=0.6))
    same(minblas.addmm(torch.full_like(c, float("nan")), a, b, beta=0), a @ b)


def test_batched():
    a, b, c = torch.randn(2, 3, 5), torch.randn(2, 5, 4), torch.randn(4)
    same(minblas.bmm(a, b), torch.bmm(a, b))
    same(minblas.baddbmm(c, a, b, beta=2, alpha=3), torch.baddbmm(c, a, b, beta=2, alpha=3))


@pytest.mark.parametrize("x", [(5,), (3, 5), (2, 3, 5), (2, 1, 2, 3, 5), (0, 5), (3, 0, 5)])
@pytest.mark.parametrize("weight", [(4, 5), (5,), (1, 5)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear(x, weight, biased):
    x, weight = torch.randn(x), torch.randn(weight)
    bias = torch.randn(weight.shape[:-1]) if biased else None
    expected = x @ weight.mT if weight.dim() == 2 else x @ weight  # torch's own linear fails on some of these
    same(minblas.linear(x, weight, bias), expected if bias is None else expected + bias)


def test_out_dtype():
    a, b, c = torch.randn(3, 5).half(), torch.randn(5, 4).half(), torch.randn(3, 4)
    same(minblas.mm(a, b, torch.float32), a.float() @ b.float())
    same(minblas.mm(a, b, out_dtype=torch.float32), a.float() @ b.float())
    same(minblas.addmm(c, a, b, torch.float32), c + a.float() @ b.float())
    same(minblas.bmm(a[None], b[None], torch.float32), (a.float() @ b.float())[None])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_keep_their_type(dtype):
    a, b = torch.randint(0, 99, (3, 5)).to(dtype), torch.randint(0, 99, (5, 4)).to(dtype)
    same(minblas.mm(a, b), torch.mm(a, b))
    same(minblas.matmul(a, b[:, 0]), torch.matmul(a, b[:, 0]))
    same(minblas.linear(a, b.mT), torch.nn.functional.linear(a, b.mT))


def test_signatures_take_torchs_arguments():
    assert [*inspect.signature(minblas.addmm).parameters] == ["input", "mat1", "mat2", "out_dtype", "beta", "alpha", "out"]
    same(minblas.mm(input=torch.eye(3), mat2=torch.ones(3, 2)), torch.ones(3, 2))
    same(minblas.addmm(input=torch.ones(2), mat1=torch.eye(3), mat2=torch.ones(3, 2), beta=0.5), torch.full((3, 2), 1.5))


@pytest.mark.parametrize(
    "call",
    [
        lambda: minblas.mm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        lambda: minblas.mm(torch.ones(3), torch.ones(3, 5)),
        lambda: minblas.bmm(torch.ones(1, 3, 4), torch.ones(2, 4, 5)),
        lambda: minblas.bmm(torch.ones(3, 4), torch.ones(4, 5)),
        lambda: minblas.matmul(torch.ones(()), torch.ones(3)),
        lambda: minblas.matmul(torch.ones(3), torch.ones(4)),
        lambda: minblas.linear(torch.ones(2, 3), torch.ones(2, 3, 4)),
        lambda: minblas.addmm(torch.ones(3, 3), torch.ones(2, 3), torch.ones(3, 4)),
    ],
)
def test_refusals(call):
    with pytest.raises(errors.ShapeError):
        call()


def test_a_vector_out_of_the_wrong_shape():
    target = torch.full((4,), 7.0)
    with pytest.raises(errors.OutError, match=r"\(4,\).*\(3,\)"):
        minblas.matmul(torch.ones(3, 6), torch.ones(6), out=target)
    assert target.eq(7).all()
