"""Recording what a program meets: once per problem and process, in whole lines, read back without what is foreign."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import pytest
import torch

import minblas
from heuristics import notices
from kernel_zoo.spec import GemmProblem
from minblas import dispatch, record
from minblas.errors import ArgumentError
from minblas.tune import tune
from tests.processes import ROOT, environment


@pytest.fixture
def file(tmp_path, monkeypatch):
    dispatch.forget_plans()
    notices.forget()
    path = tmp_path / "met.jsonl"
    monkeypatch.setenv(record.VARIABLE, str(path))
    yield path
    dispatch.forget_plans()


def product(m, n, k, **options):
    return minblas.gemm(torch.ones(m, k), torch.ones(k, n), **options)


def test_each_distinct_problem_once(file):
    for m in (3, 5, 3, 3):
        product(m, 4, 8)
    product(3, 4, 8, activation="relu")
    found = minblas.recorded(file)
    assert [(p.m, p.epilogue.activation) for p in found] == [(3, "none"), (5, "none"), (3, "relu")]
    assert len(file.read_text().splitlines()) == 3
    dispatch.forget_plans()
    product(3, 4, 8)  # cold again, and met before
    assert len(file.read_text().splitlines()) == 3


def test_a_warm_call_does_not_come_there(file, monkeypatch):
    product(3, 4, 8)
    monkeypatch.setattr(record, "note", lambda problem: pytest.fail("a warm call was recorded"))
    product(3, 4, 8)


def test_nothing_is_written_unasked(file, monkeypatch):
    monkeypatch.delenv(record.VARIABLE)
    product(3, 4, 8)
    assert not file.exists()


def test_a_file_that_cannot_be_written_never_fails_the_call(file, monkeypatch, caplog):
    monkeypatch.setenv(record.VARIABLE, str(file.parent / "no folder" / "met.jsonl"))
    assert product(3, 4, 8).sum() == 3 * 4 * 8
    assert "not recorded" in caplog.text


def test_a_problem_is_read_back_as_it_was(file):
    a, b = torch.ones(64, 6, dtype=torch.bfloat16).T, torch.ones(64, 8, dtype=torch.bfloat16)
    minblas.gemm(a, b, bias=torch.ones(8, dtype=torch.bfloat16), deterministic=True)
    (problem,) = minblas.recorded(file)
    assert (problem.layout, problem.deterministic, problem.epilogue.bias is not None) == ("tn", True, True)
    assert problem in {seen for _, seen in record._SEEN}


def test_processes_share_a_file(file):
    code = (
        "import sys\nfrom kernel_zoo.spec import GemmProblem\nfrom minblas import record\n"
        "for m in range(200): record.note(GemmProblem.of(m + 1, int(sys.argv[1]), 64))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)], cwd=ROOT, env=environment()) for n in (8, 16)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(minblas.recorded(file)) == 400


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_last_line_that_was_cut_off(file, cut):
    product(3, 4, 8)
    product(5, 4, 8)
    file.write_bytes(file.read_bytes()[:-cut])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(minblas.recorded(file)) == (2 if cut == 1 else 1)
    product(7, 4, 8)  # goes onto a line of its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert minblas.recorded(file)[-1].m == 7


def test_foreign_lines_are_one_warning(file):
    product(3, 4, 8)
    good = json.loads(file.read_text())
    bad_dtype = json.loads(json.dumps(good).replace('"fp32"', '"bf17"'))
    bad_size = {**good, "problem": {**good["problem"], "m": -3}}
    foreign = ["not JSON", "[1]", '{"kind": "shape"}', json.dumps(bad_dtype), json.dumps(bad_size), "", '{"kind": "problem"}']
    file.write_text("\n".join([*foreign, json.dumps(good), json.dumps(good), ""]))
    with pytest.warns(UserWarning, match=r"line 1 is no recorded problem and is left out \(and 5 more\)") as said:
        assert [problem.m for problem in minblas.recorded(file)] == [3]
    assert len(said) == 1


def test_without_a_file_it_says_how_to_make_one(tmp_path):
    with pytest.raises(ArgumentError, match="MINBLAS_RECORD="):
        minblas.recorded(tmp_path / "none.jsonl")


def test_what_was_recorded_can_be_tuned(file, tmp_path):
    product(32, 16, 40)
    product(32, 16, 40, batch_invariant=True)  # its kernel is fixed: there is nothing to tune
    report = tune(
        minblas.recorded(file), variants=["tiled"], top_k=1, verify_only=True, resume=tmp_path / "j.jsonl", progress=False
    )
    assert [row["problem"]["m"] for row in report.rows] == [32]
    assert report.rejected == {"wrong": 0, "failed": 0}


def test_a_row_serves_all_so_a_repeatable_one_stands_for_it_only_alone():
    from dataclasses import replace

    from minblas.shapes import unique

    plain = GemmProblem.of(64, 64, 64)
    repeatable = replace(plain, deterministic=True)
    assert unique([repeatable, plain]) == [plain]
    assert unique([repeatable]) == [repeatable]
