"""How far a long task is: a bar with the time left on a terminal, a line now and then in a log file, nothing where not wanted."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Final, Self

_EVERY_S: Final = 15.0


class Progress:
    """Counts steps of a task. Use as a context manager."""

    def __init__(self, what: str, total: int, *, show: bool = True) -> None:
        self._what, self._total, self._show = what, total, show
        self._done = 0
        self._began = self._said = time.monotonic()
        self._bar: Any = None

    def say(self, text: str) -> None:
        """What is being done now: on a terminal, where it does not pile up."""
        if self._bar is not None:
            self._bar.update(self._task, text=text)

    def step(self, text: str = "") -> None:
        """One step is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, text=text)
        elif self._show and (time.monotonic() - self._said >= _EVERY_S or self._done == self._total):
            self._said = time.monotonic()
            elapsed = self._said - self._began
            left = elapsed / self._done * (self._total - self._done)
            print(
                f"{self._what}: {self._done}/{self._total}, {elapsed:.0f} s, about {left:.0f} s left; {text}",
                file=sys.stderr,
                flush=True,
            )

    def __enter__(self) -> Self:
        if self._show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn(self._what),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}", markup=False),
            )
            self._bar = RichProgress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total, text="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
