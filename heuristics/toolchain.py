"""Tables under the Triton that runs: a row is as good as its kernel's compile gate on that version.

A row of the running version stands. One of another version stands where the running one's resource data has its kernel: the same
source was compiled there and its machine code read; and a packaged row where the packaged tables are gated on that version. Any
other row is a hint: its tile is a candidate, and the model decides. A modelled row is no hint: what the model said of another
device or compiler says nothing that it does not say better of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from heuristics.notices import warn_once
from heuristics.resources import ResourceTable, known, public_version
from heuristics.table import HeuristicTable, TableEntry
from kernel_zoo.spec import Arch

Known = Callable[[int, str], ResourceTable | None]


def under(
    triton: str, tables: Iterable[HeuristicTable], arch: Arch, gated: Collection[str] = (), known: Known = known
) -> tuple[HeuristicTable, ...]:
    """The tables, rows that are only hints under a version of Triton set apart as tables of their own. Said once a table.

    Args:
        triton: the version that runs; "" where none does: nothing is compiled, and rows stand as they were measured.
        tables: in order of authority.
        arch: the device; rows of another are hints already.
        gated: versions that packaged tables are gated on.
        known: where resource data comes from.
    """
    running = public_version(triton)
    data = known(arch.cc, running) if running else None
    found: list[HeuristicTable] = []
    for table in tables:
        if table.kinship(arch) != "exact":
            found += _with_rows(table, [entry for entry in table.entries if entry.source != "modelled"])
        elif not running or (table.origin == "packaged" and running in gated):
            found.append(table)
        else:
            found += _parts(table, running, data)
    return tuple(found)


def measured_under(entry: TableEntry, table: HeuristicTable) -> str:
    """The version of Triton that a row was measured on; "" where it was not recorded."""
    return public_version(entry.triton or table.environment.triton)


def _parts(table: HeuristicTable, running: str, data: ResourceTable | None) -> Iterator[HeuristicTable]:
    """The table itself where all its rows stand; else what stands, and a table of hints for each other version."""
    standing: list[TableEntry] = []
    hints: dict[str, list[TableEntry]] = {}
    for entry in table.entries:
        version = measured_under(entry, table)
        if version in ("", running) or _vouched(entry, data):
            standing.append(entry)
        elif entry.source != "modelled":
            hints.setdefault(version, []).append(entry)
    yield table if len(standing) == len(table.entries) else replace(table, entries=tuple(standing))
    for version, rows in hints.items():
        counted = f"{len(rows)} of {len(table.entries)} rows"
        warn_once(
            f"table {table.name}: {counted} are of Triton {version}, and Triton {running}'s compile gate has not seen "
            f"their kernels: they are hints, which the model weighs; tune again, or run Triton {version}"
        )
        yield replace(table, entries=tuple(rows), hint=f"Triton {version}", model={})


def _with_rows(table: HeuristicTable, rows: Sequence[TableEntry]) -> list[HeuristicTable]:
    """The table with these of its rows; none without any."""
    if len(rows) == len(table.entries):
        return [table]
    return [replace(table, entries=tuple(rows))] if rows else []


def _vouched(entry: TableEntry, data: ResourceTable | None) -> bool:
    """Whether another version's compiler has no say in a row, or its gate has seen the row's kernel."""
    if entry.tile is None or entry.source == "hand":  # nothing of ours is compiled; a person knows what they wrote
        return True
    return data is not None and bool(entry.digest) and data.covers(entry.digest)


__all__ = ["measured_under", "under"]
