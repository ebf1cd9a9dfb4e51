"""Bad input: the error says given, needed, remedy, and out is left as it was."""

from __future__ import annotations

import pickle

import pytest
import torch

import minblas
from minblas import errors
from minblas.errors import MinblasError

A, B = torch.ones(4, 6), torch.ones(6, 5)
SENTINEL = -7.0


def out(*shape, dtype=torch.float32):
    return torch.full(shape or (4, 5), SENTINEL, dtype=dtype)


def refused(kind, words, *args, function=minblas.gemm, python=None, **keywords):
    """The call raises `kind`, its message has all the words, and out= is untouched."""
    target = keywords.get("out")
    before = target.clone() if isinstance(target, torch.Tensor) and target.device.type == "cpu" else None
    with pytest.raises(kind) as caught:
        function(*args, **keywords)
    error = caught.value
    assert isinstance(error, MinblasError)
    assert isinstance(error, RuntimeError)
    if python is not None:
        assert isinstance(error, python)
    message = str(error)
    for word in words:
        assert word in message, message
    assert all((error.given, error.needed, error.remedy)), message
    if before is not None:
        assert torch.equal(target, before)
    return error


def test_shapes_that_do_not_match():
    refused(errors.ShapeError, ["(4, 6)", "(5, 6)", "(6)", "(5)", "trans_b"], A, torch.ones(5, 6), out=out(4, 6), python=ValueError)
    refused(errors.ShapeError, ["(2, 4, 6)", "(3, 6, 5)", "broadcast"], torch.ones(2, 4, 6), torch.ones(3, 6, 5))


def test_vectors():
    refused(errors.ShapeError, ["a is (6,)", "at least 2", "matmul"], torch.ones(6), B)
    refused(errors.ShapeError, ["b is (6,)", "b.unsqueeze"], A, torch.ones(6))
    refused(errors.ArgumentError, ["trans_b", "(6,)"], A, torch.ones(6), trans_b=True)


def test_dtypes():
    refused(errors.DTypeError, ["float32", "float16", "b.to("], A, B.half(), out=out(), python=TypeError)
    refused(errors.DTypeError, ["torch.bool"], A.bool(), B.bool())
    refused(errors.DTypeError, ["c is torch.float64", "fp32"], A, B, 1.0, 1.0, torch.ones(4, 5, dtype=torch.float64))
    refused(errors.DTypeError, ["bias is torch.int32"], A, B, bias=torch.ones(5, dtype=torch.int32), out=out())
    refused(errors.DTypeError, ["out_dtype", "fp16"], A.double(), B.double(), out_dtype="fp16")
    refused(errors.DTypeError, ["out_dtype is 'bf17'"], A, B, out_dtype="bf17")


def test_beta_without_c():
    refused(errors.ArgumentError, ["beta is 0.5", "c is None", "pass c="], A, B, 1.0, 0.5, out=out(), python=ValueError)
    assert minblas.gemm(A, B, 1.0, 0.0, variant="aten").shape == (4, 5)


def test_a_tensor_in_alphas_place():
    refused(errors.ArgumentError, ["alpha is a tensor of shape (4, 5)", "did you mean c= or out=?"], A, B, out())
    refused(errors.ArgumentError, ["beta is a tensor of shape (1,)"], A, B, 1.0, torch.ones(1), torch.ones(4, 5))
    refused(errors.ArgumentError, ["alpha is a str"], A, B, "two")
    assert torch.equal(minblas.gemm(A, B, torch.tensor(2.0), variant="aten"), 2 * (A @ B))


def test_fractions_of_integers_and_complex_scalars():
    whole = torch.ones(4, 6, dtype=torch.int8), torch.ones(6, 5, dtype=torch.int8)
    refused(errors.ArgumentError, ["alpha is 0.5", "int8", "whole"], *whole, 0.5)
    refused(errors.ArgumentError, ["alpha is 1j", "real"], A, B, 1j)
    assert minblas.gemm(*whole, 2.0).eq(12).all()
    refused(errors.ArgumentError, ["alpha is 2.5"], *whole, 2.5)  # the plan of 2.0 is warm


def test_out_of_the_wrong_shape_or_dtype():
    refused(errors.OutError, ["(5, 4)", "(4, 5)", "never resized"], A, B, out=out(5, 4), python=ValueError)
    refused(errors.DTypeError, ["out is fp64", "fp32"], A, B, out=out(dtype=torch.float64))
    refused(errors.DTypeError, ["out is torch.float32 and out_dtype is bf16"], A, B, out=out(), out_dtype="bf16")
    refused(errors.OperandError, ["out is a list"], A, B, out=[1.0], python=TypeError)


def test_out_that_overlaps():
    square = torch.ones(6, 6)
    refused(errors.OverlapError, ["out shares memory with a", "a.clone()"], square, square.clone(), out=square)
    buffer = torch.ones(8, 6)
    refused(errors.OverlapError, ["shares memory with a"], buffer[:4], torch.ones(6, 6), out=buffer[2:6])
    refused(errors.OverlapError, ["shares memory with b"], square.clone(), square, out=square.mT)
    refused(errors.OverlapError, ["strides (0, 1)", "torch.empty"], A, B, out=torch.ones(1, 5).expand(4, 5))
    c = torch.ones(5, 5)
    refused(errors.OverlapError, ["shares memory with c"], torch.ones(5, 6), torch.ones(6, 5), 1.0, 1.0, c, out=c.mT)
    bias = out()
    refused(errors.OverlapError, ["shares memory with bias"], A, B, bias=bias, out=bias)


def test_overlap_is_found_on_a_warm_call_too():
    buffer = torch.ones(8, 4)
    b = torch.ones(4, 4)
    minblas.gemm(buffer[:4], b, out=buffer[4:], variant="aten")
    refused(errors.OverlapError, ["shares memory with a"], buffer[:4], b, out=buffer[:4], variant="aten")
    refused(errors.OverlapError, ["shares memory with a"], buffer[:4], b, out=buffer[2:6], variant="aten")


def test_neighbouring_columns_do_not_overlap():
    buffer = torch.ones(4, 11)
    result = minblas.gemm(buffer[:, :6], B, out=buffer[:, 6:], variant="aten")
    assert result.eq(6).all()
    assert buffer[:, :6].eq(1).all()


def test_out_with_a_gradient():
    leaf = torch.ones(4, 6, requires_grad=True)
    refused(errors.GradientError, ["a requires a gradient", "no_grad"], leaf, B, out=out())
    target = torch.zeros(4, 5, requires_grad=True)
    with pytest.raises(errors.GradientError, match="out requires a gradient"):
        minblas.gemm(A, B, out=target)
    with torch.no_grad():
        assert minblas.gemm(leaf, B, out=target) is target
    scale = torch.tensor(2.0, requires_grad=True)
    refused(errors.GradientError, ["alpha requires a gradient"], A, B, scale)


def test_devices():
    refused(errors.DeviceError, ["a is on cpu and b on meta", "b.to('cpu')"], A, B.to("meta"), out=out(), python=ValueError)


def test_not_tensors():
    refused(errors.OperandError, ["a is a list", "torch.as_tensor"], [[1.0]], B)
    refused(errors.OperandError, ["c is a float"], A, B, 1.0, 1.0, 3.0)
    refused(errors.OperandError, ["sparse", "to_dense()"], A.to_sparse(), B)


def test_a_plan_is_for_tensors_with_memory_of_their_own():
    """gemm goes through the op there: tests/minblas/test_op_transforms.py."""
    planned = torch.vmap(lambda a: minblas.plan(a, B)(a, B))
    refused(errors.OperandError, ["wrapped by a function transform"], torch.ones(2, 4, 6), function=planned)


def test_subclasses():
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return NotImplemented

    refused(errors.OperandError, ["Wrapper", "unwrap"], A.as_subclass(Wrapper), B, function=minblas.plan)
    with pytest.raises(TypeError, match=r"minblas\.gemm.*\n*.*Wrapper"):
        minblas.gemm(A.as_subclass(Wrapper), B)

    class Renamed(torch.Tensor):
        pass

    assert torch.equal(minblas.gemm(A.as_subclass(Renamed), B, variant="aten"), A @ B)


def test_names():
    refused(errors.UnknownVariantError, ["'tild'", "'tiled'"], A, B, variant="tild", out=out(), python=ValueError)
    refused(errors.ArgumentError, ["'rellu'", "'relu'"], A, B, activation="rellu", out=out())
    refused(errors.ArgumentError, ["'tf23'", "'tf32'"], A, B, precision="tf23")
    refused(errors.ArgumentError, ["activation", "complex64"], A.to(torch.complex64), B.to(torch.complex64), activation="relu")
    refused(errors.ArgumentError, ["'activatoin'", "'activation'"], A, B, function=minblas.plan, activatoin="relu")
    with pytest.raises(TypeError):
        minblas.gemm(A, B, activatoin="relu")


def test_a_forced_variant_that_cannot():
    error = refused(errors.VariantError, ["gemv", "m is 8"], torch.ones(8, 8), torch.ones(8, 8), variant="gemv", out=out(8, 8))
    assert error.refusal is not None
    refused(errors.VariantError, ["inputs are fp64"], A.double(), B.double(), variant="tiled")


def test_unhashable_keywords_are_refused_in_words():
    refused(errors.ArgumentError, ["activation is ['relu']"], A, B, activation=["relu"])


def test_errors_survive_pickling():
    error = errors.ShapeError("a is (1,)", "two dimensions", "add one")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.ShapeError
    assert str(again) == str(error)
    assert again.needed == "two dimensions"


def test_every_error_is_exported_and_catchable():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), MinblasError)


def test_shapes_are_told_as_they_were_given_and_only_turns_that_fit_are_proposed():
    message = str(refused(errors.ShapeError, ["a is (4, 6) with trans_a=True", "leave trans_a away"], A, B, trans_a=True))
    assert "a's second to last dimension (4) equal to b's second to last (6)" in message
    assert "trans_b" not in message
    refused(errors.ShapeError, ["no transpose"], A, torch.ones(7, 9))
    refused(errors.ShapeError, ["pass trans_a=True (or a.mT)"], torch.ones(6, 4), B)


def test_torchs_names_tell_their_own_arguments():
    refused(errors.ShapeError, ["mat1 is (6, 5)", "comes first"], A, B, torch.ones(4, 5), function=minblas.addmm)
    refused(errors.ShapeError, ["weight is (6, 5)", "(out, in)", "weight.mT"], A, B, function=minblas.linear)
    three = [tensor.expand(2, *tensor.shape) for tensor in (A, B, torch.ones(4, 5))]
    refused(errors.ShapeError, ["batch1 is (2, 6, 5)", "comes first"], *three, function=minblas.baddbmm)


@pytest.mark.parametrize("name", ["trans_a", "trans_b", "deterministic", "batch_invariant"])
def test_letters_are_no_flags(name):
    """BLAS's "N" would count as True."""
    refused(errors.ArgumentError, [f"{name} is 'N'", "False"], A, B, **{name: "N"})


def test_text_is_no_number_and_a_tuple_no_tile():
    refused(errors.ArgumentError, ["alpha is a str"], A, B, "2")
    refused(errors.ArgumentError, ["tile is (16, 16, 16)", "TileConfig"], A, B, variant="tiled", tile=(16, 16, 16))
