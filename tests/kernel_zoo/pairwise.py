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
    names = list(parameters)
    pairs = [
        (first, x, second, y) for first, second in combinations(names, 2) for x in parameters[first] for y in parameters[second]
    ]
    rng.shuffle(pairs)
    uncovered = dict.fromkeys(pairs)
    found = Covering([], 0, set())
    legal: list[Row] = []
    failures: Counter[tuple[str, Hashable]] = Counter()
    for pair in pairs:
        if pair not in uncovered:
            continue
        values = ((pair[0], pair[1]), (pair[2], pair[3]))
        # A value that was never legal in many drawings is not legal at all: its other pairs are not worth as many.
        chances = 2 if any(failures[value] > _HOPELESS for value in values) else attempts
        for attempt in range(chances):
            base = rng.choice(legal) if legal and attempt % 2 else None
            row = _fill(parameters, pair, uncovered, rng, base)
            case = make(row)
            if case is not None:
                found.cases.append(case)
                legal.append(row)
                for value in values:
                    failures[value] = -(10**6)
                for covered in _pairs_of(row, names):
                    uncovered.pop(covered, None)
                break
            found.refused += 1
            failures.update(values)
        else:
            found.infeasible.add(pair)
            uncovered.pop(pair, None)
    found.cases = [found.cases[i] for i in _essential([_pairs_of(row, names) for row in legal], limit)]
    return found


def _essential(covered: list[list[Pair]], limit: int | None) -> list[int]:
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


def _pairs_of(row: Row, names: Sequence[str]) -> list[Pair]:
    return [(first, row[first], second, row[second]) for first, second in combinations(names, 2)]


def _fill(
    parameters: Mapping[str, Sequence[Hashable]], pair: Pair, uncovered: Mapping[Pair, None], rng: random.Random, base: Row | None
) -> Row:
    """The pair, and for every other parameter the value that covers most of what is left; most of `base` where it is given."""
    row: Row = {pair[0]: pair[1], pair[2]: pair[3]}
    others = [name for name in parameters if name not in row]
    if base is not None:
        kept = [name for name in others if rng.random() < _KEPT]
        row.update((name, base[name]) for name in kept)
        others = [name for name in others if name not in row]
    rng.shuffle(others)
    order = {name: i for i, name in enumerate(parameters)}
    for name in others:
        values = list(parameters[name])
        rng.shuffle(values)
        row[name] = max(values, key=lambda value: _gain(name, value, row, order, uncovered))
    return row


def _gain(name: str, value: Hashable, row: Row, order: Mapping[str, int], uncovered: Mapping[Pair, None]) -> int:
    gain = 0
    for other, given in row.items():
        pair = (name, value, other, given) if order[name] < order[other] else (other, given, name, value)
        gain += pair in uncovered
    return gain
