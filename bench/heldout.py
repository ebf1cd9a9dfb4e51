"""Renewing a file of held-out times (`regret`): its problems as a list to tune, and what a tune of them measured as the new file.

A zoo that has grown need not be measured anew as a whole. Where only the new kernels were tried beside the pick in force, the
file's own times are kept and the new ones are brought to the same clock by what both have measured: absolute times drift by a tenth
and more between sessions, ratios within one do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.regret import Pick, Timed
from heuristics.atomic import replace_text
from heuristics.table import problem_key
from kernel_zoo.spec import GemmProblem
from minblas.journal import problem_from_dict, problem_to_dict, read_lines, tile_from_dict

#: What of a journal's environment the file keeps.
_ENVIRONMENT: Final = ("gpu", "sm_count", "driver", "cuda", "triton", "torch")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a journal has of one problem: candidates' times and torch's, in microseconds, and the winner."""

    problem: GemmProblem
    times: Mapping[Pick, float]
    torch_us: float | None
    winner: Pick | None


def write_problems(path: Path, problems: Iterable[GemmProblem]) -> None:
    """The problems as `minblas tune --recorded` reads them."""
    lines = [json.dumps({"kind": "problem", "problem": problem_to_dict(problem)}, separators=(",", ":")) for problem in problems]
    replace_text(path, "".join(f"{line}\n" for line in lines))


def read_journals(paths: Iterable[Path]) -> tuple[list[Seen], dict[str, Any]]:
    """What the journals have of each shape, and the environment of the last.

    Raises:
        ValueError: a line is no journal's.
    """
    found: list[Seen] = []
    environment: dict[str, Any] = {}
    for path in paths:
        for number, (row, _) in enumerate(read_lines(path), 1):
            try:
                if row["kind"] == "header":
                    environment = {name: row["environment"][name] for name in _ENVIRONMENT if name in row["environment"]}
                elif row["kind"] == "shape":
                    found.append(_seen(row))
            except (KeyError, TypeError) as error:
                raise ValueError(f"line {number} of {path} is no journal's: {error} is missing or of another kind") from None
    return found, environment


def _seen(row: Mapping[str, Any]) -> Seen:
    timed = [(_pick(trial), float(trial["time_us"])) for trial in row["trials"] if trial["status"] == "ok" and "time_us" in trial]
    winner = _pick(row["trials"][row["winner"]]) if row["winner"] is not None else None
    return Seen(problem_from_dict(row["problem"]), dict(timed), row.get("torch_us"), winner)


def _pick(trial: Mapping[str, Any]) -> Pick:
    return trial["variant"], tile_from_dict(trial["tile"])


def renewed(old: Sequence[Timed], seen: Iterable[Seen], *, keep: bool = False) -> tuple[list[Timed], list[str]]:
    """The file's problems with the times that journals have of them, and what could not be used, in words.

    Args:
        old: the file's problems.
        seen: of these and others, in the journals' order; of two with the same problem the later is added to the earlier.
        keep: the file's own times stay, and the new ones are brought to their clock. Otherwise a problem that no journal has goes.
    """
    by_key: dict[Any, list[Seen]] = {}
    for one in seen:
        by_key.setdefault(problem_key(one.problem), []).append(one)
    made: list[Timed] = []
    notes: list[str] = []
    for item in old:
        found = [each for each in by_key.get(problem_key(item.problem), []) if each.times]
        timed: Timed | None = item if keep else None
        for each in found:
            timed = _joined(item.problem, timed, each, notes)
        if timed is None:
            notes.append(f"{item.problem.describe()}: no journal has it; it is left out")
            continue
        tuned = item.tuned if item.tuned in timed.times else None
        made.append(replace(timed, tuned=tuned))
    return made, notes


def with_tuned(timed: Sequence[Timed], seen: Iterable[Seen]) -> list[Timed]:
    """The problems with the winners that another, independent tune named, where their times are known."""
    winners = {problem_key(item.problem): item.winner for item in seen}
    picks = [winners.get(problem_key(item.problem), item.tuned) for item in timed]
    return [replace(item, tuned=pick if pick in item.times else None) for item, pick in zip(timed, picks, strict=True)]


def _joined(problem: GemmProblem, timed: Timed | None, seen: Seen, notes: list[str]) -> Timed:
    """What there is, and a journal's times beside it, brought to its clock by the picks that both have measured, else by torch."""
    if timed is None:
        return Timed(problem, dict(seen.times), seen.torch_us)
    both = [math.log(timed.times[pick] / us) for pick, us in seen.times.items() if pick in timed.times]
    if not both and timed.torch_us and seen.torch_us:
        both = [math.log(timed.torch_us / seen.torch_us)]
    if not both:
        notes.append(f"{problem.describe()}: a journal's times have nothing in common with those there are; they are left out")
        return timed
    factor = math.exp(sum(both) / len(both))
    new = {pick: us * factor for pick, us in seen.times.items() if pick not in timed.times}
    return replace(timed, times={**timed.times, **new}, torch_us=timed.torch_us or seen.torch_us)
