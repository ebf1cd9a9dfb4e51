"""Warnings that are said once per process, however often their cause is met. A leaf: imports nothing of ours."""

from __future__ import annotations

import warnings
from functools import lru_cache


class TableWarning(UserWarning):
    """A table, or a row of one, was not used; the message says which and why."""


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Warn, unless this very message was given before. `warn_once.cache_clear()` forgets what was said."""
    warnings.warn(message, TableWarning, stacklevel=2)
