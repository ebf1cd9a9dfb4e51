"""Files that are whole whatever happens to their writer: a lock, a new file beside, one rename. A leaf: imports nothing of ours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

_LOCK_SECONDS: Final = 60.0


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold a file's lock. The system frees it when its holder dies; the empty lock file itself holds nobody up.

    Raises:
        TimeoutError: another process holds it for a minute.
    """
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock", timeout=_LOCK_SECONDS):
        yield


def replace_text(target: Path, text: str) -> None:
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


def free_name(target: Path, ending: str) -> Path:
    """A name beside a file that nothing has: table.json.bak, table.json.bak2, ..."""
    names = (target.with_name(f"{target.name}.{ending}{number if number > 1 else ''}") for number in count(1))
    return next(name for name in names if not name.exists())


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut, where the system lets a directory be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["free_name", "locked", "replace_text"]
