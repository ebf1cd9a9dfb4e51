"""Host time: the arithmetic of rows and rounds, the calls that are made, the command and its file."""

from __future__ import annotations

import contextlib
import gc
import json

import pytest
import torch
from typer.testing import CliRunner

import minblas
from bench import cli, host, host_calls, terminal
from bench.host_calls import Contender
from kernel_zoo.spec import GemmProblem


class Clock:
    """Time that passes only while calls are made."""

    def __init__(self):
        self.now = 0.0
        self.waits = 0

    def __call__(self):
        return self.now

    def wait(self):
        self.waits += 1
        self.now += 1000.0  # what is waited for is in nobody's time

    def taking(self, microseconds):
        def call():
            self.now += microseconds() * 1e-6

        return call


def test_a_call_takes_what_it_takes_and_the_rounds_are_paired():
    clock = Clock()
    drift = [1.0]

    def steady():
        return 4.0 * drift[0]

    def other():
        drift[0] *= 1.0001  # a host that gets slower slows both
        return 3.0 * drift[0]

    contenders = [Contender("slow", clock.taking(steady)), Contender("fast", clock.taking(other), "slow")]
    slow, fast = host.measure(contenders, 7, clock.wait, clock)
    assert clock.waits == 7 * 4 * 2
    assert slow.rounds == 7
    assert slow.low_us <= slow.median_us <= slow.high_us
    assert slow.median_us > 4.0
    assert slow.ratio is None
    assert fast.against == "slow"
    assert fast.ratio == pytest.approx(0.75, rel=0.01)
    assert fast.ratio_low <= fast.ratio <= fast.ratio_high
    assert fast.ratio_high - fast.ratio_low < 0.01


def test_a_contenders_block_is_around_its_calls_alone():
    inside, seen = [False], {"within": set(), "without": set()}

    @contextlib.contextmanager
    def block():
        inside[0] = True
        yield
        inside[0] = False

    contenders = [
        Contender("without", lambda: seen["without"].add(inside[0])),
        Contender("within", lambda: seen["within"].add(inside[0]), within=block),
    ]
    clock = Clock()
    host.measure(contenders, 2, clock.wait, clock)
    assert seen == {"within": {True}, "without": {False}}


def test_the_collector_is_off_while_rows_are_timed_and_on_again_after():
    seen = []
    clock = Clock()
    host.measure([Contender("looks", lambda: seen.append(gc.isenabled()))], 2, clock.wait, clock)
    timed = seen[host_calls.WARM :]
    assert len(timed) == 2 * 2 * host.CALLS
    assert not any(timed)
    assert gc.isenabled()

    def fails():
        if not gc.isenabled():
            raise ValueError("launch failed")

    with pytest.raises(ValueError, match="launch failed"):
        host.measure([Contender("fails", fails)], 2, clock.wait, clock)
    assert gc.isenabled()


def test_every_gpu_call_is_made_and_compared_with_torchs(monkeypatch):
    """On CPU tensors: what is timed on a GPU computes, and is divided by something that is timed as well."""
    replays = []

    def replay_of(call):
        replays.append(call)
        return call

    monkeypatch.setattr(host_calls, "replay_of", replay_of)
    problem = GemmProblem.of(16, 24, 32, "fp16")
    contenders = host_calls.gpu_contenders(problem, torch.device("cpu"), launches=False)
    names = [contender.name for contender in contenders]
    assert len(set(names)) == len(names)
    assert {contender.against for contender in contenders if contender.against} <= set(names)
    minblas.stats(reset=True)
    products = {}
    for contender in contenders[1:]:
        with contender.within():
            products[contender.name] = contender.call()
    assert sum(minblas.stats().accelerated["mm"].values()) == 1
    for contender in contenders:
        if contender.against:
            ours, theirs = products[contender.name], products[contender.against]
            assert torch.allclose(ours.float(), theirs.float(), atol=0.05), contender.name
    assert len(replays) == 2
    assert names[0] == "torch.empty"
    assert {"minblas.gemm", "minblas.gemm, out=", "minblas.linear, bias", "torch.ops.minblas.gemm"} <= set(products)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(terminal, "has_gpu", lambda: False)
    monkeypatch.setattr(host, "CALLS", 3)
    monkeypatch.setattr(host, "ROUNDS", 5)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words, code=0):
        result = CliRunner().invoke(cli.app, ["bench", "--host", *map(str, words)])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def test_without_a_gpu_the_command_says_what_it_measures_and_compares_nothing(run, tmp_path):
    text = run("--out", tmp_path / "host.jsonl")
    assert "host time of a GPU call cannot be measured here" in text
    assert "0 x 256 x 256 bf16" in text
    assert "ratio" not in text
    head, *rows = map(json.loads, (tmp_path / "host.jsonl").read_text().splitlines())
    assert head["kind"] == "environment"
    assert "No NVIDIA GPU" in head["note"]
    assert [row["kind"] for row in rows] == ["host"] * len(rows)
    assert {"torch.empty", "minblas.gemm", "minblas.gemm, out=", "minblas.plan", "torch.ops.minblas.gemm"} == {
        row["name"] for row in rows
    }
    assert all(0 < row["low_us"] <= row["median_us"] <= row["high_us"] and "ratio" not in row for row in rows)


def test_sizes_and_types_and_json(run):
    found = json.loads(run("--size", 8, 48, 16, "--dtype", "float16", "--rounds", 6, "--json"))
    assert found["title"] == "Host time of 0 x 48 x 16 fp16, nothing launched"
    assert {result["rounds"] for result in found["results"]} == {6}


@pytest.mark.parametrize("words", [("--suite", "all-16bit"), ("--arch", "a100"), ("--workers", 2), ("--no-aten",)])
def test_what_does_not_go_with_it_is_refused(run, words):
    assert "times one size" in run(*words, code=2)


def test_types_that_cannot_be_timed_are_refused(run):
    assert "dtype 'fp7' is not known" in run("--dtype", "fp7", code=2)
    assert "torch.matmul's, which takes" in run("--dtype", "int8", code=2)


def test_a_size_for_a_sweep_is_refused():
    done = CliRunner().invoke(cli.app, ["bench", "--size", "8", "8", "8"])
    assert done.exit_code == 2, done.output
    assert "needed: --host" in done.output
