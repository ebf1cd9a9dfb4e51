"""Tuning one shape on a bench of invented times: who is thrown out, who wins, what is lost with the device."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_zoo.spec import GemmProblem, TileConfig
from minblas.timing import Timing
from minblas.tune_report import entry_of, row_of
from minblas.tune_shape import FINALISTS, DeviceLostError, tune_shape
from minblas.tune_trial import TORCH, Pick

PROBLEM = GemmProblem.of(512, 512, 512)
PICKS = [Pick("tiled", TileConfig(16 * i, 32, 32)) for i in range(1, 9)]


class FakeBench:
    """Times by pick; picks in `wrong`, `failing`, `uncapturable` and `killing` behave so."""

    def __init__(self, times, *, noise=0.0, wrong=(), failing=(), uncapturable=(), killing=(), reference=40.0):
        self.times, self.noise, self.reference = times, noise, reference
        self.wrong, self.failing, self.uncapturable, self.killing = wrong, failing, uncapturable, killing
        self.rounds, self.timings, self.prepared, self.dead = [], [], [], False

    def prepare(self, pick):
        self.prepared.append(pick)
        if pick in self.failing:
            raise RuntimeError("out of resource: shared memory")
        return pick

    def verdict(self, prepared):
        if prepared in self.killing:
            self.dead = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return "3 of 4 elements differ" if prepared in self.wrong else ""

    def estimate(self, prepared):
        return self.of(prepared) + 5.0

    def of(self, prepared):
        return self.reference if prepared == "torch" else self.times[prepared]

    def time(self, prepared, estimates, rounds, target_us):
        assert len(estimates) == len(prepared)
        if any(each in self.uncapturable for each in prepared):
            raise RuntimeError("operation not permitted when stream is capturing")
        wobble = [self.noise * (-1) ** i for i in range(rounds)]
        timings = [Timing.of([self.of(each) * (1 + (w if i else -w)) for w in wobble]) for i, each in enumerate(prepared)]
        self.rounds.append((list(prepared), rounds))
        self.timings.append(timings)
        return timings

    def torch(self):
        return "torch"

    def lost(self):
        return self.dead


def tuned(times, picks=None, **options):
    picks = PICKS[: len(times)] if picks is None else picks
    bench = FakeBench(dict(zip(picks, times, strict=True)), **options)
    return tune_shape(PROBLEM, picks, bench), bench


def test_the_fastest_wins():
    result, _ = tuned([30.0, 20.0, 25.0])
    assert result.winner.pick == PICKS[1]
    assert result.changed
    assert result.winner.time_us == 20.0
    assert result.torch.median_us == 40.0
    assert result.default.pick == PICKS[0]


def test_the_default_stays_unless_beaten_beyond_the_noise():
    assert tuned([30.0, 29.9])[0].changed is False
    assert tuned([30.0, 28.0])[0].changed is True
    assert tuned([30.0, 28.0], noise=0.05)[0].changed is False
    assert tuned([20.0, 30.0])[0].winner.pick == PICKS[0]


def test_many_go_through_a_coarse_pass_and_the_default_is_always_a_finalist():
    result, bench = tuned([50.0, 30.0, 31.0, 32.0, 33.0, 34.0, 35.0, 36.0])
    (coarse, coarse_rounds), (final, rounds) = bench.rounds
    assert len(coarse) == 8
    assert coarse_rounds < rounds
    assert set(final) == {PICKS[0], PICKS[1], PICKS[2], PICKS[3], "torch"}
    assert len(final) == FINALISTS + 1
    assert [trial.final for trial in result.trials] == [True] * 4 + [False] * 4
    assert result.trials[7].time_us == 36.0


def test_hopeless_ones_are_not_captured():
    result, bench = tuned([30.0, 20.0, 500.0])
    assert result.trials[2].status == "slow"
    assert all(PICKS[2] not in rivals for rivals, _ in bench.rounds)
    assert tuned([500.0, 20.0])[0].trials[0].status == "ok"  # the default is measured whatever it seems


def test_wrong_and_failing_ones_are_left_out():
    result, _ = tuned([30.0, 5.0, 6.0, 25.0], wrong=[PICKS[1]], failing=[PICKS[2]])
    assert [trial.status for trial in result.trials] == ["ok", "wrong", "failed", "ok"]
    assert result.trials[1].message == "3 of 4 elements differ"
    assert result.trials[2].message == "RuntimeError: out of resource: shared memory"
    assert result.winner.pick == PICKS[3]


def test_a_wrong_default_gives_way():
    result, _ = tuned([30.0, 31.0], wrong=[PICKS[0]])
    assert result.winner.pick == PICKS[1]
    assert result.changed


def test_one_that_cannot_be_captured_is_left_out():
    result, _ = tuned([30.0, 5.0, 25.0], uncapturable=[PICKS[1]])
    assert result.trials[1].status == "failed"
    assert "capturing" in result.trials[1].message
    assert result.winner.pick == PICKS[2]


def test_what_does_not_compile_is_not_prepared():
    bench = FakeBench({PICKS[0]: 10.0, PICKS[1]: 5.0})
    result = tune_shape(PROBLEM, PICKS[:2], bench, compiled=lambda pick: "does not compile: ptxas" if pick == PICKS[1] else "")
    assert bench.prepared == [PICKS[0]]
    assert result.trials[1].status == "failed"
    assert result.winner.pick == PICKS[0]


def test_nobody_left():
    result, bench = tuned([30.0, 31.0], wrong=PICKS[:2])
    assert result.winner is None
    assert result.note.startswith(f"no candidate is both right and runs; {PICKS[0].describe()}: wrong, ")
    assert tune_shape(PROBLEM, [], bench).note == "no candidate: every variant asked for refuses this shape"
    assert bench.rounds == []
    result, _ = tuned([30.0, 31.0], uncapturable=[*PICKS[:2], "torch"])
    assert (result.winner, result.note) == (None, "no candidate could be timed")
    assert tune_shape(PROBLEM, [], FakeBench({})).winner is None


def test_torch_missing_from_the_final_is_no_reason_to_fail():
    result, _ = tuned([30.0, 20.0], uncapturable=["torch"])
    assert result.torch is None
    assert result.winner.pick == PICKS[1]


def test_verifying_times_nothing():
    bench = FakeBench({PICKS[0]: 10.0, PICKS[1]: 5.0}, wrong=[PICKS[1]])
    result = tune_shape(PROBLEM, PICKS[:2], bench, verify_only=True)
    assert bench.rounds == []
    assert result.winner is None
    assert [trial.status for trial in result.trials] == ["ok", "wrong"]


def test_a_lost_device_ends_it_and_names_the_candidate():
    with pytest.raises(DeviceLostError, match="illegal memory access") as caught:
        tuned([30.0, 20.0], killing=[PICKS[1]])
    assert caught.value.picks == (PICKS[1],)


def test_a_device_lost_among_rivals_names_them_all_and_care_finds_the_one():
    class Killed(FakeBench):
        def time(self, prepared, *rest):
            if PICKS[1] in prepared:
                self.dead = True
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return super().time(prepared, *rest)

    times = {PICKS[0]: 30.0, PICKS[1]: 20.0, PICKS[2]: 25.0}
    with pytest.raises(DeviceLostError) as caught:
        tune_shape(PROBLEM, PICKS[:3], Killed(times))
    assert caught.value.picks == (*PICKS[:3], TORCH)
    with pytest.raises(DeviceLostError) as caught:
        tune_shape(PROBLEM, PICKS[:3], Killed(times), careful=True)
    assert caught.value.picks == (PICKS[1],)


def test_care_changes_nothing_else():
    bench = FakeBench(dict(zip(PICKS, range(20, 28), strict=True)))
    result = tune_shape(PROBLEM, PICKS, bench, careful=True)
    assert result.winner.pick == PICKS[0]
    assert bench.rounds[-1][1] > 1
    assert set(bench.rounds[-1][0]) == {*PICKS[:4], "torch"}


def test_what_is_skipped_is_not_prepared():
    bench = FakeBench({PICKS[0]: 10.0, PICKS[1]: 5.0})
    result = tune_shape(PROBLEM, PICKS[:2], bench, skip=lambda pick: "wrong before" if pick == PICKS[1] else "")
    assert bench.prepared == [PICKS[0]]
    assert (result.trials[1].status, result.trials[1].message) == ("skipped", "wrong before")


# Holes through which a slower pick could get into a table


def test_a_single_candidate_wins_by_being_there():
    result, bench = tuned([30.0])
    assert result.winner.pick == PICKS[0]
    assert not result.changed
    assert [rivals for rivals, _ in bench.rounds] == [[PICKS[0], "torch"]]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_go_straight_into_the_final(count):
    result, bench = tuned([30.0 - i for i in range(count)])
    assert len(bench.rounds) == 1
    assert all(trial.final for trial in result.trials)


def test_a_default_that_does_not_compile_gives_way_and_is_no_yardstick():
    bench = FakeBench(dict(zip(PICKS[:3], (10.0, 20.0, 19.9), strict=True)))
    result = tune_shape(PROBLEM, PICKS[:3], bench, compiled=lambda pick: "does not compile" if pick == PICKS[0] else "")
    assert result.winner.pick == PICKS[2]
    assert (result.changed, result.trials[0].timing) == (True, None)


def test_a_default_that_seems_hopeless_is_measured_in_the_final():
    result, bench = tuned([900.0, 20.0, 21.0, 22.0, 23.0, 24.0])
    assert PICKS[0] in bench.rounds[-1][0]
    assert result.trials[0].final


@pytest.mark.parametrize("torch", [None, "raises in torch", "raises in estimate"])
def test_without_torchs_product_there_is_a_winner(torch):
    class Without(FakeBench):
        def torch(self):
            if torch == "raises in torch":
                raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
            return None if torch is None else "torch"

        def estimate(self, prepared):
            if prepared == "torch":
                raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
            return super().estimate(prepared)

    result = tune_shape(PROBLEM, PICKS[:2], Without({PICKS[0]: 30.0, PICKS[1]: 20.0}))
    assert (result.winner.pick, result.torch) == (PICKS[1], None)


def test_torch_is_left_out_where_that_is_asked():
    bench = FakeBench({PICKS[0]: 30.0, PICKS[1]: 20.0})
    assert tune_shape(PROBLEM, PICKS[:2], bench, torch=False).torch is None
    assert [rivals for rivals, _ in bench.rounds] == [PICKS[:2]]


def test_the_final_decides_and_not_the_coarse_pass():
    """A pick that shone in the coarse rounds and is slower than the default in the final does not win."""

    class Flattering(FakeBench):
        flattered = ()

        def time(self, prepared, estimates, rounds, target_us):
            self.flattered = () if self.rounds else (PICKS[5],)
            return super().time(prepared, estimates, rounds, target_us)

        def of(self, prepared):
            return super().of(prepared) / (10.0 if prepared in self.flattered else 1.0)

    bench = Flattering(dict(zip(PICKS, (20.0, 30.0, 31.0, 32.0, 33.0, 25.0, 35.0, 36.0), strict=True)))
    result = tune_shape(PROBLEM, PICKS, bench)
    assert result.trials[5].final
    assert result.trials[5].time_us == 25.0
    assert result.winner.pick == PICKS[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1.0, 200.0), min_size=1, max_size=8),
    st.floats(0.0, 0.3),
    st.sets(st.integers(0, 7), max_size=3),
    st.sets(st.integers(0, 7), max_size=2),
)
def test_a_row_is_never_slower_than_the_default_of_the_same_rounds(times, noise, failing, uncapturable):
    picks = PICKS[: len(times)]
    bench = FakeBench(
        dict(zip(picks, times, strict=True)),
        noise=noise,
        failing=[PICKS[i] for i in failing],
        uncapturable=[PICKS[i] for i in uncapturable],
    )
    result = tune_shape(PROBLEM, picks, bench)
    variants = {"tiled": type("Known", (), {"digest": "0" * 12})}
    entry = entry_of(row_of(result, variants))
    if result.winner is None:
        assert entry is None
        return
    final = {pick: timing for pick, timing in zip(bench.rounds[-1][0], bench.timings[-1], strict=True) if pick != "torch"}
    assert entry.time_us == pytest.approx(final[result.winner.pick].median_us, rel=1e-3)
    default = final.get(picks[0])
    if default is not None:
        assert result.winner.time_us <= default.median_us
        assert result.winner.pick == picks[0] or result.winner.time_us < 0.99 * default.median_us
    assert {seen.tile for seen in entry.runner_ups} == {pick.tile for pick in final} - {entry.tile}


def test_a_winner_that_was_not_in_the_final_makes_no_row():
    result, _ = tuned([30.0, 20.0])
    row = row_of(result, {"tiled": type("Known", (), {"digest": "0" * 12})})
    assert entry_of(row) is not None
    row["trials"][row["winner"]]["final"] = False
    assert entry_of(row) is None
    row["trials"][row["winner"]] |= {"final": True, "time_us": 31.0}
    assert entry_of(row) is None  # slower than the default beside it
