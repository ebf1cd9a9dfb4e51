"""Tuning on first use, on invented times: who is tuned, when never, what it may cost, and that it never fails a call."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import pytest
import torch

import minblas
from heuristics import store
from heuristics.table import Environment, TableEntry, problem_key
from kernel_zoo.spec import GemmProblem
from minblas import dispatch, first_use, settings
from minblas.first_use import FirstUse
from minblas.stats import COUNTERS
from tests.minblas.test_tune_shape import FakeBench

H200 = Environment("NVIDIA H200", (9, 0), 132, "570.1", "13.0", "3.7.1", "2.13.0", "3.12")
CPU = torch.device("cpu")


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Invented(FakeBench):
    """persistent takes 5 us, everything else 10; checking a pick takes `check_s` of the clock."""

    def __init__(self, clock, check_s=0.1, **options):
        super().__init__({}, **options)
        self.clock, self.check_s = clock, check_s

    def verdict(self, prepared):
        self.clock.now += self.check_s
        return super().verdict(prepared)

    def of(self, prepared):
        return 12.0 if prepared == "torch" else 5.0 if prepared.variant == "persistent" else 10.0


class Tuner(FirstUse):
    """The policy for CPU tensors, on invented benches."""

    def __init__(self, **options):
        self.clock, self.opened, self.options = Clock(), [], options
        super().__init__(lambda variants, device: self, ("cpu",), self.clock)

    @contextlib.contextmanager
    def open(self, problem):
        self.opened.append((problem, bench := self.options.get("bench", Invented)(self.clock, **self.options.get("with", {}))))
        yield bench


@pytest.fixture
def tuner(monkeypatch, tmp_path):
    """Installs a Tuner; the user's tables lie in an empty folder and there are no packaged ones."""
    monkeypatch.setattr("minblas.environment.environment", lambda device: H200)
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path / "tables")
    monkeypatch.setattr(store, "PACKAGED", tmp_path / "packaged")
    dispatch.forget_plans()
    dispatch.QUARANTINE.forgive()
    COUNTERS.reset()

    def install(**options):
        made = Tuner(**options)
        monkeypatch.setattr(first_use, "FIRST_USE", made)
        return made

    yield install
    dispatch.QUARANTINE.forgive()
    dispatch.forget_plans()


def resolved(m=512, **options):
    with settings.options(**{"tune": "first_use", **options}):
        return dispatch.resolve(GemmProblem.of(m, 512, 512), CPU)


def test_a_cold_call_is_tuned_written_and_served_by_the_row(tuner, tmp_path):
    made = tuner()
    found = resolved()
    assert (found.rung, len(made.opened)) == ("exact", 1)
    (path,) = (tmp_path / "tables").glob("*.json")
    entry = store.load(path).lookup(problem_key(GemmProblem.of(512, 512, 512)))
    assert (entry.variant, entry.time_us, entry.torch_us) == ("persistent", 5.0, 12.0)
    assert minblas.explain(512, 512, 512).rung == "exact"
    stats = minblas.stats()
    assert stats.tunes == 1
    assert 0 < stats.tune_seconds == pytest.approx(made.spent_s)
    assert "1 problems tuned on first use" in str(stats)
    resolved()
    assert len(made.opened) == 1  # the row is there


def test_never_is_the_default(tuner):
    made = tuner()
    assert settings.current().tune == "never"
    assert resolved(tune="never").rung == "model"
    assert made.opened == []


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "tiled"},
        {"on_cold": "aten"},
        {"on_cold": "raise"},
        {"sm_count": 66},
        {"tune_budget": 0.0},
        {"tune_budget": 2.0},  # under the cost of two picks
    ],
    ids=str,
)
def test_when_it_is_not_done(tuner, options):
    made = tuner()
    resolved(**options)
    assert made.opened == []
    assert minblas.stats().tunes == 0


def test_a_spent_budget_costs_a_call_nothing(tuner, monkeypatch):
    def undisturbed(device):
        raise AssertionError("the caller's memory and random numbers were touched for nothing")

    monkeypatch.setattr(first_use, "_undisturbed", undisturbed)
    tuner()
    assert resolved(tune_budget=2.0).rung == "model"
    assert minblas.stats().tunes == 0


def test_problems_that_are_not_tuned(tuner):
    made = tuner()
    with settings.options(tune="first_use"):
        dispatch.resolve(GemmProblem.of(64, 64, 64, batch_invariant=True), CPU)
        dispatch.resolve(GemmProblem.of(64, 64, 0), CPU)
    assert made.opened == []


def test_never_for_a_cpu_or_in_capture(tuner, monkeypatch):
    monkeypatch.setattr(first_use, "_capturing", lambda device: True)
    made = tuner()
    resolved()
    assert made.opened == []
    assert FirstUse()._kinds == ("cuda",)


def test_never_under_fake_tensors(tuner):
    from torch._subclasses import FakeTensorMode

    made = tuner()
    with settings.options(tune="first_use"), FakeTensorMode():
        assert minblas.gemm(torch.empty(8, 8), torch.empty(8, 8)).shape == (8, 8)
    assert made.opened == []


def test_the_budget_is_for_all_calls_together(tuner):
    made = tuner(**{"with": {"check_s": 1.0}})
    for m in (64, 128, 192, 256, 320):
        resolved(m, tune_budget=12.0)
    assert 1 <= len(made.opened) < 5
    assert made.spent_s <= 12.0 + 1.0  # a candidate that is being checked is not cut off


def test_within_a_problem_the_time_is_kept_too(tuner):
    made = tuner(**{"with": {"check_s": 4.0}})
    found = resolved(tune_budget=10.0)
    assert found.rung == "exact"
    assert len(made.opened[0][1].prepared) == 3  # at 0, 4 and 8 s; none is begun after 10
    assert made.spent_s == pytest.approx(12.0)


def test_a_failure_is_said_once_and_the_call_served(tuner, caplog):
    class Broken(Invented):
        def time(self, *args):
            raise torch.OutOfMemoryError("CUDA out of memory")

        def lost(self):
            raise OSError("no space left on device")

    made = tuner(bench=Broken)
    assert resolved().rung == "model"
    assert resolved(640).rung == "model"
    assert len(made.opened) == 2
    assert caplog.text.count("came to nothing") == 1
    assert minblas.stats().tunes == 0
    assert made.spent_s > 0


def test_a_problem_is_tried_once(tuner):
    class Wrong(Invented):
        def verdict(self, prepared):
            return "3 of 4 elements differ"

    made = tuner(bench=Wrong)
    resolved()
    resolved()
    assert len(made.opened) == 1
    assert dispatch.QUARANTINE.as_dict()  # what was found wrong serves no call


def test_a_problem_that_another_thread_tunes_meanwhile_is_not_tuned_again(tuner, monkeypatch):
    meanwhile = []

    def capturing(device):  # the last thing asked before the lock is taken
        if not meanwhile:
            meanwhile.append(device)
            thread = threading.Thread(target=resolved)
            thread.start()
            thread.join()
        return False

    monkeypatch.setattr(first_use, "_capturing", capturing)
    made = tuner()
    spent = resolved() and made.spent_s
    assert len(made.opened) == 1
    assert (minblas.stats().tunes, minblas.stats().tune_seconds) == (1, spent)
    assert resolved().rung == "exact"


def test_what_the_caller_excludes_and_a_users_kernels_are_not_run(tuner):
    from tests.minblas import user_kernels

    minblas.register_variant(
        "me.mine", user_kernels.plain_recipe, dtypes=["bf16"], layouts=["nn"], candidates=user_kernels.TILES, verify=False
    )
    try:
        made = tuner()
        resolved(exclude={"tma"})
    finally:
        minblas.unregister("me.mine")
    tried = {pick.variant for pick in made.opened[0][1].prepared}
    assert tried
    assert not tried & {"tma", "me.mine", "aten"}


def test_the_callers_random_numbers_go_on_as_they_were(tuner):
    class Drawing(Invented):
        def verdict(self, prepared):
            assert not torch.is_grad_enabled()
            assert settings.current().tune == "never"
            torch.randn(3)
            return super().verdict(prepared)

    made = tuner(bench=Drawing)
    torch.manual_seed(5)
    expected = torch.randn(1)
    torch.manual_seed(5)
    resolved()
    assert made.opened
    assert torch.randn(1) == expected


def test_plans_of_other_problems_stay(tuner):
    made = tuner()
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    minblas.gemm(a, b)
    with settings.options(tune="first_use"):
        minblas.gemm(torch.ones(16, 8), b)
    assert len(made.opened) == 1
    before = minblas.stats().warm_calls
    minblas.gemm(a, b)
    assert minblas.stats().warm_calls == before + 1


def test_an_exact_row_is_tuned_only_where_nobody_measured_it(tuner):
    made = tuner()
    tile = dispatch.select(GemmProblem.of(512, 512, 512), CPU).tile
    entry = TableEntry(problem_key(GemmProblem.of(512, 512, 512)), "tiled", tile, "", 9.0)
    selection = replace(dispatch.select(GemmProblem.of(512, 512, 512), CPU), rung="exact", entry=entry)
    with settings.options(tune="first_use"):
        assert made.improve(selection, CPU, lambda: pytest.fail("tuned")) is selection
        guessed = replace(selection, entry=replace(entry, source="modelled"))
        assert made.improve(guessed, CPU, lambda: "tuned") == "tuned"
