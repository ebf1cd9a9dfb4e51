"""Timing: the schedule, the statistics, the arguments. The device is a fake with a clock of its own."""

from __future__ import annotations

import math

import pytest
import torch

from minblas import timing
from minblas.timing import Timing, interval, launches_for, ratio, schedule, time_interleaved


class FakeEngine:
    """A device on which each rival has a speed, drifting by `drift` a replay; records what was asked of it."""

    def __init__(self, speeds, drift=0.0, noise=()):
        self.speeds, self.drift, self.noise = speeds, drift, list(noise)
        self.replayed, self.captured, self.launched = [], [], []
        self.now = 0.0

    def estimate(self, run):
        self.launched.clear()
        run(0)
        return self.speeds[self.launched[-1][0]] * 1.2

    def capture(self, run, indices):
        self.launched.clear()
        for index in indices:
            run(index)
        rival = self.launched[0][0]
        self.captured.append((rival, [index for _, index in self.launched]))
        count = len(indices)

        def replay():
            self.replayed.append(rival)
            self.now += 1
            extra = self.noise.pop(0) if self.noise else 0.0
            return count * self.speeds[rival] * (1 + self.drift * self.now) + extra

        return replay

    def measure(self, replays):
        return [replay() for replay in replays]


def rivals(speeds, **options):
    engine = FakeEngine(speeds, **options)

    def bind(rival):
        return lambda index: engine.launched.append((rival, index))

    return engine, [bind(rival) for rival in range(len(speeds))]


def test_there_and_back():
    assert schedule(2, 0) == [0, 1, 1, 0]
    assert schedule(3, 1) == [2, 1, 0, 0, 1, 2]
    assert schedule(1, 5) == [0, 0]


def test_every_round_has_each_rival_twice_after_one_warm_up():
    engine, runs = rivals([10.0, 20.0])
    time_interleaved(runs, rounds=2, engine=engine)
    assert engine.replayed == [0, 1, *schedule(2, 0), *schedule(2, 1)]


def test_a_warm_up_lasts_until_the_card_was_busy_for_so_long():
    engine, runs = rivals([10.0, 20.0])
    time_interleaved(runs, rounds=1, target_us=100.0, warm_up_us=1000.0, engine=engine)
    each = 10.0 * 8 + 20.0 * 4  # launches of one replay: 100 us by the engine's estimates, which are 1.2 times the truth
    assert engine.replayed == [0, 1] * math.ceil(1000.0 / each) + schedule(2, 0)
    engine, runs = rivals([0.0])
    time_interleaved(runs, rounds=1, warm_up_us=1000.0, engine=engine)  # an engine that measures nothing ends all the same
    assert engine.replayed == [0, 0, 0]


def test_times_per_launch():
    engine, runs = rivals([10.0, 50.0, 2000.0])
    times = time_interleaved(runs, rounds=5, target_us=1000.0, engine=engine)
    assert [round(each.median_us, 6) for each in times] == [10.0, 50.0, 2000.0]
    assert [len(indices) for _, indices in engine.captured] == [83, 17, 1]
    assert all(each.rounds == 5 and len(each.samples) == 5 for each in times)


def test_a_drifting_clock_touches_all_alike():
    engine, runs = rivals([10.0, 10.0], drift=0.01)
    first, second = time_interleaved(runs, rounds=5, engine=engine)
    assert first.high_us > 1.1 * first.low_us
    assert math.isclose(ratio(first, second).value, 1.0, rel_tol=1e-9)
    assert ratio(first, second).high == pytest.approx(1.0)


def test_one_disturbed_round_does_not_move_the_median():
    engine, runs = rivals([10.0, 11.0], noise=[0.0] * 6 + [5000.0])
    first, second = time_interleaved(runs, rounds=5, engine=engine)
    assert (first.median_us, second.median_us) == pytest.approx((10.0, 11.0))
    assert max(first.spread, second.spread) > 1.0


def test_buffers_rotate_and_a_rival_begins_where_the_last_one_ended():
    engine, runs = rivals([300.0, 300.0])
    time_interleaved(runs, sets=4, rounds=1, target_us=900.0, engine=engine)
    assert engine.captured == [(0, [0, 1]), (1, [2, 3])]
    engine, runs = rivals([100.0])
    time_interleaved(runs, sets=3, rounds=1, target_us=600.0, estimates=[100.0], engine=engine)
    assert engine.captured == [(0, [0, 1, 2, 0, 1, 2])]


def test_no_rivals_and_bad_arguments():
    engine, runs = rivals([1.0])
    assert time_interleaved([], engine=engine) == []
    with pytest.raises(ValueError, match="rounds=0"):
        time_interleaved(runs, rounds=0, engine=engine)
    with pytest.raises(ValueError, match="sets=0"):
        time_interleaved(runs, sets=0, engine=engine)


@pytest.mark.parametrize(("estimate", "count"), [(0.0, 400), (1.0, 400), (10.0, 100), (333.0, 3), (1e6, 1)])
def test_launches_per_graph(estimate, count):
    assert launches_for(estimate, 1000.0) == count


@pytest.mark.parametrize("count", range(1, 40))
def test_the_interval_misses_the_median_seldom(count):
    low, high = interval([float(i) for i in range(count)])
    rank = int(low)
    assert high == count - 1 - rank
    outside = 2 * sum(math.comb(count, i) for i in range(rank + 1)) / 2**count
    assert rank == 0 or outside <= 0.0625
    if rank + 1 <= (count - 1) // 2:
        assert outside + 2 * math.comb(count, rank + 1) / 2**count > 0.0625


def test_ratios():
    a, b = Timing.of([10.0, 11.0, 12.0, 10.5, 10.2]), Timing.of([20.0, 22.0, 24.0, 21.0, 20.4])
    assert ratio(a, b) == timing.Ratio(0.5, 0.5, 0.5)
    assert ratio(a, b).faster
    assert ratio(b, a).slower
    noisy = Timing.of([9.0, 12.0, 10.0, 11.0, 10.4])
    assert not ratio(a, noisy).slower
    assert not ratio(a, noisy).faster
    with pytest.raises(ValueError, match="given 5 and 3"):
        ratio(a, Timing.of([1.0, 2.0, 3.0]))


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        time_interleaved([lambda index: None])
