"""Tables from the command line: finding them, and gating every row on a compiler. `table_rows` shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import terminal
from heuristics import archs, resources, store
from heuristics.generate import BORROWERS
from heuristics.resources import ResourceTable
from heuristics.table import HeuristicTable, problem_of
from kernel_zoo.spec import Arch, Variant

if TYPE_CHECKING:
    from kernel_zoo.gate import GateResult


@dataclass(frozen=True, slots=True)
class Found:
    """A table file: what it holds, what was left out of it, and why it is no table."""

    path: Path
    table: HeuristicTable | None
    remarks: tuple[store.Remark, ...] = ()
    error: str = ""


def packaged_paths() -> list[Path]:
    """The files of the tables that ship with minblas."""
    return sorted(store.PACKAGED.glob("*.json"))


def user_path(arch: Arch) -> Path:
    """The file of the user's own table of a device."""
    return store.user_dir() / f"{arch.name}.json"


def look(names: Sequence[str]) -> list[Found]:
    """The files that names stand for: a path, or a device's (its packaged table and the user's); all packaged ones without a name.

    Raises:
        ValueError: a name is neither a file nor a device, or there is no table for the device.
    """
    if not names:
        return [_read(path) for path in packaged_paths()]
    found: list[Found] = []
    for name in names:
        if Path(name).exists():
            found.append(_read(Path(name)))
        elif name.endswith(".json") or "/" in name:
            raise ValueError(f"there is no file {name}")
        else:
            found += _of_device(archs.get_arch(name))
    return found


def find(names: Sequence[str]) -> list[HeuristicTable]:
    """Tables by path or device, as `look`; what is left out of one is warned of.

    Raises:
        ValueError: see `look`.
        TableFileError: a file is no table.
    """
    found = look(names)
    for item in found:
        if item.error:
            raise store.TableFileError(item.error)
    return [store.load(item.path) for item in found]


def sides(names: Sequence[str]) -> tuple[HeuristicTable, HeuristicTable]:
    """Two tables to compare: two files or devices (packaged tables), or one device's packaged table and the user's.

    Raises:
        ValueError: there are not two, or a name is neither a file nor a device with a table.
    """
    if len(names) == 1 and not Path(names[0]).exists():
        arch = archs.get_arch(names[0])
        paths = [store.PACKAGED / f"{arch.name}.json", user_path(arch)]
        missing = [str(path) for path in paths if not path.exists()]
        if missing:
            raise ValueError(f"there is nothing to compare for {arch.name}: no file {' and none '.join(missing)}")
        return store.load(paths[0]), store.load(paths[1])
    if len(names) != 2:
        raise ValueError("a comparison takes two tables, or one device (its packaged table against your own)")
    old, new = (find([name])[0] for name in names)
    return old, new


def _read(path: Path) -> Found:
    try:
        table, remarks = store.read(path)
    except (OSError, store.TableFileError) as error:
        return Found(path, None, (), str(error))
    return Found(path, table, tuple(remarks))


def _of_device(arch: Arch) -> list[Found]:
    """The packaged table first; a file of the user's that cannot be read is of every device."""
    read = [_read(path) for path in (*packaged_paths(), *sorted(store.user_dir().glob("*.json")))]
    own = [item for item in read if item.table is None or item.table.kinship(arch) == "exact"]
    if not any(item.table for item in own):
        why = f" ({BORROWERS[arch.name]})" if arch.name in BORROWERS else ""
        raise ValueError(f"there is no table for {arch.name}{why}: neither packaged nor in {store.user_dir()}")
    return own


def census() -> list[tuple[str, str, str]]:
    """(name, what it holds, what is wrong with it) of every packaged table and every one of the user's."""
    found = []
    for path in (*packaged_paths(), *sorted(store.user_dir().glob("*.json"))):
        item = _read(path)
        if item.table is None:
            found.append((path.stem, "unreadable", item.error))
            continue
        environment = item.table.environment
        found.append((item.table.name, f"{len(item.table.entries)} rows, {environment.gpu_name}, triton {environment.triton}", ""))
    return found


def needs(table: HeuristicTable) -> list[ResourceTable]:
    """What binaries need under the Triton versions that a table is to serve on.

    Those are all known ones for a packaged table, else the one that is installed, or the table's own where none is.
    """
    cc = table.environment.compute_capability[0] * 10 + table.environment.compute_capability[1]
    if table.origin == "packaged":
        return resources.of_capability(cc)
    data = resources.known(cc, installed_triton() or table.environment.triton)
    return [data] if data is not None else []


def device_of(table: HeuristicTable) -> Arch | None:
    """The device whose limits a table's rows are held against: the listed one, or the GPU that is here where it is that one."""
    listed = archs.ARCHS.get(table.environment.device)
    if listed is not None:
        return listed
    here = terminal.arch_here()
    return here if here is not None and table.kinship(here) == "exact" else None


def gate_tables(tables: Iterable[HeuristicTable], variants: Sequence[Variant], workers: int | None = None) -> list[GateResult]:
    """Compile the winner of every row for the table's device with the triton installed, and read the machine code.

    A table whose device nobody knows has no rows here; see `device_of`.
    """
    from kernel_zoo.gate import GateRow, gate

    by_name = {variant.name: variant for variant in variants}
    rows = [
        GateRow(by_name[entry.variant], problem_of(entry.key), entry.tile, device, table.name)
        for table in tables
        if (device := device_of(table)) is not None
        for entry in table.entries
        if entry.tile is not None and entry.variant in by_name
    ]
    return gate(rows, workers)


def triton_version() -> str:
    """The version that a gate runs on."""
    module = sys.modules.get("triton")
    return str(getattr(module, "__version__", "not installed"))


def installed_triton() -> str:
    """The version that is installed; "" without one."""
    from minblas.environment import version

    return version("triton")
