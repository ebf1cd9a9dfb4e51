"""Where, along a range of M, the choice changes: which picks and which binaries serve which values.

The choice is a pure function of M, but not a simple one: a table's row counts for its own M alone, tiles are counted in whole ones,
two candidates' times may cross more than once, and a binary depends on what divides M. Nothing short of asking about every M
is sure to find each change, and asking costs a fraction of a millisecond, so that is what is done. Only a very long range is
searched: from a grid, by halves, apart for each power of two that divides M; the walk then says that it is not exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Answer = TypeVar("Answer")

MOST_EXACT: Final = 20_000  # values that are asked about one by one
_DENSE: Final = 4096  # of a longer range: where tiles are few, picks change often
_GRID: Final = 33
_CLASSES: Final = 256  # M's largest power of two that a tile or a binary knows


@dataclass(frozen=True, slots=True)
class Walk(Generic[Answer]):
    """What was found along a range.

    Attributes:
        answers: by value, ascending: those that were asked about.
        total: values in the range.
        exact: every value was asked about.
    """

    answers: Mapping[int, Answer]
    total: int

    @property
    def exact(self) -> bool:
        """Every value was asked about."""
        return len(self.answers) == self.total

    def runs(self, key: Callable[[Answer], object]) -> Iterator[list[tuple[int, Answer]]]:
        """The answers in runs of neighbouring values with equal keys."""
        for _, run in itertools.groupby(self.answers.items(), key=lambda item: key(item[1])):
            yield list(run)


def walk(
    values: Sequence[int], ask: Callable[[int], Answer], marks: Iterable[int] = (), most_exact: int = MOST_EXACT
) -> Walk[Answer]:
    """Ask along ascending values.

    Args:
        values: ascending, each once.
        ask: the answer for a value; equal answers compare equal.
        marks: values that are asked about in any case: those a table has rows for.
        most_exact: the longest range that is asked about value by value.
    """
    if len(values) <= most_exact:
        return Walk({value: ask(value) for value in values}, len(values))
    dense = min(_DENSE, most_exact)
    found = {value: ask(value) for value in values[:dense]}
    wanted = set(marks)
    for members in _by_divisor(values[dense:]).values():
        _search(members, ask, [i for i, value in enumerate(members) if value in wanted], found)
    return Walk(dict(sorted(found.items())), len(values))


def _by_divisor(values: Iterable[int]) -> dict[int, list[int]]:
    """The values apart by the power of two that divides them."""
    classes: dict[int, list[int]] = {}
    for value in values:
        classes.setdefault(math.gcd(value, _CLASSES), []).append(value)
    return classes


def _search(members: list[int], ask: Callable[[int], Answer], marks: Iterable[int], found: dict[int, Answer]) -> None:
    """Ask at a grid and at the marks, then halve what lies between unequal neighbours."""

    def at(index: int) -> Answer:
        value = members[index]
        if value not in found:
            found[value] = ask(value)
        return found[value]

    last = len(members) - 1
    grid = {round(last * step / (_GRID - 1)) for step in range(_GRID)}
    around = {near for mark in marks for near in (mark - 1, mark, mark + 1) if 0 <= near <= last}
    probes = sorted(grid | around)
    gaps = list(itertools.pairwise(probes))
    while gaps:
        low, high = gaps.pop()
        if high - low > 1 and at(low) != at(high):
            middle = (low + high) // 2
            at(middle)
            gaps += [(low, middle), (middle, high)]
    for probe in probes:
        at(probe)
