"""Measured times as arrays, for a fit: whose they are, by which coefficients and tiles the model explains them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from heuristics.coefficients import Kernels
from heuristics.cost import Sizes, totals
from heuristics.pairs import PAIRS, VECTOR, Array, Rows
from heuristics.tile_cost import ProblemClass, Setting, loop
from kernel_zoo.spec import Arch, GemmProblem, TileConfig

Name = TypeVar("Name", str, tuple[str, str])
Times = Mapping[tuple[str, TileConfig], float]
_START: Final = "early"  # the knob that decides when programs may start


class Measurements:
    """The times of candidates in microseconds, an element per candidate.

    Trials of a tile with its start decided are left out: the model proposes no such tile, and knows nothing of what it costs a
    product to begin too early.

    Attributes:
        seen: the times; over: by what share each is longer than its problem's best.
        owner: its problem; best: the best time of each problem.
        loops, loop: the loops there are, and each candidate's; tiles, tile: the same of (loop, tile as a table corrects it).

    Raises:
        ValueError: there are no times.
    """

    def __init__(self, measured: Iterable[tuple[GemmProblem, Times]], arch: Arch) -> None:
        self.arch = arch
        groups: dict[ProblemClass, list[tuple[int, GemmProblem, int, float]]] = {}
        for index, (problem, times) in enumerate(measured):
            for (variant, tile), us in times.items():
                if tile.without(_START) is tile:
                    number = PAIRS.numbers(variant, (tile,))[0]
                    groups.setdefault(ProblemClass.of(problem), []).append((index, problem, number, us))
        if not groups:
            raise ValueError("no times were given; tune first")
        self._parts: list[tuple[ProblemClass, Rows, Sizes]] = []
        owners: list[int] = []
        seen: list[float] = []
        loops: list[str] = []
        tiles: list[tuple[str, str]] = []
        for kind, rows in groups.items():
            sizes = Sizes(*(np.array(column, float) for column in zip(*(Sizes.of(row[1]) for row in rows), strict=True)))
            self._parts.append((kind, np.array([row[2] for row in rows], np.intp), sizes))
            owners += [row[0] for row in rows]
            seen += [row[3] for row in rows]
            for _, problem, number, _ in rows:
                name, way, corrected = _corrected(kind, problem, number)
                loops.append(name)
                tiles.append((name + way, corrected))
        self.seen = np.array(seen)
        self.loops, self.loop = _numbered(loops)
        self.tiles, self.tile = _numbered(tiles)
        _, self.owner = np.unique(owners, return_inverse=True)
        self.best = np.full(self.owner.max() + 1, np.inf)
        np.minimum.at(self.best, self.owner, self.seen)
        self.over = self.seen / self.best[self.owner] - 1

    def estimates(self, kernels: Kernels) -> Array:
        """The model's times under those coefficients."""
        return np.concatenate(
            [totals(Setting(kind, self.arch, kernels), rows, sizes, lambda: 0.0) for kind, rows, sizes in self._parts]
        )

    def score(self, estimates: Array) -> float:
        """The geometric mean of best time / time of the first pick."""
        order = np.lexsort((estimates, self.owner))
        _, firsts = np.unique(self.owner[order], return_index=True)
        return float(np.exp(-np.log1p(self.over[order][firsts]).mean()))


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
