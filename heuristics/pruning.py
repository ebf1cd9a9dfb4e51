"""What of a table is no use: rows and runners-up that cannot serve, are too old, or say what the ladder says without them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from heuristics.choose import choose
from heuristics.compare import faults, listed_device
from heuristics.policy import NoVariantError
from heuristics.resources import ResourceTable
from heuristics.table import HeuristicTable, Measurement, ProblemKey, TableEntry, problem_of
from kernel_zoo.spec import Arch, Variant

Kind = Literal["stale", "illegal", "unknown", "old", "redundant", "gate"]

_SAME: Final = 1.01  # a pick within so much of the measured best is as good


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that goes ("row"), or a winner or runner-up of one that stays ("part"), and why."""

    what: Literal["row", "part"]
    kind: Kind
    key: ProblemKey
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key.describe()}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"what": self.what, "kind": self.kind, "key": self.key.describe(), "message": self.message}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to go beside stale and illegal rows.

    Attributes:
        unknown: rows of variants that are not registered here; another program may register them.
        before: rows dated earlier ("2026-01-01"), undated ones not.
        redundant: rows without which the ladder picks the same, or what the row itself measured within 1% of its best.
        gate: keys of rows whose winner did not pass a compile gate, and what it said.
    """

    unknown: bool = False
    before: str = ""
    redundant: bool = False
    gate: tuple[tuple[ProblemKey, str], ...] = ()


def prune(
    table: HeuristicTable,
    variants: Sequence[Variant],
    wanted: Wanted,
    arch: Arch | None = None,
    resources: Sequence[ResourceTable] = (),
    others: Iterable[HeuristicTable] = (),
) -> tuple[HeuristicTable, list[Dropped]]:
    """The table without what is no use, and what went.

    Where a row's winner cannot serve and a runner-up can, the runner-up takes its place: its time was measured too.

    Args:
        table: what is pruned.
        variants: all registered ones.
        wanted: what is to go.
        arch: the table's device, where it is not listed.
        resources: what binaries need, under each Triton version the rows are to serve on.
        others: further tables that the ladder has, for `redundant`.

    Raises:
        ValueError: the table's device is not listed and no `arch` is given.
    """
    device = arch or listed_device(table)
    by_name = {variant.name: variant for variant in variants}
    refused = dict(wanted.gate)
    dropped: list[Dropped] = []
    kept: list[TableEntry] = []
    for entry in table.entries:
        if wanted.before and entry.date and entry.date < wanted.before:
            dropped.append(Dropped("row", "old", entry.key, f"measured on {entry.date}"))
        elif entry.key in refused:
            dropped.append(Dropped("row", "gate", entry.key, refused[entry.key]))
        else:
            left, gone = _sound(entry, table, by_name, device, tuple(resources) or (None,), wanted.unknown)
            kept += [left] if left is not None else []
            dropped += gone
    left_over = replace(table, entries=tuple(kept))
    if wanted.redundant:
        left_over, more = _without_redundant(left_over, variants, device, tuple(resources), tuple(others))
        dropped += more
    return left_over, dropped


def _sound(
    entry: TableEntry,
    table: HeuristicTable,
    by_name: dict[str, Variant],
    arch: Arch,
    resources: Sequence[ResourceTable | None],
    unknown: bool,
) -> tuple[TableEntry | None, list[Dropped]]:
    """The row with what of its measurements can serve, the fastest first; None where none can."""
    sound: list[Measurement] = []
    gone: list[Dropped] = []
    for seen in entry.measurements:
        alone = replace(entry, variant=seen.variant, tile=seen.tile, digest=seen.digest, time_us=seen.time_us, runner_ups=())
        fault = next(iter(faults(alone, table, by_name, arch, resources)), None)
        kind: Kind | None = None
        if fault is not None and fault.kind in ("stale", "illegal"):
            kind = "stale" if fault.kind == "stale" else "illegal"
        elif fault is not None and fault.kind == "unknown" and unknown:
            kind = "unknown"
        if kind is not None and fault is not None:
            gone.append(Dropped("part", kind, entry.key, fault.message))
        else:
            sound.append(seen)
    if not gone:
        return entry, []
    if not sound:
        return None, [replace(gone[0], what="row")]
    first, *rest = sound
    if first == entry.measurements[0]:
        return replace(entry, runner_ups=tuple(rest)), gone
    return replace(
        entry, variant=first.variant, tile=first.tile, digest=first.digest, time_us=first.time_us, low_us=None, high_us=None,
        runner_ups=tuple(rest),
    ), gone  # fmt: skip


def _without_redundant(
    table: HeuristicTable,
    variants: Sequence[Variant],
    arch: Arch,
    resources: Sequence[ResourceTable],
    others: Sequence[HeuristicTable],
) -> tuple[HeuristicTable, list[Dropped]]:
    """Leave each row out in turn, in the file's order: where the rest of the ladder answers as well without it, it stays out."""
    data = resources[0] if resources else None

    def answer(entry: TableEntry, rows: HeuristicTable) -> str:
        """What the ladder picks instead, in words; "" where it is not as good."""
        try:
            found = choose(problem_of(entry.key), arch, variants, (rows, *others), data)
        except NoVariantError:
            return ""
        times = {(seen.variant, seen.tile): seen.time_us for seen in entry.measurements}
        as_good = times.get((found.variant, found.tile), math.inf) <= _SAME * entry.time_us
        tile = f" {found.tile.describe()}" if found.tile else ""
        return f"without it the {found.rung} rung picks {found.variant}{tile}" if as_good else ""

    left = table
    out: list[TableEntry] = []
    for entry in table.entries:
        without = replace(left, entries=tuple(other for other in left.entries if other is not entry))
        if answer(entry, without):
            left, out = without, [*out, entry]
    final = [(entry, answer(entry, left)) for entry in out]  # a later row may have gone that an earlier one was answered by
    back = tuple(entry for entry, words in final if not words)
    gone = [Dropped("row", "redundant", entry.key, words) for entry, words in final if words]
    return replace(left, entries=(*left.entries, *back)), gone


__all__ = ["Dropped", "Wanted", "prune"]
