"""How far apart two problems are, and the rows of a table nearest to one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from heuristics.pairs import Array
    from heuristics.table import ProblemKey, TableEntry

OCTAVE: Final = 1.0  # rows farther than this say nothing about a problem
_K_WEIGHT: Final = 0.5  # beside M, N and batch: K changes how long a tile runs, the others which tiles there are


def position(key: ProblemKey) -> Array | None:
    """Sizes on a scale of octaves, weighted; None for an empty problem, which is near nothing."""
    if min(key.m, key.n, key.k, key.batch) <= 0:
        return None
    return np.array((math.log2(key.m), math.log2(key.n), _K_WEIGHT * math.log2(key.k), math.log2(key.batch)))


def distance(a: ProblemKey, b: ProblemKey) -> float:
    """How far apart two comparable problems are, in octaves; infinite where they are not comparable or one is empty."""
    here, there = position(a), position(b)
    if here is None or there is None or a.group != b.group:
        return math.inf
    return float(_apart(here, there[:, None])[0])


def _apart(here: Array, places: Array) -> Array:
    """From one position to each of some, a column each."""
    apart: Array = np.add.reduce(np.abs(places - here[:, None]))
    return apart


class RowGroup:
    """Comparable rows of a table, none of an empty problem, with their places in the space of sizes.

    Attributes:
        entries: the rows, as the table has them.
        derived: what others work out from the rows and want to keep as long as they live.
    """

    def __init__(self, entries: tuple[TableEntry, ...]) -> None:
        self.entries = entries
        self.derived: dict[Any, Any] = {}
        self._places = np.array([position(entry.key) for entry in entries]).T.copy()

    def nearest(self, key: ProblemKey, count: int, within: float) -> list[tuple[float, int]]:
        """(octaves, index in `entries`) of the nearest rows, nearest first, none farther than `within`; of equals the first."""
        here = position(key)
        if here is None:
            return []
        far = _apart(here, self._places)
        found: list[tuple[float, int]] = []
        for _ in range(min(count, len(far))):
            index = int(far.argmin())
            least: float = far.item(index)
            if least > within:
                break
            found.append((least, index))
            far[index] = math.inf
        return found
