"""Where tables lie and how they are written: packaged beside this file, the user's own in the platform's data directory.

A reader never fails because of a file: what cannot be used is a miss, with one warning a file and cause that says which, why and
what to do. A writer holds a lock, merges with what is on disk and replaces the file in one step: a kill leaves the old file or the
new one, whole. What a writer would not write back is kept beside.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from heuristics.atomic import free_name, locked, replace_text
from heuristics.compare import Change, Finding, diff, merge, verify
from heuristics.notices import warn_once
from heuristics.serialise import Remark, TableFileError, dumps, loads
from heuristics.table import HeuristicTable
from kernel_zoo.spec import Arch

PACKAGED: Final = Path(__file__).parent / "tables"
_ROWS_NAMED: Final = 5


def user_dir() -> Path:
    """Where the user's own tables lie."""
    import platformdirs

    return platformdirs.user_data_path("minblas") / "tables"


def load(path: str | os.PathLike[str]) -> HeuristicTable:
    """The table in a file. What is left out of it is said, in one warning for each cause.

    Raises:
        OSError: the file cannot be read.
        TableFileError: it is no table.
    """
    table, remarks = read(path)
    for message in summaries(remarks):
        warn_once(f"table {path}: {message}")
    return table


def read(path: str | os.PathLike[str]) -> tuple[HeuristicTable, list[Remark]]:
    """The table in a file, and what was left out of it; warns of nothing.

    Raises:
        OSError: the file cannot be read.
        TableFileError: it is no table.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
        raise TableFileError(f"{path} is not a minblas table: it is no regular file")
    return _parse(str(path), path.read_bytes())


def summaries(remarks: Iterable[Remark]) -> list[str]:
    """Remarks as sentences: one for each cause, with the rows and what to do."""
    by_cause: dict[str, list[Remark]] = {}
    for remark in remarks:
        by_cause.setdefault(remark.cause, []).append(remark)
    return [_summary(group) for group in by_cause.values()]


def packaged_tables(arch: Arch) -> tuple[HeuristicTable, ...]:
    """The tables that ship with minblas for the device, then those of others of its capability."""
    return _related(sorted(PACKAGED.glob("*.json")), arch)


def user_tables(arch: Arch) -> tuple[HeuristicTable, ...]:
    """The tables named by MINBLAS_TABLE, in its order, then those in the user's directory."""
    named = [Path(part) for part in os.environ.get("MINBLAS_TABLE", "").split(os.pathsep) if part]
    tables = _related(named, arch, asked_for=True)
    return tables + _related(sorted(user_dir().glob("*.json")), arch)


def save(table: HeuristicTable, path: str | os.PathLike[str] | None = None) -> Path:
    """Write a table, merged over what the file already holds; by default into the user's directory. Returns the path.

    Once it has returned the rows are on the disk, whatever happens to the process.

    Raises:
        ValueError: the file holds rows of another device.
        OSError: the file cannot be written, or another process holds its lock for a minute.
    """
    target = Path(path) if path is not None else user_dir() / f"{table.environment.device}.json"
    with locked(target):
        present = _present(target)
        merged = table if present is None else replace(merge(present, table), name=str(target))
        replace_text(target, dumps(merged))
    return target


def rewrite(table: HeuristicTable, path: str | os.PathLike[str], read_as: HeuristicTable) -> Path:
    """Put a table in the place of the one that was read from a file, and keep the old file beside. Returns where it is kept.

    Raises:
        ValueError: the file has changed since it was read.
        OSError: the file cannot be written, or another process holds its lock for a minute.
    """
    target = Path(path)
    with locked(target):
        if read(target)[0] != read_as:
            raise ValueError(f"{target} was changed by another process meanwhile; run the command again")
        kept = free_name(target, "bak")
        shutil.copy2(target, kept)
        replace_text(target, dumps(table))
    return kept


def write(table: HeuristicTable, path: str | os.PathLike[str]) -> Path:
    """Put a generated table in the place of an older generated one, or where no file is.

    Raises:
        ValueError: the file holds rows that were measured or written by hand.
        TableFileError: it is no table.
        OSError: the file cannot be written, or another process holds its lock for a minute.
    """
    target = Path(path)
    with locked(target):
        own = [entry for entry in read(target)[0].entries if entry.source != "modelled"] if target.exists() else []
        if own:
            raise ValueError(
                f"{target} holds {len(own)} rows that are no model's; name another file, then `minblas table merge` both"
            )
        replace_text(target, dumps(table))
    return target


@lru_cache(maxsize=16)
def _parse(path: str, data: bytes) -> tuple[HeuristicTable, list[Remark]]:
    """A file's table. Keyed on its content: inodes, sizes and coarse clocks repeat."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableFileError(f"{path} is not a minblas table: it is not UTF-8 text") from error
    packaged = Path(path).absolute().parent == PACKAGED.absolute()
    return loads(text, f"packaged {Path(path).stem}" if packaged else path, "packaged" if packaged else "user")


def _summary(group: Sequence[Remark]) -> str:
    """Remarks of one cause as one sentence."""
    first, *others = group
    if not others:
        return f"{first}; {first.remedy}"
    rows = [str(remark.row) for remark in others[:_ROWS_NAMED] if remark.row]
    named = f": rows {', '.join(rows)}{', ...' if len(others) > _ROWS_NAMED else ''}" if rows else ""
    return f"{first} ({len(others)} more of the kind{named}); {first.remedy}"


def _related(paths: Iterable[Path], arch: Arch, asked_for: bool = False) -> tuple[HeuristicTable, ...]:
    """Those of the files that hold rows for the device or its capability, the device's own first."""
    found: list[HeuristicTable] = []
    for path in paths:
        try:
            table = load(path)
        except (OSError, TableFileError) as error:
            warn_once(f"table {path} is ignored: {error}")
            continue
        kinship = table.kinship(arch)
        if kinship is not None:
            found.append(table)
        if asked_for and kinship != "exact":
            warn_once(_foreign(path, table, arch))
    return tuple(sorted(found, key=lambda table: table.kinship(arch) != "exact"))


def _foreign(path: Path, table: HeuristicTable, arch: Arch) -> str:
    """What becomes of a table that was asked for and is not of the device."""
    major, minor = table.environment.compute_capability
    device = f"the device is {arch.name} ({arch.capability[0]}.{arch.capability[1]}, {arch.sm_count} SMs)"
    rows = f"its rows are of {table.where} (compute capability {major}.{minor})"
    remedy = f"name a table of {arch.name} in MINBLAS_TABLE, or tune on it"
    if table.kinship(arch) is None:
        return f"table {path} is ignored: {rows}, {device}; {remedy}"
    return f"table {path} gives hints only, which the model weighs: {rows}, {device}; {remedy}"


def _present(target: Path) -> HeuristicTable | None:
    """What the file holds now. What of it would not be written back is kept beside, under another name."""
    if not target.exists():
        return None
    try:
        table, remarks = read(target)
    except TableFileError as error:
        aside = free_name(target, "corrupt")
        os.replace(target, aside)
        warn_once(f"table {target} was not usable and is kept as {aside.name}: {error}")
        return None
    if remarks:
        aside = free_name(target, "bak")
        shutil.copy2(target, aside)
        warn_once(f"table {target} is kept as {aside.name}, for not all of it is written back: {'; '.join(summaries(remarks))}")
    return table


__all__ = [
    "Change",
    "Finding",
    "Remark",
    "TableFileError",
    "diff",
    "load",
    "merge",
    "packaged_tables",
    "read",
    "rewrite",
    "save",
    "summaries",
    "user_dir",
    "user_tables",
    "verify",
    "write",
]
