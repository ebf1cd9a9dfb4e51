"""aten, the net: everything the Triton variants refuse, with the project's numbers."""

import pytest
import torch

from kernel_zoo import catalog
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import ACTIVATIONS, ITEMSIZE, Epilogue, GemmProblem, Operand, TileConfig, accumulator_dtype
from tests.kernel_zoo.cases import H200, Case, bias_operand, operand

ATEN = catalog.get("aten")


def test_it_is_opaque_and_refuses_nothing():
    assert ATEN.recipe is None
    assert list(ATEN.space(GemmProblem.of(4, 5, 6), H200)) == []
    for dtype in ITEMSIZE:
        assert ATEN.refusal(GemmProblem.of(4, 5, 6, dtype), H200, TileConfig(16, 16, 16)) is None


@pytest.mark.parametrize(
    "dtype", ["fp64", "fp32", "fp16", "bf16", "fp8e4m3", "fp8e5m2", "int8", "uint8", "int32", "complex64", "complex128"]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_dtype_is_right(dtype, batch):
    acc = accumulator_dtype(dtype)
    for epilogue in (Epilogue(), Epilogue("x", "1", operand(acc, 5, 7, batch, pad="odd"), bias_operand("n", acc, 5, 7, batch))):
        problem = GemmProblem.of(5, 7, 9, dtype, "nt", batch=batch, epilogue=epilogue)
        verdict = Case(ATEN, problem, None, H200, 2.0 if epilogue.alpha == "x" else 1.0, 1.0 if epilogue.c else 0.0).run()
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_scalars_c_bias_and_activation_are_applied_before_the_one_rounding(dtype):
    """Chosen so that a rounding of the product, or after adding C, would show: each exact sum is representable only at the end."""
    problem = GemmProblem.of(
        1, 1, 2, dtype, epilogue=Epilogue("x", "x", Operand.dense(dtype, 1, 1), Operand(dtype, 1, 1, (0, 0, 0)))
    )
    slots = make_slots(problem, seed=1)
    big = 2.0**12
    matrix(slots["A"], problem.a, 1).copy_(torch.tensor([[big, 1.0]]))
    matrix(slots["B"], problem.b, 1).copy_(torch.tensor([[1.0], [1.0]]))
    matrix(slots["C"], problem.epilogue.c, 1).fill_(-big / 2)
    matrix(slots["BIAS"], problem.epilogue.bias, 1).fill_(-big / 2)
    ATEN.launch(problem, slots, 0.5, 0.5)
    exact = torch.tensor(0.5 * (big + 1) - 0.25 * big - 0.5 * big)
    assert matrix(slots["OUT"], problem.out, 1).item() == exact.to(slots["OUT"].dtype).item()
    ATEN.launch(problem, slots, 1.0, 1.0)
    assert float(matrix(slots["OUT"], problem.out, 1)) == 1.0


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_activations_keep_infinities_and_nan(dtype, activation):
    problem = GemmProblem.of(1, 32, 0, dtype, epilogue=Epilogue("0", "1", Operand.dense(dtype, 1, 32), None, activation))
    slots = make_slots(problem, seed=1)
    row = matrix(slots["C"], problem.epilogue.c, 1)[0, 0]
    row[0:16], row[20], row[24] = float("inf"), float("nan"), -float("inf")
    slots.inputs = {}
    ATEN.launch(problem, slots, 0.0, 1.0)
    verdict = verify(problem, slots, 0.0, 1.0)
    assert verdict.ok, verdict.message


def test_the_scalars_of_fp64_keep_their_bits():
    problem = GemmProblem.of(8, 8, 8, "fp64", epilogue=Epilogue("x", "x", Operand.dense("fp64", 8, 8)))
    assert Case(ATEN, problem, None, H200, 0.1, 1 / 3).run().ok


def test_int8_products_do_not_wrap_in_int8():
    problem = GemmProblem.of(2, 2, 16, "int8")
    slots = make_slots(problem, seed=1)
    matrix(slots["A"], problem.a, 1).fill_(127)
    matrix(slots["B"], problem.b, 1).fill_(127)
    ATEN.launch(problem, slots, 1.0, 0.0)
    assert matrix(slots["OUT"], problem.out, 1).tolist() == [[[127 * 127 * 16] * 2] * 2]


def test_int32_wraps_as_the_hardware_does():
    problem = GemmProblem.of(1, 1, 2, "int32")
    slots = make_slots(problem, seed=1)
    matrix(slots["A"], problem.a, 1).fill_(2**30)
    matrix(slots["B"], problem.b, 1).fill_(3)
    ATEN.launch(problem, slots, 1.0, 0.0)
    assert int(matrix(slots["OUT"], problem.out, 1)) == (6 * 2**30 + 2**31) % 2**32 - 2**31


def test_a_shared_matrix_serves_the_batch_and_nothing_lies_behind_it():
    a, b = operand("fp32", 4, 5, 3, shared=True, pad="odd"), operand("fp32", 5, 6, 3)
    assert Case(ATEN, GemmProblem(3, 4, 6, 5, a, b, operand("fp32", 4, 6, 3), precision="ieee"), None, H200).run().ok
