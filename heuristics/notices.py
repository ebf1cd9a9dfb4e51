"""Warnings that are said once per process, however often their cause is met. A leaf: imports nothing of ours."""

from __future__ import annotations

import threading
import warnings
from functools import lru_cache
from typing import Final

_LOCK: Final = threading.RLock()  # a filter that a warning runs into may itself warn


class TableWarning(UserWarning):
    """A table, or a row of one, was not used; the message says which and why."""


def warn_once(message: str) -> None:
    """Warn, unless this very message was given before in the process, by any thread."""
    with _LOCK:
        _say(message)


def forget() -> None:
    """Let everything be said again."""
    _say.cache_clear()


@lru_cache(maxsize=1024)
def _say(message: str) -> None:
    warnings.warn(message, TableWarning, stacklevel=3)
