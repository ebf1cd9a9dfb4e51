"""Tuning one shape: the order in which candidates are tried, thrown out, and timed against each other.

Pure procedure over a Bench, which stands for the device; no torch here. The default pick goes first and stays unless another is
faster beyond the noise: tuning must never make a product slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from kernel_zoo.spec import GemmProblem, TileConfig
from minblas.timing import ROUNDS, TARGET_US, Timing, ratio

Status = Literal["ok", "wrong", "failed", "slow"]

FINALISTS: Final = 4
_HOPELESS: Final = 2.5  # times the best rough estimate: not worth a graph
_MIN_GAIN: Final = 0.01  # a winner's lead below this is not a reason to change a pick
_COARSE_ROUNDS: Final = 2
_COARSE_US: Final = 400.0


@dataclass(frozen=True, slots=True)
class Pick:
    """A variant with a tile."""

    variant: str
    tile: TileConfig | None

    def describe(self) -> str:
        """e.g. tiled 128x128x64 g8 w8 s3."""
        return f"{self.variant} {self.tile.describe()}" if self.tile is not None else self.variant


@dataclass(slots=True)
class Trial:
    """What became of one candidate."""

    pick: Pick
    status: Status = "ok"
    message: str = ""
    estimate_us: float = 0.0
    timing: Timing | None = None
    final: bool = False

    @property
    def time_us(self) -> float | None:
        """The best time there is: of the final, else of the coarse pass."""
        return self.timing.median_us if self.timing is not None else None


@dataclass(slots=True)
class ShapeResult:
    """What tuning one shape found. `trials[0]` is the default pick."""

    problem: GemmProblem
    trials: list[Trial] = field(default_factory=list)
    winner: Trial | None = None
    torch: Timing | None = None
    note: str = ""

    @property
    def default(self) -> Trial | None:
        """The pick that was in force before."""
        return self.trials[0] if self.trials else None

    @property
    def changed(self) -> bool:
        """Another pick than the default won."""
        return self.winner is not None and self.winner is not self.default


Rival = tuple[Trial, Any]  # a candidate and what its bench prepared


class Bench(Protocol):
    """One shape on a device."""

    def prepare(self, pick: Pick) -> Any:
        """The pick, ready to be launched; raises where it cannot be compiled or loaded."""

    def verdict(self, prepared: Any) -> str:
        """What is wrong with its results, in words; empty where nothing is."""

    def estimate(self, prepared: Any) -> float:
        """Rough microseconds of a launch."""

    def time(self, prepared: Sequence[Any], estimates: Sequence[float], rounds: int, target_us: float) -> list[Timing]:
        """The rivals timed against each other."""

    def torch(self) -> Any:
        """torch's own product as a rival, or None."""

    def lost(self) -> bool:
        """The device is no longer usable: an error that stays."""


class DeviceLostError(RuntimeError):
    """A candidate took the device down with it."""

    def __init__(self, pick: Pick, error: Exception) -> None:
        self.pick = pick
        super().__init__(f"{pick.describe()}: {error}")


def tune_shape(
    problem: GemmProblem,
    picks: Sequence[Pick],
    bench: Bench,
    *,
    compiled: Callable[[Pick], str] = lambda pick: "",
    verify_only: bool = False,
    rounds: int = ROUNDS,
    target_us: float = TARGET_US,
) -> ShapeResult:
    """Verify the picks, time those that are right, and name the winner.

    Args:
        problem: the shape.
        picks: candidates, the default first.
        bench: the device.
        compiled: waits for a pick's binaries; returns why there are none, or "".
        verify_only: stop before timing.
        rounds: of the final.
        target_us: device time of one graph of the final.

    Raises:
        DeviceLostError: a candidate left the device unusable.
    """
    result = ShapeResult(problem, [Trial(pick) for pick in picks])
    ready = [(trial, prepared) for trial in result.trials if (prepared := _verified(trial, bench, compiled)) is not None]
    if verify_only or not ready:
        result.note = "" if ready else _nobody(result.trials)
        return result
    best = min(trial.estimate_us for trial, _ in ready)
    for trial, _ in ready[1:]:
        if trial.estimate_us > _HOPELESS * best and trial.estimate_us > best + 20.0:
            trial.status, trial.message = "slow", f"about {trial.estimate_us:.0f} us where another takes {best:.0f}"
    running = [(trial, prepared) for trial, prepared in ready if trial.status == "ok"]
    if len(running) > FINALISTS:
        running = _finalists(_time(bench, running, _COARSE_ROUNDS, min(target_us, _COARSE_US)), result.trials[0])
    _final(result, running, bench, rounds, target_us)
    return result


def _nobody(trials: Sequence[Trial]) -> str:
    """Why nothing is left to time, with the first candidate's own reason."""
    if not trials:
        return "no candidate: every variant asked for refuses this shape"
    return f"no candidate is both right and runs; {trials[0].pick.describe()}: {trials[0].status}, {trials[0].message}"


def _verified(trial: Trial, bench: Bench, compiled: Callable[[Pick], str]) -> Any:
    """The prepared pick where it compiles, runs and is right; else None, and the trial says why."""
    trial.message = compiled(trial.pick)
    if trial.message:
        trial.status = "failed"
        return None
    try:
        prepared = bench.prepare(trial.pick)
        trial.message = bench.verdict(prepared)
        if trial.message:
            trial.status = "wrong"
            return None
        trial.estimate_us = bench.estimate(prepared)
    except Exception as error:  # compilers and drivers raise what they like; one candidate must not end the tune
        _raise_if_lost(bench, trial.pick, error)
        trial.status, trial.message = "failed", f"{type(error).__name__}: {error}"
        return None
    return prepared


def _raise_if_lost(bench: Bench, pick: Pick, error: Exception) -> None:
    if bench.lost():
        raise DeviceLostError(pick, error) from error


def _time(bench: Bench, rivals: list[Rival], rounds: int, target_us: float) -> list[Rival]:
    """Time rivals together; returns those that could be timed."""
    try:
        times = bench.time([prepared for _, prepared in rivals], [trial.estimate_us for trial, _ in rivals], rounds, target_us)
    except Exception as error:  # one that launches but cannot be captured, say
        _raise_if_lost(bench, rivals[0][0].pick, error)
        able = rivals if len(rivals) == 1 else [rival for rival in rivals if _time(bench, [rival], 1, target_us)]
        if len(able) == len(rivals):  # each can be timed alone (or it is the only one): the fault lies with no single one
            for trial, _ in rivals:
                trial.status, trial.message = "failed", f"{type(error).__name__}: {error}"
            return []
        return _time(bench, able, rounds, target_us) if able else []
    for (trial, _), timing in zip(rivals, times, strict=True):
        trial.timing = timing
        trial.estimate_us = timing.median_us  # without the launch overhead of a single launch
    return rivals


def _finalists(running: list[Rival], default: Trial) -> list[Rival]:
    """The fastest few, and the default whatever its time."""
    fastest = sorted(running, key=lambda rival: rival[0].estimate_us)[:FINALISTS]
    first = [rival for rival in running if rival[0] is default and rival not in fastest]
    return [*first, *fastest[: FINALISTS - len(first)]]


def _final(result: ShapeResult, running: list[Rival], bench: Bench, rounds: int, target_us: float) -> None:
    torch = bench.torch()
    reference = Trial(Pick("torch", None))
    if torch is not None:
        reference.estimate_us = bench.estimate(torch)
        running = [*running, (reference, torch)]
    finalists = [trial for trial, _ in (_time(bench, running, rounds, target_us) if running else [])]
    result.torch = reference.timing
    finalists = [trial for trial in finalists if trial is not reference]
    for trial in finalists:
        trial.final = True
    if finalists:
        result.winner = choose_winner(finalists, result.default)
    else:
        result.note = "no candidate could be timed"


def choose_winner(finalists: Sequence[Trial], default: Trial | None) -> Trial:
    """The fastest, unless the default is as fast within the noise."""
    fastest = min(finalists, key=lambda trial: trial.time_us or 0.0)
    if default is None or default.timing is None or default not in finalists or fastest is default:
        return fastest
    assert fastest.timing is not None
    gain = ratio(fastest.timing, default.timing)
    return fastest if gain.faster and gain.value < 1 - _MIN_GAIN else default
