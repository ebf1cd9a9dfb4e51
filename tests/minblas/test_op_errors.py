"""What is wrong with a call is said in the same words eager and compiled."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch._dynamo

import minblas
from minblas import errors

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

A, B = torch.randn(5, 7), torch.randn(7, 3)
LEAF = A.clone().requires_grad_()
#: What torch.compile sees while it traces gemm itself: the same error, unless one graph is asked for. By what is given, and needed.
BEFORE = {
    "types": (
        lambda: minblas.gemm(A, B.half()),
        errors.DTypeError,
        "a is torch.float32 and b is torch.float16",
        "inputs of one dtype",
    ),
    "a twin's": (
        lambda: minblas.linear(A, B.mT.double()),
        errors.DTypeError,
        "a is torch.float32 and b is torch.float64",
        "inputs of",
    ),
    "activation": (
        lambda: minblas.gemm(A, B, activation="rleu"),
        errors.ArgumentError,
        "activation is 'rleu'",
        "None or one of relu",
    ),
    "precision": (lambda: minblas.gemm(A, B, precision="tf23"), errors.ArgumentError, "precision is 'tf23'", "one of ieee"),
    "flag": (lambda: minblas.gemm(A, B, trans_a="N"), errors.ArgumentError, "trans_a is 'N'", "True or False"),
    "out_dtype": (lambda: minblas.gemm(A, B, out_dtype="fp17"), errors.DTypeError, "out_dtype is 'fp17'", "a dtype as 'bf16'"),
    "tile": (lambda: minblas.gemm(A, B, tile=(16, 16, 16)), errors.ArgumentError, "tile is (16, 16, 16)", "a minblas.TileConfig"),
    "dimensions": (lambda: minblas.bmm(A, B), errors.ShapeError, "bmm: input is (5, 7)", "3 dimensions"),
    "inner": (
        lambda: minblas.addmm(A, A, A),
        errors.ShapeError,
        "mat1 is (5, 7) and mat2 is (5, 7)",
        "mat1's last dimension equal",
    ),
    "gradient": (
        lambda: minblas.gemm(LEAF, B, out=torch.empty(5, 3)),
        errors.GradientError,
        "a requires a gradient",
        "operands without",
    ),
}
#: What the op says: torch.compile raises an error of its own with the sentence in it, as for torch's own products.
WITHIN = {
    "shapes": (lambda: minblas.gemm(A, A), errors.ShapeError, r"a's last dimension \(7\) equal to b's second to last \(5\)"),
    "addend": (lambda: minblas.gemm(A, B, c=torch.ones(4)), errors.ShapeError, r"c is \(4,\) and the result is \(5, 3\)"),
    "result's type": (lambda: minblas.gemm(A, B, out_dtype="int8"), errors.DTypeError, r"out_dtype is int8 for fp32 inputs"),
    "out": (lambda: minblas.gemm(A, B, out=torch.empty(5, 4)), errors.OutError, r"out is \(5, 4\) and the result is \(5, 3\)"),
    "alpha": (lambda: minblas.gemm(A, B, A), errors.ArgumentError, r"alpha is a tensor of shape \(5, 7\).*did you mean c="),
    "beta": (lambda: minblas.gemm(A, B, 1, 2), errors.ArgumentError, r"beta is 2 and c is None"),
    "variant": (lambda: minblas.gemm(A, B, variant="tild"), errors.UnknownVariantError, r"'tild'"),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", BEFORE)
def test_the_same_error_eager_and_compiled(name):
    function, kind, given, needed = BEFORE[name]
    said = []
    for call in (function, torch.compile(function, backend="eager", dynamic=False)):
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        said.append(str(caught.value))
    assert given in said[0]
    assert f"; needed: {needed}" in said[0]
    assert said[1] == said[0]


@pytest.mark.parametrize("name", BEFORE)
def test_the_same_words_in_one_graph(name):
    function, kind, given, needed = BEFORE[name]
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(function, backend="eager", fullgraph=True, dynamic=False)()
    said = str(caught.value).replace("\\", "")
    assert kind.__name__ in said
    if torch.__version__ >= "2.13":  # before, torch left out what an exception was made with
        assert given in said
        assert needed in said


@pytest.mark.parametrize("name", WITHIN)
def test_eager(name):
    function, kind, words = WITHIN[name]
    with pytest.raises(kind, match=words):
        function()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", WITHIN)
def test_the_same_words_compiled(name, fullgraph):
    function, _, words = WITHIN[name]
    with pytest.raises(RuntimeError, match=words):
        torch.compile(function, backend="eager", fullgraph=fullgraph)()


def test_an_error_survives_pickling_and_has_its_parts():
    error = errors.ShapeError("a is 1", "2", "pass 2")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a is 1; needed: 2; pass 2"
    assert (again.given, again.needed, again.remedy) == ("a is 1", "2", "pass 2")
    assert str(errors.LaunchError("it failed", remedy="try")) == "it failed; try"
    assert str(errors.LaunchError("it failed")) == "it failed"
