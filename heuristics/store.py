"""Where tables lie and how they are written: packaged beside this file, the user's own in the platform's data directory.

A reader never fails because of a file: what cannot be used is a miss, with one warning that says which file and why. A writer
holds a lock, merges with what is on disk and replaces the file in one step: a kill leaves the old file or the new one, whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from heuristics.compare import Change, Finding, diff, merge, verify
from heuristics.notices import warn_once
from heuristics.schema import TableFileError, dumps, loads
from heuristics.table import HeuristicTable
from kernel_zoo.spec import Arch

PACKAGED: Final = Path(__file__).parent / "tables"
_LOCK_SECONDS: Final = 60.0


def user_dir() -> Path:
    """Where the user's own tables lie."""
    import platformdirs

    return platformdirs.user_data_path("minblas") / "tables"


def load(path: str | os.PathLike[str]) -> HeuristicTable:
    """The table in a file. What is left out of it is said in one warning.

    Raises:
        OSError: the file cannot be read.
        TableFileError: it is no table.
    """
    path = Path(path)
    stat = path.stat()
    table, remarks = _parse(str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino)
    if remarks:
        more = f" ({len(remarks) - 1} more remarks)" if len(remarks) > 1 else ""
        warn_once(f"table {path}: {remarks[0]}{more}")
    return table


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

    Raises:
        ValueError: the file holds rows of another device.
        OSError: the file cannot be written, or another process holds its lock for a minute.
    """
    from filelock import FileLock

    target = Path(path) if path is not None else user_dir() / f"{table.environment.device}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock", timeout=_LOCK_SECONDS):
        present = _present(target)
        merged = table if present is None else replace(merge(present, table), name=str(target))
        _replace(target, dumps(merged))
    return target


@lru_cache(maxsize=64)
def _parse(path: str, mtime_ns: int, size: int, inode: int) -> tuple[HeuristicTable, list[str]]:
    """A file's table; the stat is part of the key, so a changed file is read again."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TableFileError(f"{path} is not a minblas table: it is not UTF-8 text") from error
    packaged = Path(path).parent == PACKAGED
    return loads(text, f"packaged {Path(path).stem}" if packaged else path, "packaged" if packaged else "user")


def _related(paths: Iterable[Path], arch: Arch, asked_for: bool = False) -> tuple[HeuristicTable, ...]:
    """Those of the files that hold rows for the device or its capability, the device's own first."""
    found: list[HeuristicTable] = []
    for path in paths:
        try:
            table = load(path)
        except (OSError, TableFileError) as error:
            warn_once(f"table {path} is ignored: {error}")
            continue
        if table.kinship(arch) is not None:
            found.append(table)
        elif asked_for:
            major, minor = table.environment.compute_capability
            warn_once(
                f"table {path} is ignored: its rows are of {table.environment.gpu_name} (compute capability {major}.{minor}), "
                f"the device is {arch.name} ({arch.capability[0]}.{arch.capability[1]})"
            )
    return tuple(sorted(found, key=lambda table: table.kinship(arch) != "exact"))


def _present(target: Path) -> HeuristicTable | None:
    """What the file holds now; one that is no table is kept beside, under another name, rather than overwritten."""
    if not target.exists():
        return None
    try:
        return load(target)
    except TableFileError as error:
        aside = target.with_name(target.name + ".corrupt")
        os.replace(target, aside)
        warn_once(f"table {target} was not usable and is kept as {aside.name}: {error}")
        return None


def _replace(target: Path, text: str) -> None:
    """Write beside, flush to the disk, rename over; sweep what a killed writer left. The caller holds the lock."""
    for stale in target.parent.glob(f".{target.name}.*.tmp"):
        stale.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut, where the system lets a directory be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = [
    "Change",
    "Finding",
    "TableFileError",
    "diff",
    "load",
    "merge",
    "packaged_tables",
    "save",
    "user_dir",
    "user_tables",
    "verify",
]
