"""Overlap is decided from addresses, sizes and strides; the oracle enumerates bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minblas.overlap import Extent, overlaps, same_elements, self_overlaps, span


def elements(extent: Extent) -> list[int]:
    ranges = (range(size) for size in extent.sizes)
    return [extent.start + sum(i * s for i, s in zip(index, extent.strides, strict=True)) for index in itertools.product(*ranges)]


def touched(extent: Extent) -> set[int]:
    return {start + byte for start in elements(extent) for byte in range(extent.itemsize)}


sizes = st.lists(st.integers(0, 4), min_size=0, max_size=3)


@st.composite
def extents(draw):
    shape = tuple(draw(sizes))
    itemsize = draw(st.sampled_from([1, 2, 4]))
    strides = tuple(itemsize * draw(st.integers(0, 9)) for _ in shape)
    return Extent(itemsize * draw(st.integers(0, 30)), itemsize, shape, strides)


@settings(max_examples=400, deadline=None)
@given(extents(), extents())
def test_no_overlap_is_certain(one, other):
    if not overlaps(one, other):
        assert not touched(one) & touched(other)


@settings(max_examples=400, deadline=None)
@given(extents())
def test_no_self_overlap_is_certain(extent):
    if not self_overlaps(extent):
        assert len(touched(extent)) == extent.itemsize * len(elements(extent))


@settings(max_examples=200, deadline=None)
@given(extents())
def test_span_reaches_the_last_byte(extent):
    memory = touched(extent)
    assert span(extent.sizes, extent.strides, extent.itemsize) == (max(memory) - extent.start + 1 if memory else 0)


def matrix(start: int, rows: int, cols: int, pitch: int, itemsize: int = 4) -> Extent:
    return Extent(start, itemsize, (rows, cols), (pitch * itemsize, itemsize))


def test_columns_of_one_buffer_are_apart():
    assert not overlaps(matrix(0, 4, 6, 11), matrix(24, 4, 5, 11))
    assert not overlaps(matrix(24, 4, 5, 11), matrix(0, 4, 6, 11))
    assert overlaps(matrix(0, 4, 7, 11), matrix(24, 4, 5, 11))
    assert not overlaps(matrix(0, 4, 6, 22), matrix(24, 4, 5, 11))


def test_same_elements_ignores_what_means_nothing():
    one = Extent(64, 4, (1, 5), (999, 4))
    assert same_elements(one, Extent(64, 4, (5,), (4,)))
    assert not same_elements(one, Extent(64, 4, (1, 5), (999, 8)))
    assert not same_elements(one, Extent(68, 4, (1, 5), (999, 4)))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [((4, 5), (0, 4), True), ((4, 5), (20, 4), False), ((1, 5), (0, 4), False), ((3, 3), (4, 4), True)],
)
def test_self_overlap(shape, strides, expected):
    assert self_overlaps(Extent(0, 4, shape, strides)) is expected
