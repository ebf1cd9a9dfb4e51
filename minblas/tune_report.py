"""What a tune found: rows as they lie in the journal, the table made of them, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final

from heuristics import store
from heuristics.table import Environment, HeuristicTable, Measurement, TableEntry, problem_key
from kernel_zoo.spec import Variant
from minblas.journal import problem_from_dict, problem_to_dict, tile_from_dict, tile_to_dict
from minblas.timing import ROUNDS, Timing
from minblas.tune_trial import ShapeResult, Trial

PROTOCOL: Final = {
    "timer": "CUDA graph of many launches",
    "buffers": "rotated, larger than twice L2",
    "inputs": "random normal",
    "order": "interleaved A B B A",
    "statistic": "median of rounds",
    "rounds": ROUNDS,
    "checked": "against float64 on poisoned outputs",
    "host cost": "not included",
}


def row_of(result: ShapeResult, variants: Mapping[str, Variant], kind: str = "shape") -> dict[str, Any]:
    """A finished shape as JSON-ready data."""
    trials = [_trial(trial, variants) for trial in result.trials]
    winner = result.trials.index(result.winner) if result.winner is not None else None
    return {
        "kind": kind,
        "problem": problem_to_dict(result.problem),
        "winner": winner,
        "trials": trials,
        "torch_us": result.torch.median_us if result.torch is not None else None,
        "note": result.note,
        "summary": _summary(result),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _trial(trial: Trial, variants: Mapping[str, Variant]) -> dict[str, Any]:
    timing = trial.timing
    data: dict[str, Any] = {"variant": trial.pick.variant, "tile": tile_to_dict(trial.pick.tile), "status": trial.status}
    if trial.message:
        data["message"] = trial.message
    if timing is not None:
        data |= {"time_us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "final": trial.final}
        data["digest"] = variants[trial.pick.variant].digest
    elif trial.estimate_us:
        data["estimate_us"] = trial.estimate_us
    return data


def _summary(result: ShapeResult) -> str:
    """One line for a progress display."""
    if result.winner is None:
        return result.note or f"{sum(trial.status == 'ok' for trial in result.trials)} of {len(result.trials)} right"
    text = f"{result.winner.pick.describe()} {_us(result.winner.timing)}"
    default = result.default
    if result.changed and default is not None and default.timing is not None:
        text += f", was {default.pick.describe()} {_us(default.timing)}"
    return text + (f", torch {_us(result.torch)}" if result.torch is not None else "")


def _us(timing: Timing | None) -> str:
    return f"{timing.median_us:.4g} us" if timing is not None else "not timed"


def entry_of(row: Mapping[str, Any]) -> TableEntry | None:
    """The table's row of a journal's row: the winner, and the other finalists behind it, best first.

    None where the row has no winner, or one that was not timed in the final or is slower there than the default.
    """
    if row["winner"] is None:
        return None
    winner, default = row["trials"][row["winner"]], row["trials"][0]
    if not winner["final"] or (default.get("final") and winner["time_us"] > default["time_us"]):
        return None
    others = [trial for trial in row["trials"] if trial.get("final") and trial is not winner]
    others.sort(key=lambda trial: trial["time_us"])
    return TableEntry(
        key=problem_key(problem_from_dict(row["problem"])),
        variant=winner["variant"],
        tile=tile_from_dict(winner["tile"]),
        digest=winner["digest"],
        time_us=_rounded(winner["time_us"]),
        torch_us=_rounded(row["torch_us"]) if row["torch_us"] else None,
        runner_ups=tuple(
            Measurement(trial["variant"], tile_from_dict(trial["tile"]), _rounded(trial["time_us"]), trial["digest"])
            for trial in others
        ),
        source="measured",
        date=row["date"],
        low_us=_rounded(winner["low_us"]),
        high_us=_rounded(winner["high_us"]),
    )


def _rounded(value: float) -> float:
    """Four digits: what is beyond them is noise."""
    return float(f"{value:.4g}")


def save_table(rows: Sequence[Mapping[str, Any]], environment: Environment, path: str | PathLike[str] | None) -> Path:
    """Merge the winners into a table file, the user's own by default."""
    entries = tuple(entry for row in rows if (entry := entry_of(row)) is not None)
    from minblas.environment import version

    table = HeuristicTable(
        name="tuned",
        environment=environment,
        entries=entries,
        description=f"tuned on {environment.gpu_name}",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        minblas_version=version("minblas"),
        protocol=PROTOCOL,
    )
    return store.save(table, path)


@dataclass
class TuneReport:
    """What a tune did.

    Attributes:
        asked: distinct shapes asked for.
        rows: finished shapes as they lie in the journal, those of an earlier run included.
        fresh: those finished by this run.
        left: shapes not reached before the budget was spent or the tune was stopped.
        faults: candidates that took the device or their process down, each with its shape.
        notes: what else is to be known.
        table, journal: the files; `table` is empty where nothing was timed.
    """

    environment: Environment
    journal: str
    asked: int
    verify_only: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    fresh: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    table: str = ""
    seconds: float = 0.0

    @property
    def tuned(self) -> int:
        """Shapes with a winner."""
        return sum(row["winner"] is not None for row in self.rows)

    @property
    def changed(self) -> int:
        """Shapes whose winner is another pick than the first one tried."""
        return sum(bool(row["winner"]) for row in self.rows)

    @property
    def rejected(self) -> dict[str, int]:
        """Candidates that were wrong, and that did not compile, load or run."""
        trials = [trial for row in self.rows for trial in row["trials"]]
        return {status: sum(trial["status"] == status for trial in trials) for status in ("wrong", "failed")}

    def gain(self) -> float | None:
        """Geometric mean of the default's time over the winner's."""
        return _geomean([row["trials"][0].get("time_us", 0.0) / row["trials"][row["winner"]]["time_us"] for row in self._won()])

    def against_torch(self) -> float | None:
        """Geometric mean of torch's time over the winner's."""
        return _geomean([(row["torch_us"] or 0.0) / row["trials"][row["winner"]]["time_us"] for row in self._won()])

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        counts = {"asked": self.asked, "tuned": self.tuned, "changed": self.changed, "left": self.left, "rejected": self.rejected}
        ratios = {"gain": self.gain(), "against_torch": self.against_torch()}
        files = {"table": self.table, "journal": self.journal, "faults": self.faults, "notes": self.notes}
        return {**counts, **ratios, **files, "seconds": self.seconds, "environment": asdict(self.environment), "rows": self.rows}

    def __str__(self) -> str:
        done = f"{len(self.rows)} of {self.asked} shapes"
        again = len(self.rows) - len(self.fresh)
        lines = [
            f"{done} {'verified' if self.verify_only else 'tuned'} in {self.seconds:.0f} s"
            + (f", {again} of them before" if again else "")
        ]
        if not self.verify_only:
            lines.append(f"  another pick than the first won in {self.changed}; default time / best time {_times(self.gain())}")
            lines.append(f"  torch time / best time {_times(self.against_torch())} (geometric means)")
        rejected = [f"{count} {status}" for status, count in self.rejected.items() if count]
        lines += [f"  candidates left out: {', '.join(rejected)}"] if rejected else []
        lines += [f"  {problem_from_dict(row['problem']).describe()}: {row['note']}" for row in self.rows if row["note"]]
        lines += [f"  took the device down and left out: {fault}" for fault in self.faults]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {self.left} shapes are left; resume={self.journal!r} (--resume) goes on"] if self.left else []
        lines += [f"  table: {self.table}"] if self.table else []
        lines.append(f"  journal: {self.journal}")
        return "\n".join(lines)

    def _won(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["winner"] is not None]


def _geomean(values: Sequence[float]) -> float | None:
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _times(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else "unknown"
