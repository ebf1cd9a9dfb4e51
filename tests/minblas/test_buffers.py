"""Buffer sets: apart from each other, aligned as the problem says, and enough of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from kernel_zoo.matrices import matrix
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from minblas.buffers import MAX_SETS, Bank, buffer_sets, count_sets, footprint, scalars

C = Operand.dense("fp32", 48, 40)
PROBLEMS = [
    GemmProblem.of(48, 40, 32, "bf16"),
    GemmProblem.of(48, 40, 32, "fp32", "tn", batch=3),
    GemmProblem.of(48, 40, 32, "int8"),
    GemmProblem.of(48, 40, 32, "fp8e4m3", "nt"),
    GemmProblem.of(1, 40, 33, "fp16", epilogue=Epilogue("x", "x", replace(C, rows=1), Operand("fp16", 1, 40, (0, 0, 1)))),
    replace(GemmProblem.of(48, 40, 32, "fp16"), a=Operand("fp16", 48, 32, (0, 35, 1), 2)),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.describe())
def test_sets_are_apart_and_aligned(problem):
    sets = buffer_sets(problem, "cpu", 5)
    taken = []
    for slots in sets:
        assert set(slots) == set(problem.operands)
        for name, operand in problem.operands.items():
            address = slots[name].data_ptr()
            assert address % operand.align == 0
            if operand.align < 16:
                assert address % 16 == operand.align
            end = address + (operand.last_offset(problem.batch) + 1) * operand.itemsize
            taken.append((address, end))
    taken.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))


def test_inputs_are_normal():
    problem = GemmProblem.of(256, 256, 256, "bf16")
    a = matrix(buffer_sets(problem, "cpu", 2)[1]["A"], problem.a, 1).float()
    assert abs(float(a.mean())) < 0.02
    assert abs(float(a.std()) - 1) < 0.02


def test_a_bank_is_filled_once(monkeypatch):
    bank = Bank("cpu")
    big, small = GemmProblem.of(128, 128, 128), GemmProblem.of(64, 64, 64)
    first = bank.sets(big, 2)[0]["A"].data_ptr()
    assert bank.sets(small, 2)[0]["A"].data_ptr() == first
    bank.sets(GemmProblem.of(512, 512, 512), 2)
    assert bank.sets(small, 1)[0]["A"].untyped_storage().nbytes() >= 2 * 512 * 512 * 2


def test_how_many():
    assert count_sets(GemmProblem.of(8192, 8192, 8192), 50 << 20) == 1
    assert count_sets(GemmProblem.of(16, 16, 16), 50 << 20) == MAX_SETS
    middle = GemmProblem.of(1024, 1024, 1024)
    count = count_sets(middle, 50 << 20)
    assert count * sum(footprint(operand, 1) for operand in middle.operands.values()) >= 100 << 20


def test_scalars_differ_and_are_whole_for_integers():
    of = GemmProblem.of
    assert scalars(of(4, 4, 4)) == (1.0, 0.0)
    assert scalars(of(4, 4, 4, epilogue=Epilogue("x", "x", C))) == (1.25, -0.75)
    assert scalars(of(4, 4, 4, "int8", epilogue=Epilogue("x", "x", C))) == (3.0, -2.0)
    assert buffer_sets(of(4, 4, 4, "int8"), torch.device("cpu"), 1)[0]["A"].dtype == torch.int8
