"""Logging: standard loggers under `minblas`, silent until someone listens.

MINBLAS_LOGS="dispatch,+tune" turns records on without code: a name alone shows INFO, +name DEBUG, -name only errors; "all" stands
for every logger.
Leaf: standard library only.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from minblas.errors import SettingsError, suggestion

#: What can be listened to.
CHANNELS: Final = ("dispatch", "launch", "plan", "register", "settings", "tables", "tune", "warmup")

_LEVELS: Final = {"+": logging.DEBUG, "-": logging.ERROR}
_ROOT: Final = logging.getLogger("minblas")
_ROOT.addHandler(logging.NullHandler())
_SAID: Final[set[str]] = set()
_SAID_LOCK: Final = threading.Lock()


def get(channel: str) -> logging.Logger:
    """The logger of one channel."""
    return logging.getLogger(f"minblas.{channel}")


def once(channel: str, message: str, *args: object, level: int = logging.WARNING) -> None:
    """Log a message the first time it is said in this process."""
    text = message % args if args else message
    with _SAID_LOCK:
        if text in _SAID:
            return
        _SAID.add(text)
    get(channel).log(level, "%s", text)


def parse(spec: str) -> dict[str, int]:
    """Levels by channel from "dispatch,+tune,-plan" or "+all".

    Raises:
        SettingsError: a name is not a channel.
    """
    levels: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in spec.split(","))):
        level = _LEVELS.get(word[0], logging.INFO)
        name = word.lstrip("+-")
        if name != "all" and name not in CHANNELS:
            raise SettingsError(
                f"MINBLAS_LOGS names {name!r}",
                "a comma-separated list of +name, name or -name",
                suggestion(name, ("all", *CHANNELS)),
            )
        levels.update(dict.fromkeys(CHANNELS, level) if name == "all" else {name: level})
    return levels


def configure(spec: str | None = None) -> None:
    """Show the channels of `spec` (default: MINBLAS_LOGS) on stderr. Does nothing where it is empty."""
    spec = os.environ.get("MINBLAS_LOGS", "") if spec is None else spec
    levels = parse(spec)
    if not levels:
        return
    if not any(isinstance(handler, logging.StreamHandler) for handler in _ROOT.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname).1s: %(message)s"))
        _ROOT.addHandler(handler)
        _ROOT.propagate = False
    for channel, level in levels.items():
        get(channel).setLevel(level)
