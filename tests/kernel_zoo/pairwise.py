"""All-pairs covering: a short list of rows in which every two values of every two parameters meet, as far as they legally can.

Greedy and deterministic. A row that is not legal is replaced, not skipped: another filling of the same pair is drawn until one is
legal or the pair has had its chances.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeVar

Row = dict[str, Hashable]
Pair = tuple[str, Hashable, str, Hashable]
Made = TypeVar("Made")
_Numbers = tuple[int, ...]  # a row by the numbers of its values, one a parameter

_HOPELESS: Final = 400
_KEPT: Final = 0.85


@dataclass
class Covering:
    """What was found: the made cases, how many drawings were refused, and the pairs no legal row was found for."""

    cases: list
    refused: int
    infeasible: set[Pair]


def cover(
    parameters: Mapping[str, Sequence[Hashable]],
    make: Callable[[Row], Made | None],
    *,
    seed: int = 0,
    attempts: int = 24,
    limit: int | None = None,
) -> Covering:
    """Rows over `parameters` that cover all pairs.

    Args:
        parameters: values by parameter.
        make: turns a row into a case, or None where the row is not legal.
        seed: of the drawing.
        attempts: drawings per pair before it counts as infeasible.
        limit: keep at most that many cases, those that cover most.
    """
    rng = random.Random(seed)
    points = [(name, value) for name, values in parameters.items() for value in values]
    numbers = {point: i for i, point in enumerate(points)}
    names = list(parameters)
    pairs = [
        (numbers[first, x], numbers[second, y])
        for first, second in combinations(names, 2)
        for x in parameters[first]
        for y in parameters[second]
    ]
    rng.shuffle(pairs)
    uncovered = _Uncovered([0] * len(points))
    for pair in pairs:
        uncovered.partners[pair[0]] |= 1 << pair[1]
        uncovered.partners[pair[1]] |= 1 << pair[0]
    choices = [[numbers[name, value] for value in parameters[name]] for name in names]
    column = [i for i, values in enumerate(choices) for _ in values]
    found = Covering([], 0, set())
    legal: list[_Numbers] = []
    failures: Counter[int] = Counter()
    for pair in pairs:
        if not uncovered.holds(pair):
            continue
        # A value that was never legal in many drawings is not legal at all: its other pairs are not worth as many.
        chances = 2 if any(failures[value] > _HOPELESS for value in pair) else attempts
        for attempt in range(chances):
            base = rng.choice(legal) if legal and attempt % 2 else None
            row = _fill(choices, column, pair, uncovered, rng, base)
            case = make({name: points[number][1] for name, number in zip(names, row, strict=True)})
            if case is not None:
                found.cases.append(case)
                legal.append(row)
                for value in pair:
                    failures[value] = -(10**6)
                uncovered.cover(row)
                break
            found.refused += 1
            failures.update(pair)
        else:
            found.infeasible.add((*points[pair[0]], *points[pair[1]]))
            uncovered.drop(pair)
    chosen = _essential([list(combinations(row, 2)) for row in legal], limit)
    found.cases = [found.cases[i] for i in chosen]
    return found


@dataclass
class _Uncovered:
    """Pairs of values not yet met: for every value's number, those of the values it still has to meet, as bits."""

    partners: list[int]

    def holds(self, pair: tuple[int, int]) -> bool:
        return bool(self.partners[pair[0]] >> pair[1] & 1)

    def drop(self, pair: tuple[int, int]) -> None:
        self.partners[pair[0]] &= ~(1 << pair[1])
        self.partners[pair[1]] &= ~(1 << pair[0])

    def cover(self, row: _Numbers) -> None:
        met = sum(1 << number for number in row)
        for number in row:
            self.partners[number] &= ~met


def _essential(covered: list[list[tuple[int, int]]], limit: int | None) -> list[int]:
    """Rows that together cover what all do, the most useful first (lazy greedy set cover)."""
    left = {pair for pairs in covered for pair in pairs}
    heap = [(-len(pairs), i) for i, pairs in enumerate(covered)]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and left and (limit is None or len(chosen) < limit):
        _, i = heapq.heappop(heap)
        gain = sum(pair in left for pair in covered[i])
        if gain == 0:
            continue
        if heap and gain < -heap[0][0]:
            heapq.heappush(heap, (-gain, i))
            continue
        chosen.append(i)
        left.difference_update(covered[i])
    return chosen


def _fill(
    choices: Sequence[Sequence[int]],
    column: Sequence[int],
    pair: tuple[int, int],
    uncovered: _Uncovered,
    rng: random.Random,
    base: _Numbers | None,
) -> _Numbers:
    """The pair, and for every other parameter the value that covers most of what is left; most of `base` where it is given."""
    row = {column[number]: number for number in pair}
    others = [i for i in range(len(choices)) if i not in row]
    if base is not None:
        kept = [i for i in others if rng.random() < _KEPT]
        row.update((i, base[i]) for i in kept)
        others = [i for i in others if i not in row]
    rng.shuffle(others)
    given = sum(1 << number for number in row.values())
    for i in others:
        values = list(choices[i])
        rng.shuffle(values)
        row[i] = max(values, key=lambda number: (uncovered.partners[number] & given).bit_count())
        given |= 1 << row[i]
    return tuple(row[i] for i in range(len(choices)))
