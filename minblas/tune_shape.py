"""Tuning one shape: the order in which candidates are tried, thrown out, and timed against each other.

Pure procedure over a Bench, which stands for the device; no torch here. The default pick goes first and stays unless another is
faster beyond the noise: tuning must never make a product slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kernel_zoo.spec import GemmProblem
from minblas.timing import ROUNDS, TARGET_US, Timing, ratio
from minblas.tune_trial import TORCH, Pick, ShapeResult, Trial

FINALISTS: Final = 4
_HOPELESS: Final = 2.5  # times the best rough estimate: not worth a graph
_MIN_GAIN: Final = 0.01  # a winner's lead below this is not a reason to change a pick
_COARSE_ROUNDS: Final = 2
_COARSE_US: Final = 400.0


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
    """A candidate took the device down with it: one of `picks`, or, where that is empty, nobody knows what did."""

    def __init__(self, picks: Sequence[Pick], error: object) -> None:
        self.picks = tuple(picks)
        self.message = str(error)
        names = " or ".join(pick.describe() for pick in self.picks)
        super().__init__(f"{names}: {error}" if names else self.message)


def tune_shape(
    problem: GemmProblem,
    picks: Sequence[Pick],
    bench: Bench,
    *,
    compiled: Callable[[Pick], str] = lambda pick: "",
    verify_only: bool = False,
    careful: bool = False,
    torch: bool = True,
    skip: Callable[[Pick], str] = lambda pick: "",
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
        careful: time rivals alone before they are timed together, so that one that takes the device down is known.
        torch: torch's own product is timed beside the finalists.
        skip: why a pick is not to be tried, or "".
        rounds: of the final.
        target_us: device time of one graph of the final.

    Raises:
        DeviceLostError: a candidate left the device unusable.
    """
    result = ShapeResult(problem, [Trial(pick) for pick in picks])
    ready: list[Rival] = []
    for trial in result.trials:
        if why := skip(trial.pick):
            trial.status, trial.message = "skipped", why
        elif (prepared := _verified(trial, bench, compiled)) is not None:
            ready.append((trial, prepared))
    if verify_only or not ready:
        result.note = "" if ready else _nobody(result.trials)
        return result
    best = min(trial.estimate_us for trial, _ in ready)
    for trial, _ in ready[1:]:
        if trial.estimate_us > _HOPELESS * best and trial.estimate_us > best + 20.0:
            trial.status, trial.message = "slow", f"about {trial.estimate_us:.0f} us where another takes {best:.0f}"
    running = [(trial, prepared) for trial, prepared in ready if trial.status == "ok"]
    if len(running) > FINALISTS:
        running = _finalists(_time(bench, running, _COARSE_ROUNDS, min(target_us, _COARSE_US), careful), result.trials[0])
    rival = _torch(bench) if torch and running else None
    _final(result, running, rival, bench, rounds, target_us, careful)
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
        _raise_if_lost(bench, [trial.pick], error)
        trial.status, trial.message = "failed", f"{type(error).__name__}: {error}"
        return None
    return prepared


def _torch(bench: Bench) -> Rival | None:
    """torch's own product; None where torch has none, or refuses: that is no reason to do without a winner."""
    reference = Trial(TORCH)
    try:
        prepared = bench.torch()
        if prepared is None:
            return None
        reference.estimate_us = bench.estimate(prepared)
    except Exception as error:  # a library that does not support the types, or is out of workspace
        _raise_if_lost(bench, [TORCH], error)
        return None
    return reference, prepared


def _raise_if_lost(bench: Bench, picks: Sequence[Pick], error: Exception) -> None:
    if bench.lost():
        raise DeviceLostError(picks, error) from error


def _time(bench: Bench, rivals: list[Rival], rounds: int, target_us: float, careful: bool = False) -> list[Rival]:
    """Time rivals together, after each alone where `careful`; returns those that could be timed."""
    if careful and len(rivals) > 1:
        rivals = [rival for rival in rivals if _time(bench, [rival], 1, target_us)]
    if not rivals:
        return []
    try:
        times = bench.time([prepared for _, prepared in rivals], [trial.estimate_us for trial, _ in rivals], rounds, target_us)
    except Exception as error:  # one that launches but cannot be captured, say
        _raise_if_lost(bench, [trial.pick for trial, _ in rivals], error)
        able = rivals if len(rivals) == 1 else [rival for rival in rivals if _time(bench, [rival], 1, target_us)]
        if len(able) == len(rivals):  # each can be timed alone (or it is the only one): the fault lies with no single one
            for trial, _ in rivals:
                trial.status, trial.message = "failed", f"{type(error).__name__}: {error}"
            return []
        return _time(bench, able, rounds, target_us) if able else []
    for (trial, _), timing in zip(rivals, times, strict=True):
        trial.timing = timing
        trial.estimate_us = timing.median_us  # of many launches
    return rivals


def _finalists(running: list[Rival], default: Trial) -> list[Rival]:
    """The fastest few, and the default whatever its time."""
    fastest = sorted(running, key=lambda rival: rival[0].estimate_us)[:FINALISTS]
    first = [rival for rival in running if rival[0] is default and rival not in fastest]
    return [*first, *fastest[: FINALISTS - len(first)]]


def _final(
    result: ShapeResult, running: list[Rival], torch: Rival | None, bench: Bench, rounds: int, target_us: float, careful: bool
) -> None:
    """Time the finalists against each other, and torch beside them; only this measurement names a winner."""
    timed = [trial for trial, _ in _time(bench, [*running, *([torch] if torch else [])], rounds, target_us, careful)]
    if torch is not None and torch[0] in timed:
        result.torch = torch[0].timing
    finalists = [trial for trial in timed if trial.pick != TORCH]
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
