"""Fitting the model's coefficients to measured times.

What counts is not how close an estimate is but which candidate comes first, so the loss has two parts: the regret to be expected if
candidates are picked with probabilities that fall with their estimates (a soft minimum), and, so that estimates stay times, the
squared errors of their logarithms. Gradients come from differences: a time depends on the coefficients of its own loop only, so
moving one coefficient of every loop at once costs one evaluation. Adam (Kingma and Ba, 2015) takes the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import numpy as np

from heuristics.coefficients import PITCHES, PLAIN, Coefficients, Fitted, Kernels
from heuristics.cost import Sizes, totals
from heuristics.pairs import PAIRS, VECTOR, Array, Rows
from heuristics.tile_cost import ProblemClass, Setting, loop
from kernel_zoo.spec import Arch, GemmProblem, TileConfig

STEPS: Final = 150
_SOFTNESS: Final = 0.03  # of the soft minimum, in log time
_RATE: Final = 0.04
_REGRET: Final = 10.0  # weight of the expected regret ...
_ERROR: Final = 4.0  # ... and of the squared errors
_STAY: Final = 0.02  # holds coefficients near the built-in ones
_PLAIN: Final = 0.05  # holds corrections of single tiles near none
_FAR: Final = 2.0  # a candidate's error counts e^-2 less for each time the best that it is slower
_DELTA: Final = 1e-4
_NAMES: Final = tuple(field.name for field in fields(Coefficients))
_LEAST: Final = 1e-4

Name = TypeVar("Name", str, tuple[str, str])
Times = Mapping[tuple[str, TileConfig], float]


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit found.

    Attributes:
        model: coefficients by loop, corrections by tile: a table's model section.
        before, after: the geometric mean of best time / time of the model's first pick, over the problems fitted to.
        problems, times: how many.
    """

    model: dict[str, dict[str, float]]
    before: float
    after: float
    problems: int
    times: int


def fit(
    measured: Sequence[tuple[GemmProblem, Times]],
    arch: Arch,
    steps: int = STEPS,
    progress: Callable[[int], None] = lambda step: None,
    only: Collection[str] = (),
    given: Fitted | None = None,
) -> FitReport:
    """Coefficients for a device from the times of candidates in microseconds.

    Args:
        measured: problems, each with the times of some of its candidates.
        arch: the device they were taken on.
        steps: of the descent.
        progress: called with the number of each step.
        only: variants to fit; all others, and the pitches, stay as `given` has them. All variants by default.
        given: a table's coefficients and corrections, which start what is fitted only where `only` leaves it out.

    Raises:
        ValueError: there are no times.
    """
    data = _Data(measured, arch, frozenset(only), given or {})
    unknown = _Unknowns.start(data)
    before = data.score(data.times(unknown))
    first, second = np.zeros(unknown.size), np.zeros(unknown.size)
    for step in range(1, steps + 1):
        gradient = data.gradient(unknown)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        rate = _RATE * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        move = rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        unknown = unknown.moved(-move)
        progress(step)
    estimates = data.times(unknown)
    kept = {name: dict(values) for name, values in (given or {}).items()} if only else {}
    return FitReport(kept | data.named(unknown, estimates), before, data.score(estimates), len(data.best), len(data.seen))


@dataclass(frozen=True, slots=True)
class _Unknowns:
    """Logarithms: of coefficients over their built-in values (loop by name), of tiles' corrections, of pitches over theirs."""

    loops: Array
    work: Array
    total: Array
    pitch: Array

    @classmethod
    def start(cls, data: _Data) -> _Unknowns:
        tiles = len(data.tiles)
        return cls(np.zeros((len(data.loops), len(_NAMES))), np.zeros(tiles), np.zeros(tiles), np.zeros(len(PITCHES)))

    @property
    def size(self) -> int:
        return self.loops.size + len(self.work) + len(self.total) + len(self.pitch)

    def moved(self, step: Array) -> _Unknowns:
        """All of them moved; corrections of tiles at half the pace."""
        cuts = np.cumsum([self.loops.size, len(self.work), len(self.total)])
        loops, work, total, pitch = np.split(step, cuts)
        loops = loops.reshape(self.loops.shape)
        return _Unknowns(self.loops + loops, self.work + work / 2, self.total + total / 2, self.pitch + pitch)


class _Trial(Kernels):
    """Kernels whose values are unknowns."""

    def __init__(self, data: _Data, unknown: _Unknowns) -> None:
        super().__init__({})
        self._pitch = {name: data.pitches[name] * math.exp(more) for name, more in zip(PITCHES, unknown.pitch, strict=True)}
        work, total = data.factors * np.exp(np.stack([unknown.work, unknown.total]))
        factors = zip(work.tolist(), total.tolist(), strict=True)
        for (way, tile), pair in zip(data.tiles, factors, strict=True):
            self._corrections.setdefault(way, {})[tile] = pair
        for name, base, row in zip(data.loops, data.bases, unknown.loops, strict=True):
            self._made[name] = _scaled(base, row)

    @property
    def pitches(self) -> dict[str, float]:
        return self._pitch

    def corrections(self, loop: str) -> dict[str, tuple[float, float]]:
        return self._corrections.get(loop, {})


def _scaled(base: Coefficients, logs: Array) -> Coefficients:
    """The coefficients times e^logs; an exponent stays above 1."""
    values = {}
    for name, log in zip(_NAMES, logs.tolist(), strict=True):
        least = 1.0 if name == "overlap" else 0.0
        values[name] = least + max(getattr(base, name) - least, _LEAST) * math.exp(log)
    return Coefficients(**values)


class _Data:
    """The measured times as arrays, one part for each class of problems."""

    def __init__(
        self,
        measured: Sequence[tuple[GemmProblem, Times]],
        arch: Arch,
        only: frozenset[str] = frozenset(),
        given: Fitted | None = None,
    ) -> None:
        self.arch = arch
        groups: dict[ProblemClass, list[tuple[int, GemmProblem, int, float]]] = {}
        for index, (problem, times) in enumerate(measured):
            for (variant, tile), us in times.items():
                number = PAIRS.numbers(variant, (tile,))[0]
                groups.setdefault(ProblemClass.of(problem), []).append((index, problem, number, us))
        if not groups:
            raise ValueError("no times were given; tune first")
        self.parts: list[tuple[ProblemClass, Rows, Sizes]] = []
        owners: list[int] = []
        seen: list[float] = []
        loops: list[str] = []
        tiles: list[tuple[str, str]] = []
        for kind, rows in groups.items():
            sizes = Sizes(*(np.array(column, float) for column in zip(*(Sizes.of(row[1]) for row in rows), strict=True)))
            self.parts.append((kind, np.array([row[2] for row in rows], np.intp), sizes))
            owners += [row[0] for row in rows]
            seen += [row[3] for row in rows]
            for _, problem, number, _ in rows:
                name, way, corrected = _corrected(kind, problem, number)
                loops.append(name)
                tiles.append((name + way, corrected))
        self.seen = np.array(seen)
        self.loops, self.loop = _numbered(loops)
        self.tiles, self.tile = _numbered(tiles)
        free = np.array([not only or name.split(" ")[0] in only for name in self.loops])
        free_tiles = np.array([not only or name.split(" ")[0] in only for name, _ in self.tiles])
        self.named_loops, self.named_tiles = free, free_tiles
        self.free = np.concatenate([np.repeat(free, len(_NAMES)), free_tiles, free_tiles, np.full(len(PITCHES), not only)]).astype(
            float
        )
        built_in, kept = Kernels({}), Kernels(given or {})
        self.bases = [(built_in if mine else kept)[name] for name, mine in zip(self.loops, free.tolist(), strict=True)]
        self.pitches = kept.pitches if only else dict(PITCHES)
        factors = [
            PLAIN if mine else kept.corrections(name).get(tile, PLAIN)
            for (name, tile), mine in zip(self.tiles, free_tiles.tolist(), strict=True)
        ]
        self.factors = np.array(factors).T
        _, self.owner = np.unique(owners, return_inverse=True)
        self.best = np.full(self.owner.max() + 1, np.inf)
        np.minimum.at(self.best, self.owner, self.seen)
        self.over = self.seen / self.best[self.owner] - 1

    def times(self, unknown: _Unknowns) -> Array:
        """The model's times under those unknowns."""
        kernels = _Trial(self, unknown)
        return np.concatenate(
            [totals(Setting(kind, self.arch, kernels), rows, sizes, lambda: 0.0) for kind, rows, sizes in self.parts]
        )

    def score(self, estimates: Array) -> float:
        """The geometric mean of best time / time of the first pick."""
        order = np.lexsort((estimates, self.owner))
        _, firsts = np.unique(self.owner[order], return_index=True)
        return float(np.exp(-np.log1p(self.over[order][firsts]).mean()))

    def gradient(self, unknown: _Unknowns) -> Array:
        """Of the loss, by every unknown."""
        here = np.log(self.times(unknown))
        by_time = self._by_time(here)
        loops = np.zeros_like(unknown.loops)
        for column in range(len(_NAMES)):
            step = np.zeros_like(unknown.loops)
            step[:, column] = _DELTA
            moved = by_time * (np.log(self.times(replace(unknown, loops=unknown.loops + step))) - here) / _DELTA
            loops[:, column] = np.bincount(self.loop, moved, len(self.loops))
        more = by_time * (np.log(self.times(replace(unknown, work=unknown.work + _DELTA))) - here) / _DELTA
        work: Array = np.bincount(self.tile, more, len(self.tiles)).astype(float)
        total: Array = np.bincount(self.tile, by_time, len(self.tiles)).astype(float)
        pitch = np.zeros_like(unknown.pitch)
        for place in range(len(pitch)):
            step = np.zeros_like(pitch)
            step[place] = _DELTA
            pitch[place] = (by_time * (np.log(self.times(replace(unknown, pitch=unknown.pitch + step))) - here)).sum() / _DELTA
        problems = len(self.best)
        loops = loops + 2 * _STAY * unknown.loops / unknown.loops.size
        work = work + 2 * _PLAIN * unknown.work / problems
        total = total + 2 * _PLAIN * unknown.total / problems
        moved_by: Array = np.concatenate([loops.ravel(), work, total, pitch]) * self.free
        return moved_by

    def _by_time(self, here: Array) -> Array:
        """The gradient of the loss by the logarithm of each time."""
        least = np.full(len(self.best), np.inf)
        np.minimum.at(least, self.owner, here)
        likely = np.exp(-(here - least[self.owner]) / _SOFTNESS)
        likely /= np.bincount(self.owner, likely)[self.owner]
        regret = np.minimum(self.over, 1.0)
        expected = np.bincount(self.owner, likely * regret)[self.owner]
        by_regret = -likely * (regret - expected) / _SOFTNESS / len(self.best)
        weight = np.exp(-_FAR * np.minimum(self.over, 2.0))
        by_error = 2 * weight * (here - np.log(self.seen)) / weight.sum()
        gradient: Array = _REGRET * by_regret + _ERROR * by_error
        return gradient

    def named(self, unknown: _Unknowns, estimates: Array) -> dict[str, dict[str, float]]:
        """The unknowns as a table's model section, each loop with the error that is left: the root mean square of the log times."""
        errors = np.log(estimates / self.seen) ** 2
        near = self.over < 1.0
        squares = np.bincount(self.loop, errors * near, len(self.loops)) / np.maximum(
            np.bincount(self.loop, near, len(self.loops)), 1
        )
        model = {}
        rows = zip(self.loops, self.bases, unknown.loops, squares.tolist(), self.named_loops.tolist(), strict=True)
        for name, base, row, square, free in rows:
            if not free:
                continue
            made = _scaled(base, row)
            model[name] = {each: _digits(getattr(made, each)) for each in _NAMES} | {"fit_error": _digits(math.sqrt(square))}
        corrections = zip(self.tiles, unknown.work.tolist(), unknown.total.tolist(), self.named_tiles.tolist(), strict=True)
        for (name, tile), work, total, free in corrections:
            if free:
                model[f"{name} {tile}"] = {"work": _digits(math.exp(work)), "total": _digits(math.exp(total))}
        model["pitch"] = {
            name: _digits(self.pitches[name] * math.exp(more)) for name, more in zip(PITCHES, unknown.pitch, strict=True)
        }
        return model


def _corrected(kind: ProblemClass, problem: GemmProblem, number: int) -> tuple[str, str, str]:
    """The loop of a pair on a problem, which way it runs where that matters, and its tile."""
    variant = PAIRS.pairs[number][0]
    flags = PAIRS.columns(number, number + 1)
    name = loop(kind, variant, tma=bool(flags.tma[0]), resident=bool(flags.resident[0]))
    way = ""
    if PAIRS.kinds(np.array([number]))[0] == VECTOR:
        along = problem.b.layout == "t" if problem.m <= problem.n else problem.a.layout == "n"
        way = " along" if along else " across"
    return name, way, PAIRS.tiles[number]


def _numbered(names: Sequence[Name]) -> tuple[list[Name], Rows]:
    found = sorted(set(names))
    number = {name: index for index, name in enumerate(found)}
    return found, np.array([number[name] for name in names], np.intp)


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


__all__ = ["FitReport", "fit"]
