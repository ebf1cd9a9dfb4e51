"""Whether two strided tensors share memory, from addresses, sizes and strides alone.

The answer errs on the safe side: False is certain, True means that disjointness could not be shown cheaply.
Leaf: standard library only; nothing here touches a tensor's data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Extent(NamedTuple):
    """A tensor's memory: the byte address of its first element, and its sizes and strides, the strides in bytes."""

    start: int
    itemsize: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + span(self.sizes, self.strides, self.itemsize)


def span(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes from the first element to the end of the last; 0 where there are no elements. Strides in bytes."""
    if 0 in sizes:
        return 0
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + itemsize


def overlaps(one: Extent, other: Extent) -> bool:
    """Whether the two may share a byte."""
    if one.end == one.start or other.end == other.start or one.end <= other.start or other.end <= one.start:
        return False
    return not _interleaved(one, other)


def same_elements(one: Extent, other: Extent) -> bool:
    """Whether both are the same matrix: equal addresses, sizes and strides, apart from strides that mean nothing."""
    return one.start == other.start and one.itemsize == other.itemsize and _meaning(one) == _meaning(other)


def self_overlaps(extent: Extent) -> bool:
    """Whether two elements of one tensor may share memory: an expanded dimension, or strides smaller than what they step over."""
    reach = extent.itemsize
    for stride, size in sorted(zip(extent.strides, extent.sizes, strict=True)):
        if size <= 1:
            continue
        if stride < reach:
            return 0 not in extent.sizes
        reach = (size - 1) * stride + reach
    return False


def _meaning(extent: Extent) -> list[tuple[int, int]]:
    """(size, stride) of the dimensions that have more than one element."""
    return [(size, stride) for size, stride in zip(extent.sizes, extent.strides, strict=True) if size != 1]


def _interleaved(one: Extent, other: Extent) -> bool:
    """Whether the two lie in different columns of one larger matrix: disjoint residues of the common row pitch."""
    lines = [(_run(extent), extent) for extent in (one, other)]
    pitch = math.gcd(*(stride for (_, outer), _ in lines for stride in outer))
    if pitch == 0 or any(run > pitch for (run, _), _ in lines):
        return False
    (run_one, _), (run_other, _) = lines[0][0], lines[1][0]
    distance = (other.start - one.start) % pitch
    return run_one <= distance and distance + run_other <= pitch


def _run(extent: Extent) -> tuple[int, list[int]]:
    """Bytes of one contiguous line, and the strides from line to line."""
    run = extent.itemsize
    outer: list[int] = []
    for stride, size in sorted(zip(extent.strides, extent.sizes, strict=True)):
        if size <= 1:
            continue
        if not outer and 0 < stride <= run:
            run = (size - 1) * stride + run
        else:
            outer.append(stride)
    return run, outer
