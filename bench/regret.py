"""How good is the choice? Every rung's pick against the fastest of the zoo, on held-out problems whose candidates were timed.

A file of such times makes the answer repeatable without a GPU: the picks are made anew, their times are looked up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from heuristics import model
from heuristics.atomic import replace_text
from heuristics.choose import choose
from heuristics.coefficients import Fitted
from heuristics.legality import Legality
from heuristics.resources import ResourceTable
from heuristics.schema import parse_tile
from heuristics.table import HeuristicTable
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant

TOP: Final = 8
Pick = tuple[str, TileConfig | None]


@dataclass(frozen=True, slots=True)
class Timed:
    """A held-out problem and the device times of its candidates, in microseconds.

    Attributes:
        tuned: the pick that a tuner with its usual shortlist wrote into a table, where one ran.
    """

    problem: GemmProblem
    times: Mapping[Pick, float]
    torch_us: float | None = None
    tuned: Pick | None = None

    @property
    def best_us(self) -> float:
        """The fastest candidate's time."""
        return min(self.times.values())


@dataclass(frozen=True, slots=True)
class Regret:
    """One way of choosing over all problems: best time / time of the pick, a figure a problem; 1 is perfect.

    Attributes:
        missing: problems whose pick was never timed; they count as 0.5.
    """

    name: str
    shares: tuple[float, ...]
    missing: tuple[str, ...] = ()
    rungs: Mapping[str, int] = field(default_factory=dict)

    @property
    def geomean(self) -> float:
        """The geometric mean of the shares."""
        return math.exp(sum(map(math.log, self.shares)) / len(self.shares)) if self.shares else math.nan

    def quantile(self, q: float) -> float:
        """The share that a fraction q of the problems stay below."""
        return sorted(self.shares)[int(q * (len(self.shares) - 1))]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "choice": self.name,
            "problems": len(self.shares),
            "geomean": round(self.geomean, 4),
            "p10": round(self.quantile(0.1), 4),
            "worst": round(min(self.shares), 4),
            "missing": list(self.missing),
            "rungs": dict(self.rungs),
        }


def read(path: Path) -> list[Timed]:
    """The held-out problems of a file that `write` made."""
    document = json.loads(path.read_text(encoding="utf-8"))
    picks: list[Pick] = [_pick(text) for text in document["picks"]]
    return [_timed(row, picks) for row in document["problems"]]


def write(path: Path, timed: Iterable[Timed], environment: Mapping[str, Any]) -> None:
    """Held-out times as a file: picks by number, a problem a line.

    Raises:
        ValueError: a problem is more than sizes, a type and a layout (a batch, padding, an epilogue), or there is none.
    """
    found = list(timed)
    for item in found:
        p = item.problem
        if p != GemmProblem.of(p.m, p.n, p.k, p.dtype, p.layout):
            raise ValueError(f"{p.describe()} is more than sizes, a type and a layout; the file has no room for the rest")
    if not found:
        raise ValueError("no problem was given")
    names = sorted({_text(pick) for item in found for pick in item.times})
    number = {name: index for index, name in enumerate(names)}
    rows = []
    for item in found:
        p = item.problem
        row: dict[str, Any] = {"m": p.m, "n": p.n, "k": p.k, "dtype": p.dtype, "layout": p.layout}
        if item.torch_us is not None:
            row["torch_us"] = _digits(item.torch_us)
        if item.tuned is not None:
            row["tuned"] = number[_text(item.tuned)]
        row["times"] = [[number[_text(pick)], _digits(us)] for pick, us in sorted(item.times.items(), key=lambda seen: seen[1])]
        rows.append(json.dumps(row, separators=(",", ":")))
    head = f'{{"environment": {json.dumps(dict(environment))},\n"picks": {json.dumps(names, indent=0)},\n"problems": [\n'
    replace_text(path, head + ",\n".join(rows) + "\n]}\n")


def measure(
    timed: Sequence[Timed],
    arch: Arch,
    variants: Sequence[Variant],
    tables: Sequence[HeuristicTable],
    resources: ResourceTable | None = None,
) -> list[Regret]:
    """The model alone, the ladder with its tables, the model's best few measured, and, where a tuner ran, the row it wrote."""
    fitted = next((table.model for table in tables if table.model), None)
    bare = [replace(table, entries=()) for table in tables if table.model]
    found = [
        _regret("model", timed, [_chosen(item.problem, arch, variants, bare, resources) for item in timed]),
        _regret("ladder", timed, [_chosen(item.problem, arch, variants, tables, resources) for item in timed]),
        _top(timed, arch, variants, fitted, resources),
    ]
    tuned = [item for item in timed if item.tuned is not None]
    if tuned:
        found.append(_regret("tuned", tuned, [(*item.tuned, "exact") for item in tuned if item.tuned is not None]))
    return found


def _chosen(
    problem: GemmProblem, arch: Arch, variants: Sequence[Variant], tables: Sequence[HeuristicTable], resources: ResourceTable | None
) -> tuple[str, TileConfig | None, str]:
    selection = choose(problem, arch, variants, tables, resources)
    return selection.variant, selection.tile, selection.rung


def _regret(name: str, timed: Sequence[Timed], picks: Sequence[tuple[str, TileConfig | None, str]]) -> Regret:
    shares, missing = [], []
    rungs: dict[str, int] = {}
    for item, (variant, tile, rung) in zip(timed, picks, strict=True):
        us = item.times.get((variant, tile))
        rungs[rung] = rungs.get(rung, 0) + 1
        if us is None:
            missing.append(f"{item.problem.describe()}: {_text((variant, tile))}")
        shares.append(item.best_us / us if us is not None else 0.5)
    return Regret(name, tuple(shares), tuple(missing), rungs)


def _top(
    timed: Sequence[Timed], arch: Arch, variants: Sequence[Variant], fitted: Fitted | None, resources: ResourceTable | None
) -> Regret:
    """What measuring the model's first few would find."""
    shares = []
    zoo = [variant for variant in variants if variant.origin == "zoo" and variant.recipe is not None]
    for item in timed:
        listed = model.rank(Legality(item.problem, arch, resources), zoo, fitted)[:TOP]
        seen = [item.times[pick] for c in listed if (pick := (c.variant, c.tile)) in item.times]
        shares.append(item.best_us / min(seen) if seen else 0.5)
    return Regret(f"top-{TOP} measured", tuple(shares))


def _timed(row: Mapping[str, Any], picks: Sequence[Pick]) -> Timed:
    problem = GemmProblem.of(row["m"], row["n"], row["k"], row["dtype"], row["layout"])
    tuned = picks[row["tuned"]] if "tuned" in row else None
    return Timed(problem, {picks[number]: us for number, us in row["times"]}, row.get("torch_us"), tuned)


def _text(pick: Pick) -> str:
    variant, tile = pick
    return f"{variant} {tile.describe()}" if tile is not None else variant


def _pick(text: str) -> Pick:
    variant, _, tile = text.partition(" ")
    return variant, parse_tile(tile) if tile else None


def _digits(us: float) -> float:
    return float(f"{us:.4g}")
