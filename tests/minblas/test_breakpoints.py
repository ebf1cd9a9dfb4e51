"""Walking along a range of M, on answers made up for the purpose."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minblas.breakpoints import walk


def asked(values, answer, **more):
    seen = []

    def ask(value):
        seen.append(value)
        return answer(value)

    return walk(values, ask, **more), seen


def test_every_value_of_a_short_range_is_asked_about_once():
    found, seen = asked(range(1, 101), lambda m: m % 7)
    assert found.exact
    assert seen == list(range(1, 101))
    assert found.answers == {m: m % 7 for m in range(1, 101)}


def test_runs_are_of_neighbours():
    found, _ = asked([1, 2, 3, 8, 9], lambda m: m > 2)
    assert [[m for m, _ in run] for run in found.runs(lambda answer: answer)] == [[1, 2], [3, 8, 9]]


@pytest.mark.parametrize("edge", [5001, 7777, 31_000, 39_000])
def test_a_single_change_in_a_long_range_is_found_to_the_value(edge):
    found, seen = asked(range(1, 40_001), lambda m: m >= edge)
    assert not found.exact
    assert len(seen) == len(set(seen)) < 6000
    for divisor in (1, 2, 4, 8, 16):
        mine = [m for m in found.answers if math.gcd(m, 256) == divisor]
        last, first = max(m for m in mine if m < edge), min(m for m in mine if m >= edge)
        assert first - last == (2 * divisor)  # neighbours among the values that this power of two divides


def test_what_divides_m_is_told_apart_in_a_long_range():
    found, _ = asked(range(1, 40_001), lambda m: (m % 64 == 0, math.gcd(m, 16)))
    assert {answer for m, answer in found.answers.items() if m > 20_000} == {(False, d) for d in (1, 2, 4, 8, 16)} | {(True, 16)}


def test_marked_values_and_their_neighbours_are_asked_about():
    found, _ = asked(range(1, 40_001), lambda m: m == 12_345, marks=[12_345, 99_999])
    assert found.answers[12_345]
    assert not found.answers[12_343]
    assert not found.answers[12_347]


@settings(max_examples=30, deadline=None)
@given(first=st.integers(0, 500), count=st.integers(0, 300), step=st.integers(1, 9), most=st.integers(1, 400))
def test_what_is_answered_is_right_whatever_the_range(first, count, step, most):
    values = range(first, first + count * step, step)
    found, seen = asked(values, lambda m: m * m % 11, most_exact=most)
    assert found.total == len(values)
    assert set(found.answers) <= set(values)
    assert list(found.answers) == sorted(found.answers)
    assert all(found.answers[m] == m * m % 11 for m in found.answers)
    assert len(seen) == len(found.answers)
    assert found.exact == (len(found.answers) == len(values))
