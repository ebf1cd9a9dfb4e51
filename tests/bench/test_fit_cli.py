"""`minblas table fit` and `minblas table regret`: journals in, a model in the table; figures out."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bench import regret
from bench.cli import app
from heuristics import model, store
from heuristics.archs import ARCHS
from heuristics.cost import Scorer
from heuristics.legality import Legality
from heuristics.table import Environment, HeuristicTable, TableEntry, problem_key
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem
from minblas.journal import Journal, problem_to_dict, tile_to_dict

H200 = ARCHS["h200"]
GPU = "NVIDIA H200"
ZOO = [variant for variant in VARIANTS if variant.name != "aten"]
PROBLEMS = [
    GemmProblem.of(256, 1024, 2048),
    GemmProblem.of(1024, 1024, 512, "bf16", "nt"),
    GemmProblem.of(2, 2048, 1024, "fp16", "nt"),
]


def times(problem):
    """In a world where one loop starts later than the built-in coefficients say."""
    picks = [(candidate.variant, candidate.tile) for candidate in model.rank(Legality(problem, H200), ZOO)[:10]]
    return dict(zip(picks, Scorer(problem, H200, {"tma": {"launch": 9.0}}).times(picks).tolist(), strict=True))


def run(*arguments):
    return CliRunner().invoke(app, ["table", *map(str, arguments)])


@pytest.fixture
def journal(tmp_path):
    made = Journal(tmp_path / "journal.jsonl", {"gpu": GPU, "triton": "3.6.0", "torch": "2.11.0"})
    for problem in PROBLEMS:
        trials = [
            {"variant": variant, "tile": tile_to_dict(tile), "status": "ok", "time_us": us, "final": True}
            for (variant, tile), us in times(problem).items()
        ]
        made.append({"kind": "shape", "problem": problem_to_dict(problem), "winner": 0, "trials": trials})
    made.close()
    return made.path


@pytest.fixture
def table(tmp_path):
    (variant, tile), us = next(iter(times(PROBLEMS[0]).items()))
    entry = TableEntry(problem_key(PROBLEMS[0]), variant, tile, "", us)
    return store.save(HeuristicTable("mine", Environment(GPU, (9, 0), 132), (entry,)), tmp_path / "mine.json")


class TestFit:
    def test_the_model_is_replaced_and_nothing_else(self, journal, table):
        before = store.load(table)
        done = run("fit", journal, "--table", table, "--steps", 10, "--json")
        assert done.exit_code == 0, done.output
        told, after = json.loads(done.output), store.load(table)
        assert (told["problems"], told["times"]) == (3, 30)
        assert told["after"] >= told["before"]
        assert after.entries == before.entries
        assert after.model["tma"]["launch"] > model.COEFFICIENTS["tma"].launch
        assert 0 < after.model["tma"]["fit_error"] < 1
        assert store.load(told["kept"]).model == {}

    def test_in_words(self, journal, table):
        done = run("fit", journal, "--table", table, "--steps", 2)
        assert "fitted to 30 times of 3 problems" in done.output
        assert "best time / time of the model's first pick" in done.output

    def test_a_journal_of_another_gpu(self, journal, table):
        text = journal.read_text(encoding="utf-8").replace(GPU, "NVIDIA A100-SXM4-80GB")
        journal.write_text(text, encoding="utf-8")
        done = run("fit", journal, "--table", table)
        assert done.exit_code == 2
        assert "was taken on NVIDIA A100-SXM4-80GB" in done.output
        assert store.load(table).model == {}

    def test_a_line_that_is_no_journals(self, journal, table):
        text = journal.read_text(encoding="utf-8").replace('"status"', '"state"', 1)
        journal.write_text(text, encoding="utf-8")
        done = run("fit", journal, "--table", table)
        assert done.exit_code == 2
        assert "line 2" in done.output


class TestRegret:
    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "times.json"
        regret.write(path, [regret.Timed(problem, times(problem)) for problem in PROBLEMS], {"gpu": GPU})
        return path

    def test_a_line_for_each_way_of_choosing(self, file):
        lines = run("regret", file).output.splitlines()
        assert lines[0].split() == ["choice", "problems", "geomean", "p10", "worst", "rungs"]
        assert [line.split("  ")[0] for line in lines if not line.startswith("  ")][1:] == ["model", "ladder", "top-8 measured"]

    def test_as_data(self, file):
        rows = json.loads(run("regret", file, "--json").output)
        assert [row["problems"] for row in rows] == [3, 3, 3]
        assert all(0 < row["worst"] <= row["geomean"] <= 1 for row in rows)
