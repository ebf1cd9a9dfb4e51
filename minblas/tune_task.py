"""One shape as work for whoever tunes it: this process, or one that may die of it.

A candidate can take its whole process down. So that whoever looks on knows which one did, every step is announced before it is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernel_zoo.spec import GemmProblem
from minblas.timing import Timing
from minblas.tune_shape import Bench, DeviceLostError, tune_shape
from minblas.tune_trial import TORCH, Pick, ShapeResult


class Benches(Protocol):
    """Makes the bench of a shape."""

    def open(self, problem: GemmProblem) -> AbstractContextManager[Bench]:
        """A bench for one shape."""


@dataclass(frozen=True, slots=True)
class Task:
    """A shape to be tuned.

    Attributes:
        problem: the shape.
        picks: its candidates, the default first.
        refused: why a pick cannot run.
        skipped: why a pick is not to be tried.
        verify_only, careful, torch: as in `tune_shape`.
    """

    problem: GemmProblem
    picks: tuple[Pick, ...]
    refused: Mapping[Pick, str] = field(default_factory=dict)
    skipped: Mapping[Pick, str] = field(default_factory=dict)
    verify_only: bool = False
    careful: bool = False
    torch: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """What is about to be done, and with which candidates."""

    name: str
    picks: tuple[Pick, ...] = ()

    def describe(self) -> str:
        """e.g. verify tiled 128x128x64 g8 w8 s3."""
        if not self.picks:
            return self.name
        return f"{self.name} {self.picks[0].describe() if len(self.picks) == 1 else f'{len(self.picks)} candidates'}"


@dataclass(frozen=True, slots=True)
class Lost:
    """A step after which the device, or the process, is no more."""

    picks: tuple[Pick, ...]
    message: str


Announce = Callable[[Step], None]
Told = Callable[[Task, Step], None]


class Runner(Protocol):
    """Whoever tunes a shape.

    Attributes:
        survives: it can go on after a candidate took the device down.
    """

    survives: bool

    def lacking(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the variants that it does not have, with the reason."""

    def run(self, task: Task) -> ShapeResult:
        """Tune a shape.

        Raises:
            DeviceLostError: a candidate left the device unusable.
        """


class Announced:
    """A bench that says what it is about to do."""

    def __init__(self, bench: Bench, announce: Announce) -> None:
        self._bench, self._announce = bench, announce

    def prepare(self, pick: Pick) -> tuple[Pick, Any]:
        """Compile and load."""
        self._announce(Step("load", (pick,)))
        return pick, self._bench.prepare(pick)

    def verdict(self, prepared: tuple[Pick, Any]) -> str:
        """Verify."""
        self._announce(Step("verify", (prepared[0],)))
        return self._bench.verdict(prepared[1])

    def estimate(self, prepared: tuple[Pick, Any]) -> float:
        """Launch a few times."""
        self._announce(Step("try", (prepared[0],)))
        return self._bench.estimate(prepared[1])

    def time(self, prepared: Sequence[tuple[Pick, Any]], estimates: Sequence[float], rounds: int, target_us: float) -> list[Timing]:
        """Time rivals."""
        self._announce(Step("time", tuple(pick for pick, _ in prepared)))
        return self._bench.time([each for _, each in prepared], estimates, rounds, target_us)

    def torch(self) -> tuple[Pick, Any] | None:
        """torch's own product."""
        self._announce(Step("load", (TORCH,)))
        made = self._bench.torch()
        return (TORCH, made) if made is not None else None

    def lost(self) -> bool:
        """The device is no longer usable."""
        return self._bench.lost()


def run_task(
    task: Task, makers: Benches, announce: Announce = lambda step: None, lost: Callable[[], bool] = lambda: False
) -> ShapeResult:
    """Tune a shape here. A shape that is too large for the device ends with a note.

    Args:
        task: the shape.
        makers: the device.
        announce: told of every step before it is taken.
        lost: whether the device is no longer usable, where no bench could be made to ask.

    Raises:
        DeviceLostError: a candidate left the device unusable.
    """
    announce(Step("prepare buffers"))
    try:
        with makers.open(task.problem) as bench:
            return tune_shape(
                task.problem,
                task.picks,
                Announced(bench, announce),
                compiled=lambda pick: task.refused.get(pick, ""),
                skip=lambda pick: task.skipped.get(pick, ""),
                verify_only=task.verify_only,
                careful=task.careful,
                torch=task.torch,
            )
    except DeviceLostError:
        raise
    except (MemoryError, RuntimeError) as error:  # torch's out-of-memory error is a RuntimeError
        if lost():
            raise DeviceLostError((), error) from error
        return ShapeResult(task.problem, note=f"{type(error).__name__}: {error}".splitlines()[0])


class Local:
    """Shapes tuned in this process."""

    survives = False

    def __init__(self, makers: Benches, told: Told, lost: Callable[[], bool]) -> None:
        self._makers, self._told, self._lost = makers, told, lost

    def lacking(self, names: Iterable[str]) -> dict[str, str]:
        """None: this process has them all."""
        return {}

    def run(self, task: Task) -> ShapeResult:
        """Tune a shape.

        Raises:
            DeviceLostError: a candidate left the device unusable.
        """
        return run_task(task, self._makers, lambda step: self._told(task, step), self._lost)


__all__ = ["Announce", "Announced", "Benches", "Local", "Lost", "Runner", "Step", "Task", "Told", "run_task"]
