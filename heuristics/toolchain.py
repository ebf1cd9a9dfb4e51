"""Tables under the Triton that runs: a row is as good as its kernel's compile gate on that version.

A row of the running version stands. One of another version stands where the running one's resource data has its kernel: the same
source was compiled there and its machine code read; and a packaged row where the packaged tables are gated on that version. Any
other row is a hint: its tile is a candidate, and the model decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from heuristics.notices import warn_once
from heuristics.resources import ResourceTable, known
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
    if not running:
        return tuple(tables)
    data = known(arch.cc, running)
    return tuple(
        part
        for table in tables
        for part in ((table,) if table.origin == "packaged" and running in gated else _parts(table, running, arch, data))
    )


def public_version(version: str) -> str:
    """A version without its local part: 3.7.1 for 3.7.1+git1234."""
    return version.partition("+")[0]


def measured_under(entry: TableEntry, table: HeuristicTable) -> str:
    """The version of Triton that a row was measured on; "" where it was not recorded."""
    return public_version(entry.triton or table.environment.triton)


def _parts(table: HeuristicTable, running: str, arch: Arch, data: ResourceTable | None) -> Iterator[HeuristicTable]:
    """The table itself where all its rows stand; else what stands, and a table of hints for each other version."""
    hints: dict[str, list[TableEntry]] = {}
    if table.kinship(arch) == "exact":
        for entry in table.entries:
            version = measured_under(entry, table)
            if version not in ("", running) and not _vouched(entry, data):
                hints.setdefault(version, []).append(entry)
    if not hints:
        yield table
        return
    apart = {entry.key for rows in hints.values() for entry in rows}
    yield replace(table, entries=tuple(entry for entry in table.entries if entry.key not in apart))
    for version, rows in hints.items():
        counted = f"{len(rows)} of {len(table.entries)} rows"
        warn_once(
            f"table {table.name}: {counted} are of Triton {version}, and Triton {running}'s compile gate has not seen "
            f"their kernels: they are hints, which the model weighs; tune again, or run Triton {version}"
        )
        yield replace(table, entries=tuple(rows), hint=f"Triton {version}", model={})


def _vouched(entry: TableEntry, data: ResourceTable | None) -> bool:
    """Whether another version's compiler has no say in a row, or its gate has seen the row's kernel."""
    if entry.tile is None or entry.source == "hand":  # nothing of ours is compiled; a person knows what they wrote
        return True
    return data is not None and bool(entry.digest) and data.covers(entry.digest)


__all__ = ["measured_under", "public_version", "under"]
