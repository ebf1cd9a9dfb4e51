"""The tuner's oracle: right results pass, wrong ones do not, whichever way they are judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from heuristics.archs import ARCHS
from kernel_zoo import catalog
from kernel_zoo.matrices import matrix
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from minblas.oracle import Oracle, exact_affordable

C = Operand.dense("fp16", 200, 120)
PROBLEMS = [
    GemmProblem.of(200, 120, 96, "bf16", "nt"),
    GemmProblem.of(200, 120, 700, "fp16", "tn"),
    GemmProblem.of(64, 48, 40, "bf16", batch=3),
    GemmProblem.of(70, 90, 50, "fp32"),
    GemmProblem.of(200, 120, 64, "fp16", epilogue=Epilogue("x", "x", C, Operand("fp16", 200, 120, (0, 0, 1)), "gelu")),
    GemmProblem.of(200, 120, 64, "bf16", out_dtype="fp32"),
]


def compute(oracle):
    catalog.get("aten").launch(oracle.problem, oracle.slots, oracle.alpha, oracle.beta)
    return matrix(oracle.slots["OUT"], oracle.problem.out, oracle.problem.batch)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.describe())
class TestVerdict:
    def test_right(self, problem, exact):
        oracle = Oracle(problem, "cpu", exact=exact)
        for _ in range(2):  # a verdict leaves the output poisoned for the next candidate
            compute(oracle)
            assert oracle.verdict() == ""

    def test_nothing_written(self, problem, exact):
        oracle = Oracle(problem, "cpu", exact=exact)
        assert "nan instead of" in oracle.verdict()

    def test_one_element_wrong_anywhere(self, problem, exact):
        oracle = Oracle(problem, "cpu", exact=exact)
        out = compute(oracle)
        out[-1, problem.m // 2, problem.n // 3] += 2.0 + abs(out).max()
        assert "1 of" in oracle.verdict()

    def test_a_small_systematic_error(self, problem, exact):
        oracle = Oracle(problem, "cpu", exact=exact)
        out = compute(oracle)
        out *= 1.02
        assert "elements differ from" in oracle.verdict()

    def test_memory_beside_the_output(self, problem, exact):
        oracle = Oracle(problem, "cpu", exact=exact)
        compute(oracle)
        start = oracle.slots["OUT"].storage_offset() * problem.out.itemsize
        oracle.slots.buffer[start - 3] = 0
        assert oracle.verdict() == "memory outside the output was written"
        compute(oracle)
        assert oracle.verdict() == ""


def test_gaps_between_lines_are_guarded():
    problem = GemmProblem.of(16, 16, 16, "bf16")
    problem = replace(problem, out=Operand.of("bf16", 16, 16, (0, 24, 1)))
    oracle = Oracle(problem, "cpu")
    compute(oracle)
    oracle.slots["OUT"][20] = 1.0
    assert "outside" in oracle.verdict()


def test_the_first_wrong_element_is_named():
    problem = GemmProblem.of(500, 300, 64, "bf16")
    oracle = Oracle(problem, "cpu", exact=False, seed=3)
    compute(oracle)[0, 499, 7] = 1e4
    assert "first at (0, 499, 7): 9984 instead of" in oracle.verdict()


def test_fresh_numbers_each_time():
    problem = GemmProblem.of(16, 16, 16)
    first, second = Oracle(problem, "cpu"), Oracle(problem, "cpu")
    assert not torch.equal(matrix(first.slots["A"], problem.a, 1), matrix(second.slots["A"], problem.a, 1))


def test_float64_is_used_where_it_is_cheap():
    large = GemmProblem.of(8192, 8192, 8192)
    assert not exact_affordable(large, ARCHS["h200"])
    assert exact_affordable(GemmProblem.of(4096, 4096, 4096), ARCHS["h200"])
    assert not exact_affordable(GemmProblem.of(4096, 4096, 4096), ARCHS["l4"])


class TestManyMatrices:
    """A float64 copy of a whole large batch would not fit: some of its matrices are held against float64, all against torch."""

    def test_memory_decides_too(self):
        assert not exact_affordable(GemmProblem.of(16, 4096, 7168, "bf16", "nt", batch=256), ARCHS["h200"])

    @pytest.mark.parametrize("matrix_index", [0, 20, 39])
    def test_a_wrong_matrix_is_found_wherever_it_is(self, matrix_index):
        oracle = Oracle(GemmProblem.of(24, 20, 96, "bf16", batch=40), "cpu", exact=False)
        out = compute(oracle)
        assert oracle.verdict() == ""
        out = compute(oracle)
        out[matrix_index] *= 1.5
        assert "elements differ from" in oracle.verdict()

    def test_the_matrix_is_named_by_its_place_in_the_batch(self):
        oracle = Oracle(GemmProblem.of(24, 20, 96, "bf16", batch=40), "cpu", exact=False)
        compute(oracle)[39, 3, 7] = 1e4
        assert "first at (39, 3, 7)" in oracle.verdict()
