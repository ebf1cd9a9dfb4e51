"""`minblas resources`: builds what is missing and nothing else, survives an interrupt, and says what is missing."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bench import resources as commands
from bench.cli import app
from heuristics import resources
from heuristics.resources import Record, ResourceTable
from kernel_zoo import catalog, census
from kernel_zoo.compile_worker import Answer
from kernel_zoo.kernels import split_k
from kernel_zoo.spec import Resources

CLEAN = Resources(1024, 64, 0, ("mma",))
SPILLED = Resources(1024, 255, 9, ("mma",))
RUNNER = CliRunner()
SM80 = commands.device("sm_80")


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """One variant, and a compiler that counts."""
    asked = []

    def compile_here(spec, cc):
        asked.append(cc)
        return Answer("ok", resources=CLEAN)

    monkeypatch.setattr(census, "compile_here", compile_here)
    monkeypatch.setattr(census.CompilePool, "_payload", staticmethod(lambda spec, cc: None))
    monkeypatch.setattr(commands.catalog, "VARIANTS", (catalog.get("persistent"),))
    monkeypatch.setattr(commands, "CAPABILITIES", ("sm_80", "sm_86"))
    return asked


def run(*words):
    return RUNNER.invoke(app, ["resources", *words])


def read(directory, cc=80, triton="3.7.1"):
    return resources.loads(resources.path_of(cc, triton, directory).read_text())


def test_build_then_verify(tmp_path, compiler, monkeypatch):
    monkeypatch.setattr("minblas.environment.version", lambda name: "3.7.1+git12")
    assert run("verify", "--dir", str(tmp_path)).exit_code == 1
    built = run("build", "--dir", str(tmp_path), "--json")
    assert built.exit_code == 0, built.output
    assert [(one["left"], one["keys"] > 50) for one in json.loads(built.stdout)] == [(0, True)] * 2
    assert set(compiler) == {80, 86}
    assert read(tmp_path).digests == {"persistent": catalog.get("persistent").digest}
    assert run("verify", "--dir", str(tmp_path)).exit_code == 0
    compiler.clear()
    assert run("build", "--dir", str(tmp_path)).exit_code == 0
    assert compiler == []


def test_building_needs_triton(monkeypatch):
    monkeypatch.setattr("minblas.environment.version", lambda name: "")
    done = run("build")
    assert done.exit_code == 2
    assert "pip install triton" in done.output


def built(directory, **more):
    return commands.build(SM80, "3.7.1", workers=0, directory=directory, **more)


def test_a_budget_ends_a_build_and_the_next_goes_on(tmp_path, compiler):
    first = built(tmp_path, deadline=0.0)
    assert first.compiled == 1
    assert first.left == first.keys - 1
    again = built(tmp_path)
    assert (again.compiled, again.left) == (first.keys - 1, 0)


def test_alignments_between_the_best_and_the_worst_are_recorded(tmp_path):
    built(tmp_path)
    at = {record.at for key, record in read(tmp_path).records.items() if " any " in key}
    assert None in at
    assert len(at) > 1
    assert {record.at for key, record in read(tmp_path).records.items() if " 16 " in key} == {None}


def test_an_interrupt_keeps_what_was_compiled(tmp_path, compiler, monkeypatch):
    def interrupt(spec, cc):
        if len(compiler) == 5:
            raise KeyboardInterrupt
        compiler.append(cc)
        return Answer("ok", resources=CLEAN)

    monkeypatch.setattr(census, "compile_here", interrupt)
    with pytest.raises(KeyboardInterrupt):
        built(tmp_path)
    assert len(read(tmp_path).records) == 5


def test_a_changed_kernel_is_compiled_again_and_old_tiles_are_dropped(tmp_path, compiler):
    total = built(tmp_path).keys
    table = read(tmp_path)
    path = resources.path_of(80, "3.7.1", tmp_path)
    old = {**table.records, "persistent 16bit nn 16 1024x8x8 w1 s1": Record(CLEAN)}
    path.write_text(resources.dumps(ResourceTable(80, "3.7.1", table.digests, old)))
    assert built(tmp_path).compiled == 0
    assert read(tmp_path) == table
    path.write_text(resources.dumps(ResourceTable(80, "3.7.1", {"persistent": "before"}, table.records)))
    (found, other) = (json.loads(run("verify", "--dir", str(tmp_path), "--json").stdout)[i] for i in (0, 1))
    assert (found["stale"], found["missing"]) == (["persistent"], total)
    assert (other["arch"], other["missing"]) == ("sm_86", other["keys"])
    assert built(tmp_path).compiled == total


def test_one_variant_is_built_and_the_others_stay(tmp_path, compiler, monkeypatch):
    monkeypatch.setattr("minblas.environment.version", lambda name: "3.7.1")
    built(tmp_path)
    before = read(tmp_path)
    path = resources.path_of(80, "3.7.1", tmp_path)
    path.write_text(resources.dumps(ResourceTable(80, "3.7.1", {"persistent": "of before"}, before.records)))
    monkeypatch.setattr(commands.catalog, "VARIANTS", (catalog.get("persistent"), split_k.VARIANT))
    compiler.clear()
    done = run("build", "--arch", "sm_80", "--variant", "split_k", "--dir", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    (made,) = json.loads(done.stdout)
    after = read(tmp_path)
    assert (made["left"], made["compiled"]) == (0, made["keys"])
    assert {key.split()[0] for key in after.records} == {"persistent", "split_k"}
    assert after.digests == {"persistent": "of before", "split_k": split_k.VARIANT.digest}
    assert before.records.items() <= after.records.items()
    assert "known: persistent, split_k" in run("build", "--variant", "tyled", "--dir", str(tmp_path)).output


def test_show_prints_what_is_refused(tmp_path):
    records = {
        "tiled 16bit nn 16 64x64x64 w4 s3": Record(SPILLED, "PTXASError: no", CLEAN),
        "tiled 16bit nt 16 64x64x64 w4 s3": Record(CLEAN),
    }
    resources.path_of(80, "3.7.1", tmp_path).write_text(resources.dumps(ResourceTable(80, "3.7.1", {"tiled": "x"}, records)))
    rows = json.loads(run("show", "--dir", str(tmp_path), "--json").stdout)
    assert len(rows) == 4
    rows = json.loads(run("show", "--arch", "sm_80", "--faulty", "--dir", str(tmp_path), "--json").stdout)
    assert [(row["form"], row["spills"], row["instructions"]) for row in rows] == [
        ("heavy", 9, "mma"),
        ("plain", None, "PTXASError: no"),
    ]
    assert "PTXASError" in run("show", "--dir", str(tmp_path)).stdout
    assert json.loads(run("show", "--arch", "sm_86", "--dir", str(tmp_path), "--json").stdout) == []
