"""Tables from the command line: finding, showing and verifying them, and gating every row on a compiler."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heuristics import archs, store
from heuristics.table import HeuristicTable, problem_of
from kernel_zoo.spec import Arch, Variant

if TYPE_CHECKING:
    from rich.table import Table

    from kernel_zoo.gate import GateResult


def packaged() -> list[HeuristicTable]:
    """Every table that ships with minblas."""
    return [store.load(path) for path in sorted(store.PACKAGED.glob("*.json"))]


def find(names: Sequence[str]) -> list[HeuristicTable]:
    """Tables by path, or by device ("h200": its packaged tables and the user's own); all packaged ones where none is named.

    Raises:
        ValueError: a name is neither a file nor a device, or there is no table for the device.
    """
    if not names:
        return packaged()
    found: list[HeuristicTable] = []
    for name in names:
        if Path(name).exists():
            found.append(store.load(name))
            continue
        if name.endswith(".json") or "/" in name:
            raise ValueError(f"there is no file {name}")
        arch = archs.get_arch(name)
        tables = [table for table in (*store.user_tables(arch), *store.packaged_tables(arch)) if table.kinship(arch) == "exact"]
        if not tables:
            raise ValueError(f"there is no table for {arch.name}: neither packaged nor in {store.user_dir()}")
        found += tables
    return found


def census() -> list[tuple[str, str, str]]:
    """(name, what it holds, what is wrong with it) of every packaged table and every one of the user's."""
    found = []
    for path in (*sorted(store.PACKAGED.glob("*.json")), *sorted(store.user_dir().glob("*.json"))):
        try:
            table = store.load(path)
        except (OSError, store.TableFileError) as error:
            found.append((path.stem, "unreadable", str(error)))
            continue
        environment = table.environment
        found.append((table.name, f"{len(table.entries)} rows, {environment.gpu_name}, triton {environment.triton}", ""))
    return found


def as_dict(table: HeuristicTable) -> dict[str, Any]:
    """A table's summary, for JSON."""
    environment = table.environment
    return {
        "name": table.name,
        "gpu": environment.gpu_name,
        "triton": environment.triton,
        "torch": environment.torch,
        "created_at": table.created_at,
        "rows": len(table.entries),
        "variants": dict(Counter(entry.variant for entry in table.entries).most_common()),
        "entries": [
            {
                "key": entry.key.describe(),
                "variant": entry.variant,
                "tile": entry.tile.describe() if entry.tile is not None else None,
                "time_us": entry.time_us,
                "torch_us": entry.torch_us,
                "source": entry.source,
                "date": entry.date,
            }
            for entry in table.entries
        ],
    }


def rows_table(table: HeuristicTable, limit: int) -> Table:
    """The first rows of a table, for a terminal."""
    from rich.table import Table

    environment = table.environment
    title = (
        f"{table.name}: {len(table.entries)} rows, {environment.gpu_name}, triton {environment.triton}, torch {environment.torch}"
    )
    shown = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("problem", "variant", "tile"):
        shown.add_column(heading)
    for heading in ("us", "torch us", "ratio"):
        shown.add_column(heading, justify="right")
    for entry in table.entries[:limit]:
        torch_us = entry.torch_us
        shown.add_row(
            entry.key.describe(),
            entry.variant,
            entry.tile.describe() if entry.tile is not None else "-",
            f"{entry.time_us:.2f}",
            f"{torch_us:.2f}" if torch_us else "-",
            f"{torch_us / entry.time_us:.3f}" if torch_us else "-",
        )
    return shown


def device_of(table: HeuristicTable) -> Arch:
    """The device a table was measured on.

    Raises:
        ValueError: it is not listed.
    """
    return archs.get_arch(table.environment.device)


def gate_tables(tables: Iterable[HeuristicTable], variants: Sequence[Variant], workers: int | None = None) -> list[GateResult]:
    """Compile the winner of every row for the table's device with the triton installed, and read the machine code."""
    from kernel_zoo.gate import GateRow, gate

    by_name = {variant.name: variant for variant in variants}
    rows = [
        GateRow(by_name[entry.variant], problem_of(entry.key), entry.tile, device_of(table), table.name)
        for table in tables
        for entry in table.entries
        if entry.tile is not None and entry.variant in by_name
    ]
    return gate(rows, workers)


def triton_version() -> str:
    """The version that a gate runs on."""
    module = sys.modules.get("triton")
    return str(getattr(module, "__version__", "not installed"))
