"""The oracle itself: it accepts what is right and finds each kind of wrong."""

import math

import pytest
import torch
from torch.nn import functional

from kernel_zoo import reference
from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.reference import error_bound, make_slots, poison, reference64, verify
from kernel_zoo.spec import ACTIVATIONS, Epilogue, GemmProblem, Operand
from tests.kernel_zoo.cases import bias_operand, operand

FLOATS = ("fp16", "bf16", "fp32", "fp64")


def padded(dtype="fp16", m=5, n=7, k=9, batch=2, **epilogue):
    return GemmProblem(
        batch,
        m,
        n,
        k,
        operand(dtype, m, k, batch, pad="odd", align="item"),
        operand(dtype, k, n, batch, layout="t", pad="aligned"),
        operand(dtype, m, n, batch, pad="odd", align="item"),
        Epilogue(**epilogue),
        "ieee" if dtype == "fp32" else "",
    )


def full(dtype="fp16", activation="none"):
    return padded(
        dtype,
        alpha="x",
        beta="x",
        c=operand(dtype, 5, 7, 2, pad="odd"),
        bias=bias_operand("n", "fp32", 5, 7, 2),
        activation=activation,
    )


def answer(problem, slots, alpha=1.0, beta=0.0):
    """The right result, rounded once, in OUT."""
    value = reference64(problem, slots, alpha, beta)
    matrix(slots["OUT"], problem.out, problem.batch).copy_(value.to(TORCH_DTYPES[problem.out.dtype]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_right_result_passes_with_room(dtype):
    problem = full(dtype)
    slots = make_slots(problem, seed=1)
    answer(problem, slots, 1.2, 2.0)
    verdict = verify(problem, slots, 1.2, 2.0)
    assert verdict.ok
    assert verdict.message == "right"
    assert verdict.worst <= 0.5


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_error_of_a_few_roundings_is_found(dtype):
    problem = padded(dtype)
    slots = make_slots(problem, seed=1)
    answer(problem, slots)
    out = matrix(slots["OUT"], problem.out, 2)
    largest = int(reference64(problem, slots)[1].abs().argmax())
    row, col = divmod(largest, problem.n)
    steps = 16 if dtype in ("fp16", "bf16") else 64
    out[1, row, col] *= 1 + steps * torch.finfo(out.dtype).eps
    verdict = verify(problem, slots)
    assert not verdict.ok
    assert verdict.worst > 1
    assert verdict.message.startswith(f"1 of 70 elements wrong, first at (1, {row}, {col})")


def test_what_was_not_written_is_counted():
    problem = padded()
    slots = make_slots(problem, seed=1)
    assert "70 elements never written" in verify(problem, slots).message
    answer(problem, slots)
    fresh = make_slots(problem, seed=1)
    matrix(slots["OUT"], problem.out, 2)[0, 2] = matrix(fresh["OUT"], problem.out, 2)[0, 2]
    verdict = verify(problem, slots)
    assert not verdict.ok
    assert "7 of 70 elements wrong, first at (0, 2, 0)" in verdict.message
    assert "7 elements never written" in verdict.message


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_integers_are_exact_and_poisoned_too(dtype):
    problem = padded(dtype)
    slots = make_slots(problem, seed=1)
    assert "70 elements never written" in verify(problem, slots).message
    answer(problem, slots)
    assert verify(problem, slots).ok
    matrix(slots["OUT"], problem.out, 2)[1, 4, 6] += 1
    assert "1 of 70 elements wrong, first at (1, 4, 6)" in verify(problem, slots).message


@pytest.mark.parametrize("offset", [-1, 7])
def test_a_write_between_the_lines_of_out_is_found(offset):
    problem = padded()
    slots = make_slots(problem, seed=1)
    answer(problem, slots)
    start = slots["OUT"].storage_offset()
    slots["OUT"].as_strided((1,), (1,), start + offset).fill_(0.0)
    verdict = verify(problem, slots)
    assert not verdict.ok
    assert "2 guard bytes overwritten" in verdict.message
    assert ("2 bytes before OUT" if offset < 0 else "between OUT's lines, 14 bytes from its start") in verdict.message


def test_a_write_past_the_end_and_one_beside_an_input_are_found():
    problem = padded()
    for name, where in (("OUT", "past OUT's end"), ("A", "past A's end")):
        slots = make_slots(problem, seed=1)
        answer(problem, slots)
        end = slots[name].storage_offset() + problem.operands[name].last_offset(2) + 1
        slots[name].as_strided((1,), (1,), end).fill_(1.0)
        assert where in verify(problem, slots).message


def test_a_write_to_an_input_is_found():
    problem = full()
    slots = make_slots(problem, seed=1)
    answer(problem, slots, 1.2, 2.0)
    matrix(slots["C"], problem.epilogue.c, 2)[1, 1, 1] += 1
    answer(problem, slots, 1.2, 2.0)
    assert verify(problem, slots, 1.2, 2.0).message == "input C was overwritten"


@pytest.mark.parametrize(("value", "planted"), [(math.nan, 0.0), (0.0, math.nan), (math.inf, -math.inf), (1.0, math.inf)])
def test_nan_and_inf_must_be_where_the_mathematics_says(value, planted):
    problem = padded("fp32", m=3, n=4, k=2, batch=1)
    slots = make_slots(problem, seed=1)
    if planted != 0.0:
        matrix(slots["A"], problem.a, 1)[0, 1, :] = planted
        matrix(slots["B"], problem.b, 1).abs_()
        slots.inputs = {}
    answer(problem, slots)
    assert verify(problem, slots).ok
    matrix(slots["OUT"], problem.out, 1)[0, 1, 2] = value
    assert "1 of 12 elements wrong, first at (0, 1, 2)" in verify(problem, slots).message


def test_special_inputs_reach_some_elements_and_leave_others_finite():
    problem = full("fp16")
    slots = make_slots(problem, seed=1, fill="special")
    value = reference64(problem, slots, 1.2, 2.0)
    assert value.isnan().any()
    assert value.isinf().any()
    assert value.isfinite().any()
    answer(problem, slots, 1.2, 2.0)
    assert verify(problem, slots, 1.2, 2.0).ok


def test_overflow_of_the_output_type_is_right_and_a_missing_one_is_not():
    problem = padded("fp16")
    slots = make_slots(problem, seed=1, fill="large")
    answer(problem, slots)
    out = matrix(slots["OUT"], problem.out, 2)
    assert out.isinf().any()
    assert verify(problem, slots).ok
    where = tuple(out.isinf().nonzero()[0])
    out[where] = 65504.0 * out[where].sign()
    assert not verify(problem, slots).ok


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_reference_is_torch_in_float64(activation):
    problem = full("fp32", activation)
    slots = make_slots(problem, seed=1)
    a, b, c, bias = (matrix(slots[name], problem.operands[name], 2).double() for name in ("A", "B", "C", "BIAS"))
    act = {
        "none": lambda x: x,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
        "leaky_relu": functional.leaky_relu,
    }[activation]
    torch.testing.assert_close(reference64(problem, slots, 1.2, 2.0), act(1.2 * torch.bmm(a, b) + 2.0 * c + bias))


def test_beta_0_reads_no_c_and_alpha_0_reads_no_a_or_b():
    problem = full("fp32")
    slots = make_slots(problem, seed=1)
    for name, scalars in (("C", (1.2, 0.0)), ("A", (0.0, 2.0)), ("B", (0.0, 2.0))):
        poisoned = dict(slots)
        poisoned[name] = torch.full_like(slots[name], math.nan)
        assert reference64(problem, poisoned, *scalars).isfinite().all()
        assert not reference64(problem, poisoned, 1.2, 2.0).isfinite().any()


def test_operands_have_exactly_the_strides_and_alignment_asked_for():
    problem = full("fp16")
    slots = make_slots(problem, seed=1)
    for name, given in problem.operands.items():
        address = slots[name].data_ptr()
        assert math.gcd(address, 16) == given.align
        assert slots[name].numel() == given.last_offset(2) + 1
        assert (matrix(slots[name], given, 2).isnan().any()) == (name == "OUT")


def test_gaps_between_lines_are_0xff_and_a_broadcast_dimension_holds_one_value():
    given = Operand("fp16", 4, 3, (0, 5, 1))
    row = Operand("fp16", 4, 3, (0, 0, 1))
    problem = GemmProblem(
        2, 4, 3, 4, operand("fp16", 4, 4), operand("fp16", 4, 3), operand("fp16", 4, 3, 2), Epilogue("1", "1", given, row)
    )
    slots = make_slots(problem, seed=1)
    gap = slots["C"].as_strided((3, 2), (5, 1), slots["C"].storage_offset() + 3)
    assert (gap.contiguous().view(torch.uint8) == 0xFF).all()
    assert matrix(slots["C"], given, 2).isfinite().all()
    assert slots["BIAS"].numel() == 3
    assert (matrix(slots["BIAS"], row, 2) == slots["BIAS"]).all()


def test_a_seed_repeats_and_without_one_torchs_generator_is_drawn_from():
    problem = padded()
    assert torch.equal(make_slots(problem, seed=3)["A"], make_slots(problem, seed=3)["A"]) is False  # NaN gaps
    draw = [matrix(make_slots(problem, seed=seed)["A"], problem.a, 2) for seed in (3, 3, 4)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])
    torch.manual_seed(5)
    first = matrix(make_slots(problem)["A"], problem.a, 2)
    assert not torch.equal(first, matrix(make_slots(problem)["A"], problem.a, 2))
    torch.manual_seed(5)
    assert torch.equal(first, matrix(make_slots(problem)["A"], problem.a, 2))


def test_an_impossible_alignment_is_an_error():
    problem = GemmProblem(
        1, 2, 2, 2, operand("fp32", 2, 2), operand("fp32", 2, 2), Operand("fp32", 2, 2, (0, 2, 1), align=2), precision="ieee"
    )
    with pytest.raises(ValueError, match="OUT has 4-byte elements and an address aligned to 2"):
        make_slots(problem)


def test_without_guards_values_are_judged_the_same():
    problem = padded()
    slots = make_slots(problem, seed=1, guard=False)
    assert "never written" in verify(problem, slots).message
    answer(problem, slots)
    slots["OUT"].as_strided((1,), (1,), slots["OUT"].storage_offset() + 7).fill_(0.0)
    assert verify(problem, slots).ok
    assert verify(problem, dict(slots)).ok


def test_poison_makes_a_right_result_wrong_again():
    for dtype in ("fp16", "fp32", "int32", "complex64"):
        problem = padded(dtype)
        slots = make_slots(problem, seed=1)
        answer(problem, slots)
        assert verify(problem, slots).ok
        poison(problem, slots)
        assert "70 elements never written" in verify(problem, slots).message


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(0, 3, 2, 1), (3, 0, 2, 1), (3, 2, 0, 1), (3, 2, 4, 0)])
def test_empty_problems(m, n, k, batch):
    problem = GemmProblem(
        batch, m, n, k, operand("fp32", m, k, batch), operand("fp32", k, n, batch), operand("fp32", m, n, batch), precision="ieee"
    )
    slots = make_slots(problem, seed=1)
    answer(problem, slots)
    assert verify(problem, slots).ok


def test_the_bound_grows_with_the_rounding_of_the_inputs():
    bounds = {}
    for precision in ("ieee", "tf32x3", "bf16x3", "tf32"):
        problem = GemmProblem.of(8, 8, 512, "fp32", precision=precision)
        slots = make_slots(problem, seed=1)
        bounds[precision] = float(error_bound(problem, slots, 1.0, 0.0, reference64(problem, slots)).median())
    assert list(bounds) == sorted(bounds, key=bounds.__getitem__)
    assert bounds["tf32"] > 100 * bounds["ieee"]


def tf32(x, round_to_nearest=True):
    """fp32 with 10 bits of fraction."""
    bits = x.view(torch.int32)
    return (((bits + 0x1000) if round_to_nearest else bits) & -0x2000).view(torch.float32)


@pytest.mark.parametrize("k", [1, 16, 300, 4096])
def test_the_tf32_bound_admits_rounded_inputs_and_stays_near_their_error(k):
    problem = GemmProblem.of(16, 16, k, "fp32", precision="tf32")
    slots = make_slots(problem, seed=k)
    a, b = matrix(slots["A"], problem.a, 1), matrix(slots["B"], problem.b, 1)
    matrix(slots["OUT"], problem.out, 1).copy_(tf32(a).double() @ tf32(b).double())
    verdict = verify(problem, slots)
    assert verdict.ok, verdict.message
    assert verdict.worst > 0.05


def test_the_bound_of_16_bit_types_is_about_two_roundings_of_the_result():
    problem = GemmProblem.of(16, 16, 256, "bf16")
    slots = make_slots(problem, seed=1)
    value = reference64(problem, slots)
    bound = error_bound(problem, slots, 1.0, 0.0, value)
    assert float((bound / value.abs()).median()) < 4 * torch.finfo(torch.bfloat16).eps


def test_every_input_rounding_precision_has_its_unit():
    from kernel_zoo.spec import FP32_PRECISIONS

    assert set(reference.PRODUCT_ERROR) == set(FP32_PRECISIONS) - {"ieee"}
