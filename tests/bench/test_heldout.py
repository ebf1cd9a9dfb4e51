"""Held-out times renewed from journals: the problems as a list to tune, replaced or added times, one clock."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import minblas
from bench import cli, heldout, regret
from heuristics.table import problem_key
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas.journal import problem_to_dict, tile_to_dict
from tests.bench.test_regret import HELD_OUT

SMALL, LARGE = TileConfig(64, 64, 64), TileConfig(128, 128, 64, num_warps=8)
FIRST, SECOND = GemmProblem.of(70, 80, 96, "fp16", "nt"), GemmProblem.of(700, 80, 96, "bf16", "nn")
OLD = [
    regret.Timed(FIRST, {("tma", SMALL): 10.0, ("tma", LARGE): 20.0}, 12.0, ("tma", LARGE)),
    regret.Timed(SECOND, {("tma", SMALL): 30.0}, 33.0, ("tma", SMALL)),
]
NEW = ("ping_pong", LARGE)


def trial(pick, us=None, status="ok"):
    timed = {"time_us": us, "low_us": us, "high_us": us, "final": True, "digest": "d"} if us is not None else {}
    return {"variant": pick[0], "tile": tile_to_dict(pick[1]), "status": status, **timed}


def shape(problem, *trials, winner=0, torch_us=None):
    return {"kind": "shape", "problem": problem_to_dict(problem), "winner": winner, "trials": list(trials), "torch_us": torch_us}


@pytest.fixture
def journal(tmp_path):
    def write(*rows, name="journal.jsonl"):
        path = tmp_path / name
        header = {"kind": "header", "version": 1, "environment": {"gpu": "NVIDIA H200", "triton": "3.7.1", "python": "3.11"}}
        path.write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)))
        return path

    return write


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.json"
    regret.write(path, OLD, {"gpu": "NVIDIA H200"})
    return path


def run(*words, code=0):
    result = CliRunner().invoke(cli.app, ["table", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_packaged_held_out_problems_are_listed_for_a_tune(tmp_path):
    out = tmp_path / "problems.jsonl"
    assert "162 problems" in run("held-out", HELD_OUT, "--out", out)
    found = minblas.recorded(out)
    assert [problem_key(problem) for problem in found] == [problem_key(item.problem) for item in regret.read(HELD_OUT)]


def test_a_whole_tune_replaces_the_times(tmp_path, journal, old):
    rows = [
        shape(FIRST, trial(NEW, 8.0), trial(("tma", SMALL), 9.0), trial(("aten", None), 9.5), trial(("tma", LARGE), status="slow"),
              torch_us=11.0),
        shape(GemmProblem.of(1, 2, 3), trial(NEW, 1.0)),
        {"kind": "fault", "problem": {}, "variant": "x", "tile": "y"},
    ]  # fmt: skip
    out = tmp_path / "new.json"
    said = run("renew", old, journal(*rows), "--out", out)
    assert "700 x 80" in said
    assert "left out" in said
    times = {NEW: 8.0, ("tma", SMALL): 9.0, ("aten", None): 9.5}
    assert regret.read(out) == [regret.Timed(FIRST, times, 11.0, None)]  # the old tune's pick was not timed again
    assert json.loads(out.read_text())["environment"] == {"gpu": "NVIDIA H200", "triton": "3.7.1"}


def test_new_kernels_are_added_on_the_files_clock(tmp_path, journal, old):
    """The GPU ran 10% slower; what both have measured says so."""
    rows = [shape(FIRST, trial(("tma", SMALL), 11.0), trial(NEW, 8.8))]
    out = tmp_path / "new.json"
    assert "4 times of 2 problems" in run("renew", old, journal(*rows), "--keep", "--out", out)
    first, second = regret.read(out)
    assert first.times == {**OLD[0].times, NEW: pytest.approx(8.0)}
    assert (first.tuned, first.torch_us) == (OLD[0].tuned, 12.0)
    assert second == OLD[1]


def test_without_a_pick_in_common_torch_is_the_clock():
    seen = heldout.Seen(FIRST, {NEW: 20.0}, 24.0, NEW)
    (first, _), notes = heldout.renewed(OLD, [seen], keep=True)
    assert first.times[NEW] == pytest.approx(10.0)
    assert notes == []
    (first, _), notes = heldout.renewed(OLD, [heldout.Seen(FIRST, {NEW: 20.0}, None, NEW)], keep=True)
    assert first == OLD[0]
    assert "nothing in common" in notes[0]


def test_an_independent_tunes_winners_are_judged(tmp_path, journal, old):
    main = journal(shape(FIRST, trial(NEW, 8.0), trial(("tma", SMALL), 9.0)), shape(SECOND, trial(NEW, 8.0)))
    other = journal(shape(FIRST, trial(NEW, 8.0), trial(("tma", SMALL), 7.9), winner=1), name="other.jsonl")
    out = tmp_path / "new.json"
    found = json.loads(run("renew", old, main, "--tuned", other, "--out", out, "--json"))
    assert (found["problems"], found["times"], found["notes"]) == (2, 3, [])
    assert [item.tuned for item in regret.read(out)] == [("tma", SMALL), None]


def test_what_is_no_journal_is_refused(tmp_path, journal, old):
    assert "line 2" in run("renew", old, journal({"kind": "shape"}), "--out", tmp_path / "new.json", code=2)
