"""From tensors to a GemmProblem: layouts, alignment, batches, folding, settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernel_zoo.spec import GemmProblem, Operand
from minblas import problem as problems
from minblas.cold import Call, describe_call


def described(*arguments, **keywords) -> problems.Described:
    return describe_call(Call.of(*arguments, **keywords))


def problem_of(*arguments, **keywords) -> GemmProblem:
    problem = described(*arguments, **keywords).problem
    assert problem is not None
    return problem


def half(*shape):
    return torch.empty(shape, dtype=torch.float16)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_layouts_are_read_off_the_strides(trans_a, trans_b):
    a, b = half(*((24, 8) if trans_a else (8, 24))), half(*((16, 24) if trans_b else (24, 16)))
    by_keyword = problem_of(a, b, trans_a=trans_a, trans_b=trans_b)
    by_view = problem_of(a.mT if trans_a else a, b.mT if trans_b else b)
    assert by_keyword == by_view == GemmProblem.of(8, 16, 24, "fp16", f"{'nt'[trans_a]}{'nt'[trans_b]}")


def test_size_one_strides_mean_nothing():
    assert problem_of(half(1, 64).as_strided((1, 64), (7, 1)), half(64, 8)) == problem_of(half(1, 64), half(64, 8))
    assert problem_of(half(8, 1), half(1, 8).as_strided((1, 8), (3, 1))) == problem_of(half(8, 1), half(1, 8))


def test_alignment_is_that_of_the_address():
    buffer = half(200)
    for offset, align in ((0, 16), (1, 2), (2, 4), (4, 8), (8, 16), (3, 2)):
        assert problem_of(buffer[offset : offset + 64].view(8, 8), half(8, 8)).a.align == align
        assert problem_of(half(8, 8), half(8, 8), bias=buffer[offset : offset + 8]).epilogue.bias.align == align
        assert problem_of(half(8, 8), half(8, 8), out=buffer[offset : offset + 64].view(8, 8)).out.align == align


def test_a_shared_b_folds_the_batch_into_m():
    assert problem_of(half(2, 3, 4, 8), half(8, 16)) == GemmProblem.of(24, 16, 8, "fp16")
    folded = problem_of(half(2, 3, 8), half(8, 5), 1.0, 1.0, half(2, 3, 5), bias=half(5), out=half(2, 3, 5))
    assert (folded.batch, folded.m) == (1, 6)
    assert folded.epilogue.c.strides == (0, 5, 1)
    assert folded.epilogue.bias.strides == (0, 0, 1)
    assert problem_of(half(7, 1, 8), half(1, 8, 5)).m == 7


@pytest.mark.parametrize(
    "call",
    [
        lambda: {"a": half(2, 6, 8)[:, :3], "b": half(8, 5)},  # rows of a do not continue
        lambda: {"a": half(2, 3, 8), "b": half(2, 8, 5)},  # b is not shared
        lambda: {"a": half(2, 3, 8), "b": half(8, 5), "c": half(3, 5)},  # c repeats
        lambda: {"a": half(2, 3, 8), "b": half(8, 5), "out": half(2, 4, 5)[:, :3]},  # rows of out do not continue
        lambda: {"a": half(2, 3, 8), "b": half(8, 5), "bias": half(2, 1, 5)},  # one bias for each matrix
    ],
)
def test_what_does_not_fold(call):
    problem = problem_of(**call())
    assert (problem.batch, problem.m) == (2, 3)


def test_batches_collapse_to_one_stride():
    problem = problem_of(half(2, 3, 4, 8), half(2, 3, 8, 5))
    assert (problem.batch, problem.a.strides[0], problem.b.strides[0]) == (6, 32, 40)
    assert problem_of(half(4, 8), half(3, 8, 5)).a.strides[0] == 0
    broadcast = described(half(2, 1, 4, 8), half(1, 3, 8, 5))
    assert {slot for slot, _ in broadcast.copies} == {"A", "B"}
    assert broadcast.problem.batch == 6
    assert broadcast.shape == (2, 3, 4, 5)


def test_an_out_that_one_stride_cannot_walk_is_staged():
    target = half(2, 2, 3, 5)[:, :1].expand(2, 1, 3, 5)
    assert not described(half(2, 1, 3, 8), half(8, 5), out=target).staged
    target = torch.empty(3, 2, 4, 5).permute(1, 0, 2, 3)
    assert described(torch.empty(2, 3, 4, 8), torch.empty(2, 3, 8, 5), out=target).staged


def test_nothing_to_multiply():
    assert problem_of(half(4, 8), half(8, 5), 0.0).k == 0
    assert problem_of(half(4, 0), half(0, 5)).k == 0
    assert described(half(0, 8), half(8, 5)).problem is None
    assert described(half(3, 0, 8), half(8, 5)).shape == (3, 0, 5)


def test_scalar_classes_and_unread_c():
    c = half(4, 5)
    for alpha, beta, classes in ((1, 0, "10"), (0.0, 1.0, "01"), (2, -1, "xx"), (float("nan"), 1, "x1"), (-0.0, -0.0, "00")):
        epilogue = problem_of(half(4, 8), half(8, 5), alpha, beta, c).epilogue
        assert epilogue.alpha + epilogue.beta == classes
        assert (epilogue.c is None) == (classes[1] == "0")


def test_expanded_operands_keep_their_zero_strides():
    problem = problem_of(half(1, 8).expand(4, 8), half(8, 1).expand(8, 5), 1, 1, half(1).expand(4, 5))
    assert problem.a.strides[1:] == (0, 1)
    assert problem.b.strides[2] == 0
    assert problem.epilogue.c.strides == (0, 0, 0)


def test_in_place():
    c = half(4, 5)
    assert described(half(4, 8), half(8, 5), 1, 1, c, out=c).in_place
    assert not described(half(4, 8), half(8, 5), 1, 1, c, out=half(4, 5)).in_place


def test_dtype_rules():
    fp8 = torch.float8_e4m3fn
    assert described(half(4, 8), half(8, 5), out_dtype="float32").dtype is torch.float32
    assert described(half(4, 8).to(fp8), half(8, 5).to(fp8)).dtype is torch.bfloat16
    assert described(torch.empty(4, 8, dtype=torch.int8), torch.empty(8, 5, dtype=torch.int8)).dtype is torch.int32
    assert described(half(4, 8), half(8, 5), out=torch.empty(4, 5)).problem.out.dtype == "fp32"
    for c in (half(4, 5), torch.empty(4, 5)):
        described(half(4, 8), half(8, 5), 1, 1, c, out_dtype="bf16")


def test_64_bit_offsets_are_decided_from_strides():
    narrow, wide = (Operand.of("fp16", 3, 4, (0, stride, 1)) for stride in (2**29, 2**30))
    base = GemmProblem.of(3, 4, 4, "fp16")
    assert not replace(base, a=narrow).needs_int64()
    assert replace(base, a=wide).needs_int64()


def test_meta_and_fake_tensors_give_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    import minblas

    made = minblas.gemm(torch.empty(2, 4, 8, device="meta"), torch.empty(8, 5, device="meta"), out_dtype="bf16")
    assert made.device.type == "meta"
    assert made.shape == (2, 4, 5)
    assert made.dtype is torch.bfloat16
    with FakeTensorMode():
        fake = minblas.linear(torch.empty(3, 8), torch.empty(5, 8, requires_grad=True), torch.empty(5))
        assert type(fake).__name__ == "FakeTensor"
        assert fake.shape == (3, 5)
        assert fake.requires_grad
        with pytest.raises(minblas.errors.ShapeError):
            minblas.gemm(torch.empty(3, 8), torch.empty(3, 8))
