"""Tables against each other and against the kernels: merge, diff, verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heuristics.archs import ARCHS
from heuristics.legality import Legality
from heuristics.resources import ResourceTable
from heuristics.table import HeuristicTable, ProblemKey, TableEntry, problem_of
from kernel_zoo.spec import Arch, Variant


@dataclass(frozen=True, slots=True)
class Change:
    """One row's difference between two tables."""

    kind: Literal["added", "removed", "changed"]
    key: ProblemKey
    before: TableEntry | None
    after: TableEntry | None

    @property
    def ratio(self) -> float | None:
        """The earlier time over the later one: above 1 where the later row is faster. None where one of them is missing."""
        return self.before.time_us / self.after.time_us if self.before and self.after else None

    def __str__(self) -> str:
        sides = " -> ".join(_pick(entry) for entry in (self.before, self.after) if entry is not None)
        gain = f" ({self.ratio:.3f} x)" if self.ratio is not None else ""
        return f"{self.kind} {self.key.describe()}: {sides}{gain}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "kind": self.kind,
            "key": self.key.describe(),
            "before": _pick(self.before) if self.before else None,
            "after": _pick(self.after) if self.after else None,
            "before_us": self.before.time_us if self.before else None,
            "after_us": self.after.time_us if self.after else None,
            "ratio": self.ratio,
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
            if old is None or entry.standing >= old.standing:
                rows[entry.key] = entry
        result = replace(
            other,
            name=result.name,
            origin=result.origin,
            entries=tuple(rows.values()),
            description=other.description or result.description,
            protocol=other.protocol or result.protocol,
            model={**result.model, **other.model},
        )
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


def verify(
    table: HeuristicTable, variants: Iterable[Variant], arch: Arch | None = None, resources: Iterable[ResourceTable] = ()
) -> list[Finding]:
    """What would keep the table's rows, runners-up included, from serving on its device (or on `arch`).

    `resources` are what binaries need under the Triton versions that the rows are to serve on.

    Raises:
        ValueError: the table's device is not listed and no `arch` is given.
    """
    device = arch or listed_device(table)
    by_name = {variant.name: variant for variant in variants}
    data = tuple(resources) or (None,)
    return [finding for entry in table.entries for finding in faults(entry, table, by_name, device, data)]


def listed_device(table: HeuristicTable) -> Arch:
    """The device whose limits a table's rows are held against.

    Raises:
        ValueError: it is not listed.
    """
    device = ARCHS.get(table.environment.device)
    if device is None:
        raise ValueError(f"{table.name}: {unlisted(table)}")
    return device


def unlisted(table: HeuristicTable) -> str:
    """Why the rows of a table cannot be checked, where its device is not listed."""
    gpu = table.environment.gpu_name
    return f"it is of {gpu}, whose limits are not listed: its rows can be checked on that GPU only; listed: {', '.join(ARCHS)}"


def faults(
    entry: TableEntry, table: HeuristicTable, by_name: dict[str, Variant], arch: Arch, resources: Sequence[ResourceTable | None]
) -> Iterator[Finding]:
    """What is wrong with one row; see `verify`."""
    problem = problem_of(entry.key)
    legalities = [Legality(problem, arch, data) for data in resources]
    for seen in entry.measurements:
        variant = by_name.get(seen.variant)
        if variant is None:
            yield Finding("unknown", entry.key, f"variant {seen.variant} is not registered")
            continue
        if seen.digest and seen.digest != variant.digest:
            yield Finding("stale", entry.key, f"measured on kernel {seen.digest} of {seen.variant}, which is now {variant.digest}")
        refusal = next(filter(None, (legality.refusal(variant, seen.tile) for legality in legalities)), None)
        if refusal is not None:
            tile = f" {seen.tile.describe()}" if seen.tile else ""
            yield Finding("illegal", entry.key, f"{seen.variant}{tile}: {refusal.sentence}")
    winner = by_name.get(entry.variant)
    if table.origin == "packaged" and winner is not None and winner.recipe is None:
        yield Finding("net", entry.key, f"{entry.variant} is no Triton variant: packaged tables name Triton variants only")


def _measured_on(entry: TableEntry, theirs: str, table: str) -> TableEntry:
    """The row in a table of another Triton version: it names its own."""
    triton = entry.triton or theirs
    return replace(entry, triton="" if triton == table else triton)


def _pick(entry: TableEntry) -> str:
    tile = f" {entry.tile.describe()}" if entry.tile else ""
    return f"{entry.variant}{tile} {entry.time_us:.5g} us"
