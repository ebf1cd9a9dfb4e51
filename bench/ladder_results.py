"""What became of the steps of a ladder: one record a step, the JSON Lines file that holds them, and the tables for a reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

#: Of a step's status, as a reader sees it.
_SAID: Final = {"ok": "right", "compiled": "compiles", "unserved": "left out", "wrong": "WRONG", "failed": "FAILED"}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of one step.

    `status` is "ok", "compiled" (on a CPU, where it cannot run), "unserved" (left out: the device cannot take it), "wrong" or
    "failed". Times are medians over interleaved rounds with an interval; `ratio` is the time of `against` over ours, `gain`
    the time of the step numbered `over` over ours.
    """

    ladder: str
    number: int
    name: str
    status: str = "ok"
    message: str = ""
    variant: str = ""
    tile: str = ""
    precision: str = ""
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    tflops: float | None = None
    against: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    over: int | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it; `note` says what was done where that is not what was asked for."""

    environment: dict[str, Any]
    results: list[StepResult]
    note: str = ""

    @property
    def faulty(self) -> bool:
        """Some step is wrong, or could not be compiled or launched."""
        return any(result.status in ("wrong", "failed") for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"environment": self.environment, "note": self.note, "results": [asdict(result) for result in self.results]}


def write(path: Path, done: Done) -> None:
    """A file of results: where they were taken, then one row a step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in _rows(done)), encoding="utf-8")


def _rows(done: Done) -> Iterator[dict[str, Any]]:
    yield {"kind": "environment", **done.environment, "note": done.note}
    for result in done.results:
        row = {name: value for name, value in asdict(result).items() if value not in (None, "")}
        yield {
            "kind": "step",
            **{name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()},
        }


def tables(done: Done) -> Iterator[Table]:
    """One table a ladder, one line a step."""
    for ladder in dict.fromkeys(result.ladder for result in done.results):
        yield _table(ladder, [result for result in done.results if result.ladder == ladder])


def _table(title: str, results: Sequence[StepResult]) -> Table:
    from rich.table import Table

    timed = any(result.time_us is not None for result in results)
    made = Table("", "step", "kernel", title=title, title_justify="left")
    for heading in ("TFLOP/s", "of torch.matmul", "gain over the step before") if timed else ():
        made.add_column(heading, justify="right")
    made.add_column("result")
    for result in results:
        values = asdict(result)
        tflops = "-" if result.tflops is None else f"{result.tflops:.3g}"
        skipped = f" over {result.over}" if result.over not in (None, result.number - 1) else ""
        cells = (tflops, _interval(values, "ratio"), _interval(values, "gain") + skipped) if timed else ()
        said = f"{_SAID[result.status]}: {result.message}" if result.message else _SAID[result.status]
        made.add_row(str(result.number), result.name, f"{result.variant} {result.tile}".strip(), *cells, said)
    return made


def _interval(values: Mapping[str, Any], name: str) -> str:
    """A ratio with its interval; "-" where it was not measured."""
    if values[name] is None:
        return "-"
    return f"{values[name]:.3g} ({values[name + '_low']:.3g}-{values[name + '_high']:.3g})"


__all__ = ["Done", "StepResult", "tables", "write"]
