"""Candidates that take their process down, in a real process: they cost themselves and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import minblas
from heuristics import store
from heuristics.table import problem_key
from kernel_zoo.spec import TileConfig
from minblas import dispatch, errors, tune_remote
from minblas.journal import JournalError, read_lines
from minblas.shapes import problem_of
from minblas.tune import TuneAbortedError, tune
from minblas.tune_remote import WorkerError
from tests.minblas import user_kernels
from tests.processes import ROOT, environment

FACTORY = "tests.minblas.scripted_bench:benches"
SHAPES = [(512, 512, 512), (256, 256, 4096), (16, 4096, 2048)]
PAIR = ["me.good", "me.bad"]  # of one tile each; the second is the faster one, and the one that dies where the script says so
REGISTER = "from tests.minblas.test_tune_remote import register_pair\nregister_pair()\n"


def register_pair():
    for name in PAIR:
        minblas.register_variant(
            name, user_kernels.plain_recipe, dtypes=["bf16"], layouts=["nn"], candidates=user_kernels.TILES[:1], verify=False
        )


class Stage:
    """A scripted bench in another process, its files, and what it logged."""

    def __init__(self, folder, monkeypatch):
        self.log, self._script = folder / "log.jsonl", folder / "script.json"
        self.journal, self.table = folder / "journal.jsonl", folder / "table.json"
        self.play()
        monkeypatch.setenv("SCRIPTED_BENCH", str(self._script))

    def play(self, *faults, **script):
        self._script.write_text(json.dumps({"log": str(self.log), "faults": faults, **script}))

    def tune(self, shapes=SHAPES, **options):
        files = {"resume": self.journal, "table": self.table, "progress": False}
        return tune(shapes, benches=FACTORY, **{"isolate": True, "top_k": 6, **files, **options})

    def steps(self, name=None):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [step for step in map(json.loads, lines) if name in (None, step[2])]

    def rows(self, kind):
        return [row for row, _ in read_lines(self.journal) if row["kind"] == kind]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    dispatch.forget_plans()
    dispatch.QUARANTINE.forgive()
    register_pair()
    yield Stage(tmp_path, monkeypatch)
    for variant in dispatch.registry():
        if variant.origin == "user":
            dispatch.unregister(variant.name)
    dispatch.QUARANTINE.forgive()
    dispatch.forget_plans()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text().lower() if Path("/proc").exists() else True


def child(code, *words, **options):
    """Python running that code, with the pair registered."""
    command = [sys.executable, "-c", REGISTER + code, *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), **options)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_another_process_does_it(stage):
    report = stage.tune(variants=["tiled", "persistent"])
    assert (report.tuned, report.faults, report.left) == (3, [], 0)
    assert os.getpid() not in {pid for pid, *_ in stage.steps()}
    assert len({pid for pid, *_ in stage.steps()}) == 1
    assert not any(alive(pid) for pid, *_ in stage.steps())
    entry = store.load(stage.table).lookup(problem_key(problem_of(SHAPES[0])))
    assert (entry.variant, entry.time_us, entry.torch_us) == ("persistent", 5.0, 12.0)


@pytest.mark.parametrize("fault", ["kill", "abort", "exit", "lost"])
def test_a_candidate_that_crashes_costs_itself(stage, fault):
    stage.play(["verify", "me.bad", 4096, fault])
    report = stage.tune(SHAPES[:2], variants=PAIR)
    assert report.tuned == 2
    first, second = report.rows
    assert first["trials"][first["winner"]]["variant"] == "me.bad"
    assert second["trials"][second["winner"]]["variant"] == "me.good"
    crashed = next(trial for trial in second["trials"] if trial["variant"] == "me.bad")
    assert crashed["status"] == "failed"
    said = {"kill": "SIGKILL", "abort": "SIGABRT", "exit": "exit code 3", "lost": "illegal memory access"}[fault]
    assert said in crashed["message"]
    (row,) = stage.rows("fault")
    assert (row["variant"], row["problem"]["k"]) == ("me.bad", 4096)
    assert said in row["message"]
    assert len(report.faults) == 1
    assert "left out" in str(report)
    assert "me.bad" in " ".join(dispatch.QUARANTINE.as_dict())


def test_a_candidate_that_hangs_is_ended(stage):
    stage.play(["verify", "me.bad", 4096, "hang"])
    report = stage.tune(SHAPES[1:2], variants=PAIR, step_limit_s=1.0)
    assert report.tuned == 1
    assert "no sign of life for 1 s" in report.faults[0]
    assert not any(alive(pid) for pid, *_ in stage.steps())


def test_the_culprit_of_a_crash_among_rivals_is_found(stage):
    stage.play(["time", "me.bad", 4096, "abort"])
    report = stage.tune(SHAPES[1:2], variants=PAIR)
    (row,) = report.rows
    assert row["trials"][row["winner"]]["variant"] == "me.good"
    assert [row["variant"] for row in stage.rows("fault")] == ["me.bad"]
    assert len(stage.rows("suspects")) == 1
    assert [names for *_, names in stage.steps("time")] == [
        ["me.good", "me.bad", "torch"], ["me.good"], ["me.bad"], ["me.good"], ["torch"], ["me.good", "torch"]
    ]  # fmt: skip


def test_torchs_own_crash_costs_torchs_time_only(stage):
    stage.play(["time", "torch", 4096, "abort"])
    report = stage.tune(SHAPES[1:2], variants=PAIR)
    assert report.rows[0]["torch_us"] is None
    assert report.rows[0]["trials"][report.rows[0]["winner"]]["variant"] == "me.bad"


def test_the_next_run_keeps_away_from_it(stage):
    stage.play(["verify", "me.bad", 4096, "kill"], ["verify", "me.good", 4096, "kill"])
    report = stage.tune(SHAPES[1:2], variants=PAIR)
    assert report.tuned == 0
    stage.log.unlink()
    dispatch.QUARANTINE.forgive()
    again = stage.tune(SHAPES[1:2], variants=[*PAIR, "tma"], top_k=3)
    assert {name for *_, names in stage.steps("verify") for name in names} == {"tma"}
    assert again.rows[0]["trials"][again.rows[0]["winner"]]["variant"] == "tma"
    assert "earlier run" in json.dumps(again.rows[0])


def test_killed_from_outside(stage):
    """kill -9 of the worker by somebody else, between two shapes or in the middle of one: it is started again."""
    stage.play(pause=0.3)
    victims = []

    def strike():
        until(lambda: stage.steps("time"))
        victims.append(stage.steps()[0][0])
        os.kill(victims[0], signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    report = stage.tune(SHAPES[:2], variants=PAIR)
    thread.join()
    assert report.tuned == 2
    assert victims[0] != stage.steps()[-1][0]


def test_a_parent_that_is_killed_loses_the_shape_in_flight_and_nothing_else(stage):
    shapes = [(64 * i, 512, 64 * i) for i in range(1, 6)]
    stage.play(pause=0.2)
    code = (
        "from minblas.tune import tune\n"
        f"tune({shapes!r}, benches={FACTORY!r}, isolate=True, variants={PAIR!r}, progress=False,"
        f" resume={str(stage.journal)!r}, table={str(stage.table)!r})\n"
    )
    parent = child(code)
    until(lambda: stage.journal.exists() and len(stage.rows("shape")) >= 2)
    parent.kill()
    parent.wait()
    worker = stage.steps()[0][0]
    until(lambda: not alive(worker))
    before = {row["problem"]["k"] for row in stage.rows("shape")}
    assert 2 <= len(before) < len(shapes)
    stage.log.unlink()
    report = stage.tune(shapes, variants=PAIR)
    assert report.tuned == len(shapes)
    assert {k for _, _, _, k, _ in stage.steps()} == {shape[2] for shape in shapes} - before
    assert sorted(row["problem"]["k"] for row in stage.rows("shape")) == [shape[2] for shape in shapes]
    assert len(store.load(stage.table).entries) == len(shapes)


def test_ctrl_c_keeps_what_was_done_and_says_how_to_go_on(stage):
    stage.play(["time", "me.bad", 4096, "hang"])
    code = (
        "import json\nfrom minblas.tune import TuneInterrupted, tune\n"
        f"try:\n    tune({SHAPES!r}, benches={FACTORY!r}, isolate=True, variants={PAIR!r}, progress=False,"
        f" resume={str(stage.journal)!r}, table={str(stage.table)!r})\n"
        "except TuneInterrupted as stopped:\n    print(json.dumps([str(stopped), stopped.report.as_dict()]))\n"
    )
    parent = child(code, stdout=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: any(k == 4096 for _, _, _, k, _ in stage.steps("time")))
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    said, report = json.loads(parent.communicate(timeout=60)[0])
    assert str(stage.journal) in said
    assert (report["tuned"], report["left"], report["faults"]) == (1, 2, [])
    assert len(store.load(stage.table).entries) == 1
    assert [row["kind"] for row, _ in read_lines(stage.journal)] == ["header", "shape"]
    assert not any(alive(pid) for pid, *_ in stage.steps())
    stage.play()
    assert stage.tune(variants=PAIR).tuned == 3


def test_two_devices_share_the_shapes(stage):
    shapes = [(64 * i, 512, 64 * i) for i in range(1, 7)]
    stage.play(["verify", "me.bad", 128, "kill"], pause=0.2)
    report = stage.tune(shapes, devices=["cpu", "cpu"], variants=PAIR)
    assert report.tuned == len(shapes)
    assert len(report.faults) == 1
    assert len({pid for pid, *_ in stage.steps("time")}) >= 2
    assert sorted(row["problem"]["k"] for row in stage.rows("shape")) == [shape[2] for shape in shapes]
    assert len(store.load(stage.table).entries) == len(shapes)


def test_two_tuners_on_one_table(stage, tmp_path):
    code = (
        "import sys\nfrom minblas.tune import tune\n"
        f"tune([(int(sys.argv[1]), 512, 512)], benches={FACTORY!r}, isolate=True, variants={PAIR!r},"
        f" progress=False, resume=sys.argv[2], table={str(stage.table)!r})\n"
    )
    tuners = [child(code, str(m), str(tmp_path / f"{m}.jsonl")) for m in (64, 128)]
    assert [tuner.wait(timeout=120) for tuner in tuners] == [0, 0]
    assert sorted(entry.key.m for entry in store.load(stage.table).entries) == [64, 128]


def test_one_journal_is_written_by_one_tune(stage):
    stage.play(["time", "me.bad", 512, "hang"])
    seen = []

    def second():
        until(lambda: stage.steps("time"))
        with pytest.raises(JournalError, match="another tune is writing"):
            stage.tune(SHAPES[1:2])
        seen.append(True)

    thread = threading.Thread(target=second)
    thread.start()
    stage.tune(SHAPES[:1], variants=PAIR, step_limit_s=1.5)
    thread.join()
    assert seen


def test_a_registered_variant_travels_by_reference(stage):
    minblas.register_variant(
        "me.here", user_kernels.plain_recipe, dtypes=["bf16"], layouts=["nn"], candidates=user_kernels.TILES, verify=False
    )
    report = stage.tune(SHAPES[:1], variants=["me.here"])
    assert report.tuned == 1
    assert report.notes == []
    assert os.getpid() not in {pid for pid, *_ in stage.steps()}


def test_one_that_cannot_be_sent_is_tuned_here_and_that_is_said(stage, monkeypatch):
    monkeypatch.setattr(tune_remote, "_CODE", "raise SystemExit('no process is needed')")
    minblas.register_variant(
        "me.closure", user_kernels.recipe_with(""), dtypes=["bf16"], layouts=["nn"], candidates=[TileConfig(32, 32, 32)],
        verify=False,
    )  # fmt: skip
    report = stage.tune([SHAPES[0], (64, 64, 64)], variants=["me.closure"])
    assert report.tuned == 2
    assert {pid for pid, *_ in stage.steps()} == {os.getpid()}
    assert "me.closure is tuned in this process" in str(report)
    assert "recipe_with" in report.notes[0]


def test_shapes_of_both_kinds(stage):
    minblas.register_variant(
        "me.closure", user_kernels.recipe_with(""), dtypes=["fp64"], layouts=["nn"], candidates=[TileConfig(32, 32, 32)],
        verify=False,
    )  # fmt: skip
    report = stage.tune([problem_of((64, 64, 64), "fp64"), SHAPES[0]], variants=["me.closure", *PAIR])
    assert report.tuned == 2
    here = {pid == os.getpid(): k for pid, _, _, k, _ in stage.steps()}
    assert here == {True: 64, False: 512}


def test_a_process_that_does_not_start_is_an_error_in_words(stage):
    with pytest.raises(WorkerError, match=r"did not start: the process ended with exit code 1: .*no_such_module"):
        tune(SHAPES, benches="no_such_module:benches", isolate=True, resume=stage.journal, table=stage.table, progress=False)


def test_in_this_process_a_lost_device_ends_it(stage):
    stage.play(["time", "me.bad", 4096, "lost"])
    options = {"isolate": False, "variants": PAIR}
    for _ in range(2):  # the first time nobody knows who it was; the second time the rivals are timed alone first
        with pytest.raises(TuneAbortedError):
            stage.tune(SHAPES[1:2], **options)
    assert [row["variant"] for row in stage.rows("fault")] == ["me.bad"]
    assert stage.tune(SHAPES[1:2], **options).tuned == 1


def test_what_cannot_be_asked_for(stage):
    with pytest.raises(errors.ArgumentError, match="one of the two"):
        stage.tune(device="cpu", devices=["cpu"])
    with pytest.raises(errors.ArgumentError, match="a process of its own"):
        stage.tune(devices=["cpu", "cpu"], isolate=False)
    with pytest.raises(errors.ArgumentError, match="devices is empty"):
        stage.tune(devices=[])
    with pytest.raises(errors.ArgumentError, match="module:function"):
        tune(SHAPES, benches=object(), isolate=True)


def test_kernels_are_verified_in_the_other_process(stage):
    report = tune([(64, 48, 40)], variants=["tiled"], top_k=1, verify_only=True, isolate=True, resume=stage.journal, progress=False)
    assert report.rejected == {"wrong": 0, "failed": 0}
    assert report.rows[0]["trials"][0]["status"] == "ok"
