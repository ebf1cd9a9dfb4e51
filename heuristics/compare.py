"""Tables against each other and against the kernels: merge, diff, verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from heuristics.archs import ARCHS
from heuristics.table import HeuristicTable, ProblemKey, TableEntry, problem_of
from kernel_zoo.spec import Arch, Variant

_SOURCE_RANK: Final = {"modelled": 0, "measured": 1, "hand": 2}


@dataclass(frozen=True, slots=True)
class Change:
    """One row's difference between two tables."""

    kind: Literal["added", "removed", "changed"]
    key: ProblemKey
    before: TableEntry | None
    after: TableEntry | None

    def __str__(self) -> str:
        sides = " -> ".join(_pick(entry) for entry in (self.before, self.after) if entry is not None)
        return f"{self.kind} {self.key.describe()}: {sides}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "kind": self.kind,
            "key": self.key.describe(),
            "before": _pick(self.before) if self.before else None,
            "after": _pick(self.after) if self.after else None,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a row: "stale" rows are misses, "illegal" ones must not be in a packaged table."""

    kind: Literal["unknown", "stale", "illegal", "net"]
    key: ProblemKey
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key.describe()}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"kind": self.kind, "key": self.key.describe(), "message": self.message}


def merge(first: HeuristicTable, *others: HeuristicTable) -> HeuristicTable:
    """One table of all rows. Of two rows of a problem, hand-written wins over measured over modelled, then the later one.

    Raises:
        ValueError: the tables are of different devices.
    """
    result = first
    for other in others:
        ours, theirs = result.environment, other.environment
        if (ours.device, ours.sm_count) != (theirs.device, theirs.sm_count):
            raise ValueError(
                f"{result.name} holds rows of {ours.gpu_name} ({ours.sm_count} SMs) and {other.name} of {theirs.gpu_name} "
                f"({theirs.sm_count} SMs): rows of two devices do not merge; keep one table for each"
            )
        rows = {entry.key: _measured_on(entry, ours.triton, theirs.triton) for entry in result.entries}
        for entry in other.entries:
            old = rows.get(entry.key)
            if old is None or _standing(entry) >= _standing(old):
                rows[entry.key] = entry
        model = {**result.model, **other.model}
        result = replace(other, name=result.name, origin=result.origin, entries=tuple(rows.values()), model=model)
    return result


def diff(old: HeuristicTable, new: HeuristicTable) -> list[Change]:
    """The rows in which two tables differ in variant, tile, digest or time."""
    before = {entry.key: entry for entry in old.entries}
    after = {entry.key: entry for entry in new.entries}
    changes = [Change("removed", key, entry, None) for key, entry in before.items() if key not in after]
    for key, entry in after.items():
        if key not in before:
            changes.append(Change("added", key, None, entry))
        elif _pick(before[key]) != _pick(entry) or before[key].digest != entry.digest:
            changes.append(Change("changed", key, before[key], entry))
    return changes


def verify(table: HeuristicTable, variants: Iterable[Variant], arch: Arch | None = None) -> list[Finding]:
    """What would keep the table's rows, runners-up included, from serving on its device (or on `arch`).

    Raises:
        ValueError: the table's device is not listed and no `arch` is given.
    """
    device = arch or ARCHS.get(table.environment.device)
    if device is None:
        raise ValueError(f"{table.name} is of {table.environment.gpu_name}, which is not listed; name a device (--arch)")
    by_name = {variant.name: variant for variant in variants}
    return [finding for entry in table.entries for finding in _faults(entry, table, by_name, device)]


def _faults(entry: TableEntry, table: HeuristicTable, by_name: dict[str, Variant], arch: Arch) -> Iterator[Finding]:
    problem = problem_of(entry.key)
    for seen in entry.measurements:
        variant = by_name.get(seen.variant)
        if variant is None:
            yield Finding("unknown", entry.key, f"variant {seen.variant} is not registered")
            continue
        if seen.digest and seen.digest != variant.digest:
            yield Finding("stale", entry.key, f"measured on kernel {seen.digest} of {seen.variant}, which is now {variant.digest}")
        refusal = variant.refusal(problem, arch, seen.tile)
        if refusal is not None:
            tile = f" {seen.tile.describe()}" if seen.tile else ""
            yield Finding("illegal", entry.key, f"{seen.variant}{tile}: {refusal.sentence}")
    winner = by_name.get(entry.variant)
    if table.origin == "packaged" and winner is not None and winner.recipe is None:
        yield Finding("net", entry.key, f"{entry.variant} is no Triton variant: packaged tables name Triton variants only")


def _standing(entry: TableEntry) -> tuple[int, str]:
    return (_SOURCE_RANK[entry.source], entry.date)


def _measured_on(entry: TableEntry, theirs: str, table: str) -> TableEntry:
    """The row in a table of another Triton version: it names its own."""
    triton = entry.triton or theirs
    return replace(entry, triton="" if triton == table else triton)


def _pick(entry: TableEntry) -> str:
    tile = f" {entry.tile.describe()}" if entry.tile else ""
    return f"{entry.variant}{tile} {entry.time_us:.5g} us"
