"""Fitting the model's coefficients to measured times.

`fit_loss` says what a fit makes small. Gradients come from differences: a time depends on the coefficients of its own loop only, so
moving one coefficient of every loop at once costs one evaluation. Adam (Kingma and Ba, 2015) takes the steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from heuristics.coefficients import CORRECTIONS, OTHER, PITCHES, PLAIN, Coefficients, Correction, Fitted, Kernels
from heuristics.fit_data import Measurements, Times
from heuristics.fit_loss import by_time, caution
from heuristics.pairs import Array
from kernel_zoo.spec import Arch, GemmProblem

STEPS: Final = 150
_RATE: Final = 0.04
_STAY: Final = 0.2  # holds coefficients near those that they start from
_PLAIN: Final = 0.05  # holds corrections of single tiles near none
_DELTA: Final = 1e-4
_NAMES: Final = tuple(field.name for field in fields(Coefficients))
_LEAST: Final = 1e-4
_TILE: Final = re.compile(r"( along| across)?( \d+x\d+x\d+ .*| other)?$")  # what a corrected tile's name has beside its loop's


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
        given: a table's coefficients and corrections. They stay where nothing is fitted: of what `only` leaves out, and of loops
            without times, such as those of another dtype. A fit starts from the coefficients, which may rest on times of before.

    Raises:
        ValueError: there are no times.
    """
    data = Measurements(measured, arch)
    start = _Start(data, frozenset(only), given or {})
    unknown = _Unknowns.none(data)
    before = data.score(data.estimates(_Trial(start, unknown)))
    first, second = np.zeros(unknown.size), np.zeros(unknown.size)
    for step in range(1, steps + 1):
        gradient = _gradient(start, unknown)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        rate = _RATE * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        move = rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        unknown = unknown.moved(-move)
        progress(step)
    estimates = data.estimates(_Trial(start, unknown))
    held, other = caution(data, np.log(estimates))
    held[~start.free_tiles] = 1.0
    fitted = {name for name, free in zip(data.loops, start.free_loops, strict=True) if free}
    kept = {name: dict(values) for name, values in (given or {}).items() if _TILE.sub("", name) not in fitted}
    model = kept | _named(start, unknown, estimates, held, other)
    return FitReport(model, before, data.score(estimates * held[data.tile]), len(data.best), len(data.seen))


@dataclass(frozen=True, slots=True)
class _Unknowns:
    """Logarithms: of coefficients over those they start from (loop by name), of tiles' corrections, of pitches over theirs."""

    loops: Array
    tiles: Array  # a row of each of CORRECTIONS
    pitch: Array

    @classmethod
    def none(cls, data: Measurements) -> _Unknowns:
        loops, tiles = np.zeros((len(data.loops), len(_NAMES))), np.zeros((len(CORRECTIONS), len(data.tiles)))
        return cls(loops, tiles, np.zeros(len(PITCHES)))

    @property
    def size(self) -> int:
        return self.loops.size + self.tiles.size + self.pitch.size

    def moved(self, step: Array) -> _Unknowns:
        """All of them moved; corrections of tiles at half the pace."""
        loops, tiles, pitch = np.split(step, np.cumsum([self.loops.size, self.tiles.size]))
        return _Unknowns(
            self.loops + loops.reshape(self.loops.shape), self.tiles + tiles.reshape(self.tiles.shape) / 2, self.pitch + pitch
        )


class _Start:
    """Where a fit starts, and what of it may move: flags of loops, of tiles, and of all unknowns in a row."""

    def __init__(self, data: Measurements, only: frozenset[str], given: Fitted) -> None:
        self.data = data
        self.free_loops = np.array([not only or name.split(" ")[0] in only for name in data.loops])
        self.free_tiles = np.array([not only or name.split(" ")[0] in only for name, _ in data.tiles])
        self.free = np.concatenate(
            [np.repeat(self.free_loops, len(_NAMES)), *[self.free_tiles] * len(CORRECTIONS), np.full(len(PITCHES), not only)]
        )
        kept = Kernels(given)
        self.bases = [kept[name] for name in data.loops]
        self.pitches = kept.pitches
        self.factors = np.array([
            PLAIN if mine else kept.corrections(name).get(tile, kept.other(name))
            for (name, tile), mine in zip(data.tiles, self.free_tiles, strict=True)
        ]).T  # fmt: skip


class _Trial(Kernels):
    """Kernels whose values are unknowns."""

    def __init__(self, start: _Start, unknown: _Unknowns) -> None:
        super().__init__({})
        self._pitch = {name: start.pitches[name] * math.exp(more) for name, more in zip(PITCHES, unknown.pitch, strict=True)}
        factors = (start.factors * np.exp(unknown.tiles)).T.tolist()
        for (way, tile), (work, total, ends) in zip(start.data.tiles, factors, strict=True):
            self._corrections.setdefault(way, {})[tile] = (work, total, ends)
        for name, base, row in zip(start.data.loops, start.bases, unknown.loops, strict=True):
            self._made[name] = _scaled(base, row)

    @property
    def pitches(self) -> dict[str, float]:
        return self._pitch

    def corrections(self, loop: str) -> dict[str, Correction]:
        return self._corrections.get(loop, {})


def _scaled(base: Coefficients, logs: Array) -> Coefficients:
    """The coefficients times e^logs; an exponent stays above 1."""
    values = {}
    for name, log in zip(_NAMES, logs.tolist(), strict=True):
        least = 1.0 if name == "overlap" else 0.0
        values[name] = least + max(getattr(base, name) - least, _LEAST) * math.exp(log)
    return Coefficients(**values)


def _gradient(start: _Start, unknown: _Unknowns) -> Array:
    """Of the loss, by every unknown."""
    data = start.data
    here = np.log(data.estimates(_Trial(start, unknown)))
    slope = by_time(data, here)

    def along(step: _Unknowns) -> Array:
        """What each time adds to the loss's slope along that step from `unknown`."""
        moved: Array = slope * (np.log(data.estimates(_Trial(start, step))) - here) / _DELTA
        return moved

    loops, tiles, pitch = (np.zeros_like(part) for part in (unknown.loops, unknown.tiles, unknown.pitch))
    for column in range(len(_NAMES)):
        loops[:, column] = np.bincount(data.loop, along(_stepped(unknown, "loops", np.s_[:, column])), len(data.loops))
    for row, name in enumerate(CORRECTIONS):
        # The whole time moves as its correction does: nothing to evaluate.
        moved = slope if name == "total" else along(_stepped(unknown, "tiles", np.s_[row]))
        tiles[row] = np.bincount(data.tile, moved, len(data.tiles))
    for place in range(len(pitch)):
        pitch[place] = along(_stepped(unknown, "pitch", np.s_[place])).sum()
    loops += 2 * _STAY * unknown.loops / unknown.loops.size
    tiles += 2 * _PLAIN * unknown.tiles / len(data.best)
    found: Array = np.concatenate([loops.ravel(), tiles.ravel(), pitch]) * start.free
    return found


def _stepped(unknown: _Unknowns, part: str, where: Any) -> _Unknowns:
    """The unknowns with some of one part a little larger."""
    values = getattr(unknown, part).copy()
    values[where] += _DELTA
    return replace(unknown, **{part: values})


def _named(start: _Start, unknown: _Unknowns, estimates: Array, held: Array, other: Array) -> dict[str, dict[str, float]]:
    """The unknowns as a table's model section, each loop with the error that is left: the root mean square of the log times.

    `held` and `other` are factors on the whole times of tiles, and of those of each loop that have no times.
    """
    data = start.data
    near = data.over < 1.0
    errors = np.bincount(data.loop, np.log(estimates / data.seen) ** 2 * near, len(data.loops))
    squares = errors / np.maximum(np.bincount(data.loop, near, len(data.loops)), 1)
    model = {}
    rows = zip(data.loops, start.bases, unknown.loops, squares.tolist(), start.free_loops.tolist(), strict=True)
    for name, base, row, square, free in rows:
        if free:
            made = _scaled(base, row)
            model[name] = {each: _digits(getattr(made, each)) for each in _NAMES} | {"fit_error": _digits(math.sqrt(square))}
    for (name, tile), logs, factor, free in zip(data.tiles, unknown.tiles.T, held, start.free_tiles, strict=True):
        if free:
            work, total, ends = np.exp(logs).tolist()
            model[f"{name} {tile}"] = {"work": _digits(work), "total": _digits(total * factor), "ends": _digits(ends)}
    for way in {way for (way, _), free in zip(data.tiles, start.free_tiles, strict=True) if free}:
        # What nobody has measured is as its loop's tiles are on the mean: left as it is, it would come out too fast beside them.
        some = np.array([name == way for name, _ in data.tiles])
        mean = np.average(unknown.tiles[:, some], axis=1, weights=np.bincount(data.tile)[some])
        work, total, ends = np.exp(mean).tolist()
        factor = other[data.loop[some[data.tile].argmax()]]
        model[f"{way} {OTHER}"] = {"work": _digits(work), "total": _digits(total * factor), "ends": _digits(ends)}
    model["pitch"] = {
        name: _digits(start.pitches[name] * math.exp(more)) for name, more in zip(PITCHES, unknown.pitch, strict=True)
    }
    return model


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


__all__ = ["FitReport", "Times", "fit"]
