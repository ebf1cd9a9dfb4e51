"""`minblas tune`: where its shapes come from, what reaches the tuner, and how it ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import minblas
from bench import cli
from heuristics import store
from heuristics.table import Environment
from kernel_zoo.spec import GemmProblem
from minblas import record
from minblas.shapes import problems_of
from minblas.tune import TuneInterrupted
from minblas.tune_report import TuneReport

WHERE = Environment("NVIDIA H200", (9, 0), 132, triton="3.7.1", torch="2.13.0")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Invoke the command with an empty user directory."""
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path / "user")
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words, code=0):
        result = CliRunner().invoke(cli.app, ["tune", *(str(word) for word in words)])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


class Asked:
    """What reaches minblas.tune; it answers with an empty report, or does what it was `let` do with it."""

    def __init__(self):
        self.calls, self.action = [], lambda report: None

    def let(self, action):
        self.action = action

    def tune(self, problems, **options):
        self.calls.append((list(problems_of(problems, options["dtype"], options["layout"])), options))
        report = TuneReport(WHERE, "journal.jsonl", 0)
        self.action(report)
        return report


@pytest.fixture
def asked(monkeypatch):
    made = Asked()
    monkeypatch.setitem(minblas.__dict__, "tune", made.tune)
    return made


def sizes(problems):
    return [(p.m, p.n, p.k) for p in problems]


def test_the_journal_is_named_as_soon_as_it_is_there(run, tmp_path):
    words = (32, 32, 32, "--verify-only", "--top-k", 1, "--variant", "tiled")
    said = run(*words)
    (journal,) = (tmp_path / "journals").glob("*.jsonl")
    assert said.startswith(f"journal: {journal} (should this be killed")
    mine = tmp_path / "mine.jsonl"
    assert f"journal: {mine} (" in run(*words, "--resume", mine)
    assert "should this be killed" not in run(*words, "--quiet")


@pytest.mark.parametrize("wrong", [("--variant", "tyled"), ("--dtype", "bf17"), ("--devices", "gpu7")], ids=str)
def test_wrong_arguments_name_no_journal(run, tmp_path, wrong):
    assert "journal" not in run(32, 32, 32, "--verify-only", *wrong, code=2)
    assert not (tmp_path / "journals").exists()


def test_sizes_in_threes(run, asked):
    run(64, 128, 256, 1, 2, 3, "--dtype", "fp16", "--layout", "nt", "--batch", 2)
    problems, _ = asked.calls[0]
    assert sizes(problems) == [(64, 128, 256), (1, 2, 3)]
    assert {(p.batch, p.dtype, p.layout) for p in problems} == {(2, "fp16", "nt")}


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        ("1,8,64", [1, 8, 64]),
        ("1:16", [1, 2, 3, 4, 6, 8, 12, 16]),
        ("5:20", [5, 6, 8, 12, 16, 20]),
        ("7:7", [7]),
        ("64:256:64", [64, 128, 192, 256]),
        ("1:4,100", [1, 2, 3, 4, 100]),
    ],
)
def test_ranges_of_m(run, asked, m, expected):
    run(512, 256, 32, 16, "--m", m)
    assert sizes(asked.calls[0][0]) == [(size, n, k) for n, k in ((512, 256), (32, 16)) for size in expected]


def test_suites_and_recorded_shapes_add_up(run, asked, tmp_path, monkeypatch):
    file = tmp_path / "met.jsonl"
    monkeypatch.setenv(record.VARIABLE, str(file))
    record.note(GemmProblem.of(5, 6, 7, "fp64"))
    run("--recorded", file, "--suite", "all-16bit", "--limit", 3, 8, 8, 8)
    found = sizes(asked.calls[0][0])
    assert len(found) == 5
    assert found[0] == (8, 8, 8)
    assert found[-1] == (5, 6, 7)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"isolate": None, "devices": None, "top_k": 16, "budget_s": None, "progress": True}),
        (("--devices", "0,1"), {"devices": ["cuda:0", "cuda:1"]}),
        (("--devices", "all"), {"devices": "all"}),
        (("--no-isolate",), {"isolate": False}),
        (("--isolate",), {"isolate": True}),
        (("--budget", 60, "--top-k", 4, "--quiet"), {"budget_s": 60.0, "top_k": 4, "progress": False}),
        (("--aten",), {"include_aten": True}),
        (("--json",), {"progress": False}),
        (("--variant", "tiled", "--variant", "tma"), {"variants": ["tiled", "tma"]}),
        ((), {"challengers": None, "per_variant": 2}),
        (("--challenger", "tma", "--per-variant", 6), {"challengers": ["tma"], "per_variant": 6, "variants": None}),
    ],
    ids=str,
)
def test_options_reach_the_tuner(run, asked, words, expected):
    run(64, 64, 64, *words)
    options = asked.calls[0][1]
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to tune"),
        ((64, 64), "M N K"),
        ((64, "--m", "1:8"), "N K"),
        ((64, 64, "--m", "8:1"), "holds no size"),
        ((64, 64, "--m", "x"), "1:4096"),
        (("--recorded", "nowhere.jsonl"), "MINBLAS_RECORD=nowhere.jsonl"),
        (("--suite", "all-17bit"), "all-17bit"),
    ],
)
def test_what_cannot_be_tuned(run, asked, words, said):
    assert said in run(*words, code=2)
    assert asked.calls == []


def test_ctrl_c_prints_the_report_and_how_to_go_on(run, asked):
    def interrupt(report):
        raise TuneInterrupted(report)

    asked.let(interrupt)
    text = run(64, 64, 64, code=130)
    assert "go on with --resume journal.jsonl" in text
    assert "0 of 0 shapes" in text
    said = run(64, 64, 64, "--json", code=130)
    assert json.loads(said[said.index("{") :])["journal"] == "journal.jsonl"


def test_a_wrong_candidate_is_exit_code_1(run, asked):
    def find_wrong(report):
        report.rows.append({"winner": None, "note": "", "trials": [{"status": "wrong"}]})

    asked.let(find_wrong)
    run(64, 64, 64, code=1)


def test_in_a_process_of_its_own_on_a_cpu(run, tmp_path):
    journal = tmp_path / "out.jsonl"
    words = (32, 40, "--m", "16,32", "--top-k", 1, "--variant", "tiled", "--resume", journal)
    report = json.loads(run(*words, "--verify-only", "--isolate", "--json"))
    assert (report["asked"], len(report["rows"]), report["faults"]) == (2, 2, [])
    assert report["rejected"] == {"wrong": 0, "failed": 0}


def test_it_verifies_on_a_cpu_and_keeps_a_journal(run, tmp_path):
    journal = tmp_path / "out.jsonl"
    words = (32, 40, 48, 16, 16, 32, "--batch", 2, "--dtype", "fp16", "--top-k", 1, "--resume", journal)
    assert "2 of 2 shapes verified" in run(*words, "--verify-only", "--quiet")
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["header", "verified", "verified"]
    assert [row["problem"]["batch"] for row in rows[1:]] == [2, 2]


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "CUDA"), (("--verify-only", "--variant", "tyled"), "tiled"), (("--devices", "cpu,cpu", "--no-isolate"), "CUDA")],
)
def test_it_says_what_it_needs(run, monkeypatch, words, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert said in run(64, 64, 64, *words, code=2)
