"""Every command, from words to exit code, on a machine without a GPU."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bench import cli, environment, terminal
from bench.run import Request, select_cases
from heuristics import store
from heuristics.archs import get_arch
from heuristics.table import Environment, HeuristicTable, TableEntry, problem_key
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem
from minblas import settings


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Invoke a command with an empty user directory and no GPU."""
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path / "user")
    monkeypatch.setattr(terminal, "has_gpu", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words, code=0):
        result = CliRunner().invoke(cli.app, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


@pytest.fixture
def table_file(tmp_path):
    """A table of one legal row, in a file."""
    problem = GemmProblem.of(512, 512, 512, "bf16", "nt")
    arch = get_arch("h200")
    variant = next(variant for variant in VARIANTS if variant.name == "tiled")
    tile = next(tile for tile in variant.space(problem, arch) if variant.refusal(problem, arch, tile) is None)
    entry = TableEntry(problem_key(problem), "tiled", tile, variant.digest, 5.0, 6.0, date="2026-01-01")
    where = Environment("NVIDIA H200", (9, 0), 132, triton="3.7.1", torch="2.13.0")
    path = tmp_path / "table.json"
    store.save(HeuristicTable(str(path), where, (entry,)), path)
    return path


def test_explain_needs_no_gpu_and_names_what_it_picked(run):
    text = run("explain", 256, 256, 16384, "--dtype", "bf16", "--layout", "nt", "--arch", "h200")
    assert "split_k" in text
    data = json.loads(run("explain", 256, 256, 16384, "--layout", "nt", "--arch", "h200", "--json"))
    assert data["variant"] in text
    asked = json.loads(run("explain", 256, 256, 16384, "--batch-invariant", "--deterministic", "--json"))
    assert (asked["batch_invariant"], asked["deterministic"]) == (True, True)


def test_explain_takes_a_capability_for_a_device(run):
    assert run("explain", 512, 512, 512, "--arch", "sm_80")


def test_explain_says_why_not(run):
    assert "one of them at most 4" in run("explain", 256, 256, 16384, "--why", "gemv")
    assert "legal, and" in run("explain", 256, 256, 16384, "--why", "tiled", "--arch", "a100")
    assert "excluded by the caller" in run("explain", 256, 256, 16384, "--why", "tma", "--exclude", "tma")
    data = json.loads(run("explain", 256, 256, 16384, "--why", "tiled", "--tile", "64x64x64 g8 w4 s4", "--json"))
    assert (data["variant"], data["tile"], data["kind"]) == ("tiled", "64x64x64 g8 w4 s4", "slower")
    assert "split_k" in run("explain", 256, 256, 16384, "--why", "splitk", code=2)


def test_explain_forces_a_tile_and_names_its_sources(run):
    data = json.loads(run("explain", 512, 512, 512, "--variant", "tiled", "--tile", "64x64x64 g8 w4 s4", "--json"))
    assert (data["rung"], data["tile"]) == ("forced", "64x64x64 g8 w4 s4")
    assert "of the form" in run("explain", 512, 512, 512, "--tile", "64x64", code=2)
    assert "bandwidth_gbps: NVIDIA H200 data sheet" in run("explain", 512, 512, 512, "--sources")
    assert "data sheet" not in run("explain", 512, 512, 512)


def test_explain_needs_neither_torch_nor_triton():
    code = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
from typer.testing import CliRunner
from bench import cli
for words in (["--arch", "a100"], ["--arch", "b200", "--json"], ["--arch", "l4", "--why", "tma"], ["--dtype", "fp32", "--sources"]):
    result = CliRunner().invoke(cli.app, ["explain", "256", "256", "16384", *words])
    assert result.exit_code == 0, (words, result.output, result.exception)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=environment.ROOT)
    assert done.returncode == 0, done.stderr


def test_explain_names_the_next_command_and_what_it_assumed(run):
    data = json.loads(run("explain", 256, 256, 16384, "--dtype", "bf16", "--arch", "l4", "--json"))
    assert data["next"].startswith("minblas ")
    assert "layout nn" in data["problem"]["assumed"]
    assert "dtype bf16" not in data["problem"]["assumed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arch", "h20"), "h200"),
        (("--dtype", "bf17"), "bf17"),
        (("--layout", "xy"), "nn, nt, tn or tt"),
        (("--variant", "tilde"), "tiled"),
        (("--activation", "gellu"), "gelu"),
        (("--out-dtype", "bf17"), "out_dtype is 'bf17'"),
        (("--dtype", "fp32", "--precision", "tf33"), "tf32"),
    ],
)
def test_explain_says_what_is_wrong_and_what_is_near(run, words, said):
    assert said in run("explain", 64, 64, 64, *words, code=2)


def test_variants_lists_the_zoo(run):
    names = [row["name"] for row in json.loads(run("variants", "--json"))]
    assert names == [variant.name for variant in VARIANTS]
    assert "split_k" in run("variants")


def test_doctor_reports_versions_and_remedies(run):
    findings = {row["name"]: row for row in json.loads(run("doctor", "--json"))}
    assert findings["torch"]["ok"]
    assert "CUDA device" in run("doctor")


def test_doctor_gives_a_remedy_for_what_is_missing(monkeypatch):
    real = environment.importlib.util.find_spec
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    finding = next(finding for finding in environment.examine() if finding.name == "matplotlib")
    assert not finding.ok
    assert "pip install" in finding.remedy


def test_table_show(run, table_file):
    assert "512 x 512 x 512 16bit nt" in run("table", "show", table_file)
    assert json.loads(run("table", "show", table_file, "--json"))[0]["rows"] == 1


def test_table_diff_of_a_table_with_itself_is_empty(run, table_file):
    assert "0 rows differ" in run("table", "diff", table_file, table_file)


def test_table_merge_writes_a_file(run, table_file, tmp_path):
    assert json.loads(run("table", "merge", table_file, table_file, "-o", tmp_path / "merged.json", "--json"))["rows"] == 1


def test_table_verify_passes_a_legal_row(run, table_file):
    assert "0 findings" in run("table", "verify", table_file)


def test_table_verify_fails_a_row_of_a_kernel_that_changed(run, table_file):
    table_file.write_text(table_file.read_text().replace(next(v for v in VARIANTS if v.name == "tiled").digest, "0" * 12))
    assert "1 findings" in run("table", "verify", table_file, code=1)


def test_table_verify_compiles_a_row_without_a_gpu(run, table_file):
    assert "1 compiled" in run("table", "verify", table_file, "--compile", "--workers", 1)


def test_a_missing_table_is_an_error(run, tmp_path):
    assert "there is no file" in run("table", "show", tmp_path / "none.json", code=2)


def test_a_limit_takes_the_same_shapes_of_a_suite_each_time():
    request = Request(suites=("all-16bit",), limit=7)
    chosen = select_cases(request)
    assert chosen == select_cases(request)
    assert len(chosen) == 7
    assert len({problem.shape_class for _, problem in chosen}) > 2
    assert {problem.dtype for _, problem in chosen} <= {"fp16", "bf16"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((64, 64), "M N K"),
        ((), "M N K"),
        (("--m", "1:64", 64), "N K"),
        (("--m", "1-64", 64, 64), "A:B"),
        (("--m", "64:1", 64, 64), "holds no size"),
        (("--m", "1:9:0", 64, 64), "holds no size"),
    ],
)
def test_warmup_says_what_sizes_it_needs(run, words, said):
    assert said in run("warmup", *words, code=2)


def test_warmup_along_m_reports_intervals(run, monkeypatch):
    from kernel_zoo import build

    monkeypatch.setattr(build, "compile_binary", lambda spec, cc: None)
    words = ("warmup", "--m", "33:64:1", 512, 512, "--layout", "nt", "--arch", "a100", "--workers", 0)
    data = json.loads(run(*words, "--json"))
    assert (data["shapes"], data["exact"], data["device"]) == (32, True, "cpu, for a100")
    assert data["picks"][0]["serves"]["first"] == 33
    assert data["picks"][-1]["serves"]["last"] == 64
    assert "M 33" in run(*words)


def test_check_counts_right_refused_and_wrong(run):
    report = json.loads(run("check", "gemv", "--json"))[0]
    assert report["wrong"] == 0
    assert report["right"] > 0


def test_bench_on_a_cpu_checks_results_and_shows_picks(run, tmp_path):
    data = json.loads(run("bench", "--limit", 2, "--out", tmp_path / "small.jsonl", "--json"))
    assert [result["status"] for result in data["results"]] == ["ok", "ok"]
    assert all(result.get("ratio") is None for result in data["results"])
    assert data["picks"]
    assert (tmp_path / "small.jsonl").exists()


def test_bench_prints_tables_for_the_arch_asked_for(run):
    text = run("bench", "--limit", 1, "--arch", "a100")
    assert "No NVIDIA GPU" in text
    assert "What would be picked on a100" in text


def test_bench_knows_its_classes_and_suites(run):
    assert "class" in run("bench", "--class", "huge", code=2)


def test_the_command_starts_without_torch():
    code = "import sys, bench.cli; assert 'torch' not in sys.modules and 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=environment.ROOT)


def test_a_wrong_environment_variable_is_a_line_for_the_user(run, monkeypatch):
    monkeypatch.setattr(settings, "_process", None)
    monkeypatch.setenv("MINBLAS_ARCH", "h2000")
    said = run("explain", 64, 64, 64, code=2)
    assert said.startswith("error: MINBLAS_ARCH is 'h2000'; needed: a device the project knows; did you mean 'h200'")
