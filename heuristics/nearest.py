"""The tiles of rows near a problem, re-ranked: scored on the real problem, corrected by how the model erred on the rows themselves.

How it erred on every row of a table's group is worked out in one go, once per table, device and set of coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from heuristics.coefficients import Fitted, in_force
from heuristics.cost import Sizes, totals
from heuristics.distance import OCTAVE, RowGroup
from heuristics.pairs import PAIRS, Array
from heuristics.roof import library_us
from heuristics.table import HeuristicTable, Measurement, ProblemKey, TableEntry, problem_of
from heuristics.tile_cost import ProblemClass, setting
from kernel_zoo.spec import Arch

NEAREST: Final = 3  # rows whose tiles are re-ranked
FOREIGN: Final = 0.25  # octaves by which a row of another device is farther
CLOSE: Final = 0.025  # octaves from a row: no farther, and only the rows' tiles compete
_UNTRIED: Final = 1.02  # handicap of a tile that no near row has: what is fastest there was picked from many
_WORST_ERROR: Final = math.log(2.0)  # a correction beyond this says more about the row than about the model
_BLUR: Final = 0.1  # octaves: rows much nearer than this count alike
_KEPT: Final = 1 << 12  # rows of which it is kept what stands

Evidence = Callable[[HeuristicTable, Measurement, bool], bool]
Standing = dict[int, tuple[Sequence[Measurement], Sequence[int]]]  # by the id of a row's measurements: these, places that stand


class Row(NamedTuple):
    """A row at a distance.

    Attributes:
        seen: its measurements, the winner first.
        numbers: theirs, in `pairs`.
        errors: log of measured over estimated time of each; None where that says nothing about this device.
    """

    far: float
    table: HeuristicTable
    entry: TableEntry
    seen: Sequence[Measurement]
    numbers: Sequence[int]
    errors: Sequence[float] | None = None


def near(
    key: ProblemKey, arch: Arch, own: Iterable[HeuristicTable], foreign: Iterable[HeuristicTable], fitted: Fitted | None
) -> list[Row]:
    """The rows nearest to a problem, nearest first, none beyond an octave."""
    found = [*_rows(key, arch, own, fitted, 0.0), *_rows(key, arch, foreign, fitted, FOREIGN)]
    found.sort(key=lambda row: row.far)
    return found[:NEAREST]


def _rows(key: ProblemKey, arch: Arch, tables: Iterable[HeuristicTable], fitted: Fitted | None, farther: float) -> Iterator[Row]:
    for table in tables:
        group = table.group(key)
        nearest = group.nearest(key, NEAREST, OCTAVE - farther) if group is not None else []
        if group is not None and nearest:
            known = _known(group, arch, fitted)
            for far, index in nearest:
                entry, (seen, numbers, errors) = group.entries[index], known.rows[index]
                told = not farther and entry.source != "modelled"
                yield Row(far + farther, table, entry, seen, numbers, errors if told else None)


def borrowed(rows: Iterable[tuple[HeuristicTable, TableEntry]]) -> list[Row]:
    """Rows of this very problem on another device."""
    return [Row(0.0, table, entry, entry.measurements, _numbers(entry.measurements)) for table, entry in rows]


def _numbers(seen: Iterable[Measurement]) -> list[int]:
    """The pairs that measurements propose to other problems. When programs may start is each problem's own affair."""
    tiles = [one.tile.without("early") if one.tile is not None else None for one in seen]
    return [PAIRS.numbers(one.variant, (tile,))[0] for one, tile in zip(seen, tiles, strict=True)]


def weighed(rows: Iterable[Row], evidence: Evidence, kept: Standing | None = None) -> tuple[dict[int, Row], list[float], float]:
    """What rows propose, and by what to multiply the model's estimates.

    A tile measured by several rows is corrected by their mean, the nearer the more, and the less the farther the nearest is; any
    other tile by the mean of all, and held back.

    Args:
        rows: nearest first.
        evidence: whether a measurement of a table, the winner of its row or not, may propose its tile.
        kept: what it said of rows before; it is added to. Left out where rows are made anew each time.

    Returns:
        The nearest row of each tile, by number; the factors of these tiles; and that of any other.
    """
    picks: dict[int, Row] = {}
    sums: dict[int, float] = {}
    weights: dict[int, float] = {}
    for row in rows:
        weight, numbers, errors = 1 / (row.far + _BLUR), row.numbers, row.errors
        for place in _standing(row, evidence, kept):
            number = numbers[place]
            if number not in picks:
                picks[number] = row
            if errors is not None:
                sums[number] = sums.get(number, 0.0) + weight * errors[place]
                weights[number] = weights.get(number, 0.0) + weight
    factors = [math.exp(sums[n] / weights[n] * (1 - row.far / 2)) if n in sums else 1.0 for n, row in picks.items()]
    elsewhere = _UNTRIED * (math.exp(sum(sums.values()) / sum(weights.values())) if sums else 1.0)
    return picks, factors, elsewhere


def _standing(row: Row, evidence: Evidence, kept: Standing | None) -> Sequence[int]:
    """The places of a row's measurements that may propose their tiles."""
    if kept is None:
        kept = {}
    found = kept.get(id(row.seen))  # the measurements are kept alive beside the answer, so that their id is not given to others
    if found is None:
        places = [place for place, seen in enumerate(row.seen) if evidence(row.table, seen, place == 0)]
        if len(kept) >= _KEPT:
            kept.clear()
        found = kept[id(row.seen)] = (row.seen, places)
    return found[1]


class _Known:
    """What the model says of a group's own measurements: by row these, their numbers, and its errors."""

    def __init__(self, group: RowGroup, arch: Arch, fitted: Fitted | None) -> None:
        seen = [one for entry in group.entries for one in entry.measurements]
        numbers = _numbers(seen)
        estimates = np.maximum(self._estimates(group, numbers, arch, fitted), 1e-3)
        logs = np.log([one.time_us for one in seen]) - np.log(estimates)
        errors: list[float] = np.clip(logs, -_WORST_ERROR, _WORST_ERROR).tolist()
        self.rows: list[tuple[list[Measurement], list[int], list[float]]] = []
        start = 0
        for entry in group.entries:
            part = slice(start, start + 1 + len(entry.runner_ups))
            self.rows.append((seen[part], numbers[part], errors[part]))
            start = part.stop

    def _estimates(self, group: RowGroup, numbers: Sequence[int], arch: Arch, fitted: Fitted | None) -> Array:
        counts = [1 + len(entry.runner_ups) for entry in group.entries]
        problems = [problem_of(entry.key) for entry in group.entries]  # of one class: that is what a group is
        sizes = Sizes(*(np.repeat(np.array(column, float), counts) for column in zip(*map(Sizes.of, problems), strict=True)))
        here = setting(ProblemClass.of(problems[0]), arch, in_force(fitted))
        library = [library_us(problem, arch) for problem in problems]
        return totals(here, np.array(numbers, np.intp), sizes, lambda: np.repeat(library, counts))


def _known(group: RowGroup, arch: Arch, fitted: Fitted | None) -> _Known:
    key = (arch, in_force(fitted))
    found: _Known | None = group.derived.get(key)
    if found is None:
        found = group.derived[key] = _Known(group, arch, fitted)
    return found
