"""Device time of rivals, measured so that only their difference remains.

Launches are captured into CUDA graphs that rotate over buffer sets larger than L2. Rivals are replayed interleaved (A B B A), so
that a drifting clock touches all of them alike. A round is the mean of a rival's two passes, and the report is the median over
rounds with an interval. Only CudaEngine touches a device: the schedule and the statistics are plain Python over an Engine.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import torch

Run = Callable[[int], object]  # launches once on the buffer set of that index
Replay = Callable[[], None]

ROUNDS: Final = 5
TARGET_US: Final = 1000.0  # device time of one graph: long against the gap between an event and the first kernel
MAX_LAUNCHES: Final = 400  # nodes of one graph; capturing costs a few microseconds of host time each
_TAIL: Final = 0.0625  # chance that the reported interval misses the median: five rounds and their extremes


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one launch over the rounds, in microseconds. `samples` pairs with the rivals' by position."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int
    samples: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """The summary of one rival's rounds."""
        low, high = interval(samples)
        return cls(statistics.median(samples), low, high, len(samples), tuple(samples))

    @property
    def spread(self) -> float:
        """Width of the interval over the median: the noise of this measurement."""
        return (self.high_us - self.low_us) / self.median_us if self.median_us else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times longer one rival took than another, with the interval of the paired rounds."""

    value: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """The whole interval lies above 1: the first rival is slower than the second beyond the noise."""
        return self.low > 1.0

    @property
    def faster(self) -> bool:
        """The whole interval lies below 1."""
        return self.high < 1.0


def ratio(first: Timing, second: Timing) -> Ratio:
    """first / second: the ratio of medians, and the interval of the ratios of paired rounds.

    Raises:
        ValueError: the two were not measured together.
    """
    if len(first.samples) != len(second.samples) or not first.samples:
        raise ValueError(f"rivals of one measurement have the same rounds; given {len(first.samples)} and {len(second.samples)}")
    value = first.median_us / second.median_us
    low, high = interval([a / b for a, b in zip(first.samples, second.samples, strict=True)])
    return Ratio(value, min(low, value), max(high, value))


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The order statistics that enclose the median with a confidence of at least 93% (the extremes of fewer than nine rounds)."""
    ordered = sorted(samples)
    count = len(ordered)
    rank, tail = 0, 2.0 / 2**count
    while rank + 1 <= (count - 1) // 2:
        tail += 2.0 * math.comb(count, rank + 1) / 2**count
        if tail > _TAIL:
            break
        rank += 1
    return ordered[rank], ordered[count - 1 - rank]


def schedule(rivals: int, round_index: int) -> list[int]:
    """The order of one round: there and back (A B B A), starting at the other end every second round."""
    order = list(range(rivals))
    if round_index % 2:
        order.reverse()
    return order + order[::-1]


def launches_for(estimate_us: float, target_us: float = TARGET_US) -> int:
    """Launches per graph so that one replay takes about `target_us`."""
    return max(1, min(MAX_LAUNCHES, round(target_us / max(estimate_us, 0.5))))


class Engine(Protocol):
    """What a device must offer to be timed."""

    def estimate(self, run: Run) -> float:
        """Rough microseconds of one launch, after a warm-up launch."""

    def capture(self, run: Run, indices: Sequence[int]) -> Replay:
        """The launches on these buffer sets, ready to be replayed."""

    def measure(self, replays: Sequence[Replay]) -> list[float]:
        """Microseconds of each replay, run back to back."""


def time_interleaved(
    runs: Sequence[Run],
    *,
    sets: int = 1,
    rounds: int = ROUNDS,
    target_us: float = TARGET_US,
    warm_up_us: float = 0.0,
    estimates: Sequence[float] | None = None,
    engine: Engine | None = None,
    device: torch.device | str | None = None,
) -> list[Timing]:
    """Times rivals against each other.

    Args:
        runs: one callable a rival, which launches once on the buffer set whose index it is given.
        sets: how many buffer sets there are; see `minblas.buffers.buffer_sets`.
        rounds: at least 5 where the interval is to mean anything.
        target_us: device time of one replay.
        warm_up_us: device time for which the rivals are replayed in turn before the rounds count, at least once each. A card that
            rested runs at a clock which it does not hold under load.
        estimates: microseconds of one launch of each rival, where known.
        engine: how launches are captured and timed; CUDA graphs by default.
        device: the CUDA device, the current one by default.

    Raises:
        RuntimeError: no engine is given and there is no CUDA device.
    """
    if rounds < 1 or sets < 1:
        raise ValueError(f"rounds and sets must be at least 1; given rounds={rounds}, sets={sets}")
    if not runs:
        return []
    engine = engine or CudaEngine(device)
    estimates = estimates or [engine.estimate(run) for run in runs]
    replays: list[Replay] = []
    counts = [launches_for(estimate, target_us) for estimate in estimates]
    start = 0
    for run, count in zip(runs, counts, strict=True):
        replays.append(engine.capture(run, [(start + i) % sets for i in range(count)]))
        start += count  # the next rival begins on buffers that this one has not just pulled into L2
    spent = sum(engine.measure(replays))
    while 0.0 < spent < warm_up_us:
        spent += sum(engine.measure(replays))
    samples: list[list[float]] = [[] for _ in runs]
    for index in range(rounds):
        order = schedule(len(runs), index)
        times = engine.measure([replays[rival] for rival in order])
        for rival in range(len(runs)):
            passes = [time for who, time in zip(order, times, strict=True) if who == rival]
            samples[rival].append(statistics.fmean(passes) / counts[rival])
    return [Timing.of(rival) for rival in samples]


_HEAD_START: Final = 600_000  # clocks, about 0.3 ms: more than the host takes for three launches of anything here


class CudaEngine:
    """CUDA graphs and events on a side stream that first waits for the caller's."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError(
                "timing needs a CUDA device and this machine has none; run it where torch.cuda.is_available() is true"
            )
        self._torch: Any = torch
        self.device = torch.device(device or "cuda")
        with torch.cuda.device(self.device):
            self._stream: Any = self._torch.cuda.Stream()
        # Keeps the graphs' shared memory pool alive: a pool that no graph uses cannot be captured into again.
        self._anchor: Any = None

    def estimate(self, run: Run) -> float:
        """Microseconds of one launch, the shortest of three.

        The stream is kept busy while they are put on it: else the host's time is measured, and what takes two launches seems slow.
        """
        with self._on_stream():
            run(0)
            self._torch.cuda._sleep(_HEAD_START)
            marks = [self._event() for _ in range(4)]
            for mark in marks[:-1]:
                mark.record()
                run(0)
            marks[-1].record()
            self._stream.synchronize()
        return float(min(a.elapsed_time(b) for a, b in itertools.pairwise(marks))) * 1000.0

    def capture(self, run: Run, indices: Sequence[int]) -> Replay:
        """A CUDA graph of the launches. Leaves capture mode whatever happens.

        torch.cuda.graph would empty the allocator's cache each time; with tens of thousands of graphs to a tune that is most of it.
        """
        if self._anchor is None:
            cell = self._torch.zeros(1, device=self.device)
            self._anchor = self._capture(lambda index: cell.zero_(), (0,), None)
        replay: Replay = self._capture(run, indices, self._anchor.pool()).replay
        return replay

    def _capture(self, run: Run, indices: Sequence[int], pool: Any) -> Any:
        from minblas.counters import ZEROED

        graph = self._torch.cuda.CUDAGraph()
        with self._on_stream():
            run(indices[0])  # what is done at a first launch only must not be captured
            self._stream.synchronize()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                # Replayed on this stream only: what is timed is the kernels, not the zeroing of a graph's own counters.
                with ZEROED.captures_stay_on_their_stream():
                    for index in indices:
                        run(index)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the launch's own error says more than the spoilt capture's
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def measure(self, replays: Sequence[Replay]) -> list[float]:
        """Microseconds of each replay. An untimed one goes first, so that the host is ahead of the device when the clock starts."""
        marks = [(self._event(), self._event()) for _ in replays]
        with self._on_stream():
            replays[-1]()
            for replay, (begin, end) in zip(replays, marks, strict=True):
                begin.record()
                replay()
                end.record()
            self._stream.synchronize()
        return [float(begin.elapsed_time(end)) * 1000.0 for begin, end in marks]

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)

    @contextlib.contextmanager
    def _on_stream(self) -> Any:
        """Work on the side stream, ordered after the caller's stream and before what the caller does next."""
        with self._torch.cuda.device(self.device):
            caller = self._torch.cuda.current_stream()
            self._stream.wait_stream(caller)
            with self._torch.cuda.stream(self._stream):
                yield
            caller.wait_stream(self._stream)


__all__ = ["CudaEngine", "Engine", "Ratio", "Timing", "interval", "launches_for", "ratio", "schedule", "time_interleaved"]
