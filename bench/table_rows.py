"""Rows of a table for a terminal or as data: those asked for, in the file's order or by distance from sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.records import CLASSES
from heuristics.distance import distance
from heuristics.table import HeuristicTable, Measurement, ProblemKey, TableEntry, dtype_class, problem_of
from kernel_zoo.spec import canonical_dtype

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows of a table are asked for. `near` sorts by distance from M, N, K instead of the file's order."""

    dtype: str | None = None
    classes: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    near: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse a class that does not exist, and sizes that nothing is near to."""
        unknown = [name for name in self.classes if name not in CLASSES]
        if unknown:
            raise ValueError(f"class {unknown[0]!r} is not known; known: {', '.join(CLASSES)}")
        if self.near is not None and min(self.near) < 1:
            raise ValueError(f"--near takes M N K of at least 1; given {self.near}")

    def rows(self, table: HeuristicTable) -> list[tuple[float | None, TableEntry]]:
        """(distance in octaves, row) of those asked for, nearest first, or in the file's order."""
        kept = [entry for entry in table.entries if self._keeps(entry)]
        if self.near is None:
            return [(None, entry) for entry in kept]
        m, n, k = self.near
        placed = [(distance(replace(entry.key, m=m, n=n, k=k, batch=1), entry.key), entry) for entry in kept]
        return [*sorted(placed, key=lambda item: item[0])]

    def _keeps(self, entry: TableEntry) -> bool:
        return (
            (self.dtype is None or _is_of(entry.key, self.dtype))
            and (not self.variants or entry.variant in self.variants)
            and (not self.classes or problem_of(entry.key).shape_class in self.classes)
        )


def _is_of(key: ProblemKey, dtype: str) -> bool:
    """Whether a row is of a dtype as users name it: bf16, 16bit, tf32, fp32 (exact products), ..."""
    if dtype == "tf32":
        return (key.dtype, key.precision) == ("fp32", "tf32")
    return key.dtype == (dtype if dtype == "16bit" else dtype_class(canonical_dtype(dtype)))


def as_dict(table: HeuristicTable, wanted: Filter | None = None, evidence: bool = True) -> dict[str, Any]:
    """A table and its rows, for JSON."""
    environment = table.environment
    rows = (wanted or Filter()).rows(table)
    return {
        "name": table.name,
        "gpu": environment.gpu_name,
        "triton": environment.triton,
        "torch": environment.torch,
        "created_at": table.created_at,
        "rows": len(table.entries),
        "modelled": sum(entry.source == "modelled" for entry in table.entries),
        "variants": dict(Counter(entry.variant for entry in table.entries).most_common()),
        "entries": [_entry_dict(entry, far, evidence) for far, entry in rows],
    }


def _entry_dict(entry: TableEntry, far: float | None, evidence: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": entry.key.describe(),
        "variant": entry.variant,
        "tile": _tile(entry),
        "time_us": entry.time_us,
        "torch_us": entry.torch_us,
        "source": entry.source,
        "date": entry.date,
    }
    if far is not None:
        row["distance"] = far
    if evidence:
        ups = [[seen.variant, _tile(seen), seen.time_us] for seen in entry.runner_ups]
        row |= {"digest": entry.digest, "low_us": entry.low_us, "high_us": entry.high_us, "triton": entry.triton, "runner_ups": ups}
    return row


def _tile(seen: TableEntry | Measurement) -> str | None:
    return seen.tile.describe() if seen.tile is not None else None


def rows_table(table: HeuristicTable, limit: int, wanted: Filter | None = None, evidence: bool = False) -> Table:
    """Rows of a table, for a terminal."""
    from rich.table import Table

    environment = table.environment
    rows = (wanted or Filter()).rows(table)
    modelled = all(entry.source == "modelled" for entry in table.entries) and bool(table.entries)
    how = "modelled, never measured" if modelled else f"triton {environment.triton}, torch {environment.torch}"
    count = f"{len(table.entries)} rows" if len(rows) == len(table.entries) else f"{len(rows)} of {len(table.entries)} rows"
    shown = Table(title=f"{table.name}: {count}, {environment.gpu_name}, {how}", title_justify="left", title_style="bold")
    for heading in (*(("octaves",) if wanted is not None and wanted.near else ()), "problem", "variant", "tile"):
        shown.add_column(heading)
    for heading in ("us", "torch us", "ratio", *(("interval", "source") if evidence else ())):
        shown.add_column(heading, justify="right")
    for far, entry in rows[:limit]:
        shown.add_row(*_cells(entry, far, evidence))
        for seen in entry.runner_ups if evidence else ():
            behind = f"{seen.time_us / entry.time_us:.3f} x"
            shown.add_row(
                *(("",) if far is not None else ()), "", f"  {seen.variant}", _tile(seen) or "-", f"{seen.time_us:.2f}", "", behind
            )
    if len(rows) > limit:
        shown.caption = f"{len(rows) - limit} more (--limit)"
    return shown


def _cells(entry: TableEntry, far: float | None, evidence: bool) -> list[str]:
    torch_us = entry.torch_us
    cells = [f"{far:.2f}"] if far is not None else []
    cells += [entry.key.describe(), entry.variant, _tile(entry) or "-", f"{entry.time_us:.2f}"]
    cells += [f"{torch_us:.2f}", f"{torch_us / entry.time_us:.3f}"] if torch_us else ["-", "-"]
    if evidence:
        interval = f"{entry.low_us:.2f} to {entry.high_us:.2f}" if entry.low_us and entry.high_us else "-"
        cells += [interval, " ".join(filter(None, (entry.source, entry.date, entry.triton and f"triton {entry.triton}")))]
    return cells
