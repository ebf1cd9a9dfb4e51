"""Shapes as users give them: sizes, ranges that stand for many, problems."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_zoo.spec import GemmProblem
from minblas.errors import ArgumentError
from minblas.shapes import problems_of, steps


@given(st.integers(1, 20000), st.integers(0, 20000))
def test_every_size_of_a_range_is_near_a_step(first, more):
    sizes = range(first, first + more + 1)
    chosen = steps(sizes)
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (sizes[0], sizes[-1])
    assert set(chosen) <= set(sizes)
    assert len(chosen) <= 2 * math.log2(2 * sizes[-1]) + 2
    for size in (sizes[len(sizes) // 3], sizes[len(sizes) // 2], sizes[-1] - more // 7):
        assert min(abs(math.log2(size / step)) for step in chosen) < 0.3


def test_a_range_with_a_step_is_taken_as_it_is():
    assert steps(range(64, 257, 64)) == [64, 128, 192, 256]
    assert steps(range(3, 4)) == [3]
    assert steps(range(0)) == []


def test_ranges_and_sizes_and_problems_mix():
    problem = GemmProblem.of(1, 2, 3)
    found = list(problems_of([(range(1, 5), 8, 16), problem, (2, range(7, 9), 8, 8)]))
    assert [(p.batch, p.m, p.n, p.k) for p in found] == [
        (1, 1, 8, 16), (1, 2, 8, 16), (1, 3, 8, 16), (1, 4, 8, 16), (1, 1, 2, 3), (2, 7, 8, 8), (2, 8, 8, 8)
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [5, (1, 2), (1, 2, "3"), (range(1, 3), 2)])
def test_what_is_no_shape(shape):
    with pytest.raises(ArgumentError, match="needed"):
        list(problems_of([shape]))
