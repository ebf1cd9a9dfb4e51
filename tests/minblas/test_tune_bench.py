"""The bench that a GPU is tuned on, driven on CPU tensors with a wall clock instead of CUDA graphs."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import pytest
import torch

from heuristics import store
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from minblas import dispatch
from minblas.buffers import Bank
from minblas.tune import tune
from minblas.tune_bench import CpuBenches, DeviceBench, torch_precision
from minblas.tune_shape import tune_shape
from minblas.tune_trial import Pick

CPU = torch.device("cpu")


class WallClock:
    """An engine that launches and reads the clock."""

    def __init__(self):
        self.sets = set()

    def estimate(self, run):
        run(0)
        return 400.0  # of every candidate alike: a busy machine must not make one look hopeless; and a graph stays short

    def capture(self, run, indices):
        self.sets.update(indices)

        def replay():
            began = time.perf_counter()
            for index in indices:
                run(index)
            return (time.perf_counter() - began) * 1e6

        return replay

    def measure(self, replays):
        return [replay() for replay in replays]


def variants():
    return {variant.name: variant for variant in dispatch.registry()}


def picks_for(problem, *names):
    arch = dispatch.select(problem, CPU).arch
    known = variants()
    return [
        Pick(name, next(tile for tile in known[name].space(problem, arch) if known[name].refusal(problem, arch, tile) is None))
        for name in names
    ]


C = Operand.dense("fp16", 32, 48)


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem.of(32, 48, 40, "fp16", "nt"),
        GemmProblem.of(32, 48, 40, "fp16", epilogue=Epilogue("x", "x", C)),
        GemmProblem.of(16, 16, 32, "bf16", batch=2),
    ],
    ids=lambda problem: problem.describe(),
)
def test_a_shape_from_end_to_end(problem):
    engine = WallClock()
    bench = DeviceBench(problem, variants(), CPU, Bank("cpu"), engine)
    result = tune_shape(problem, picks_for(problem, "tiled", "persistent"), bench, rounds=2)
    assert [trial.status for trial in result.trials] == ["ok", "ok"], result.trials
    assert result.winner.time_us > 0
    assert result.torch.median_us > 0
    assert len(engine.sets) > 1


def test_a_wrong_candidate_is_seen():
    problem = GemmProblem.of(32, 48, 40, "fp16")
    tiled = variants()["tiled"]
    wrong = replace(tiled, recipe=lambda call, tile: replace(tiled.recipe(call, tile), grid=(1, 1, 1)))
    bench = DeviceBench(problem, {**variants(), "tiled": wrong}, CPU)
    (trial,) = tune_shape(problem, picks_for(problem, "tiled"), bench, verify_only=True).trials
    assert trial.status == "wrong"
    assert "elements differ from float64" in trial.message


def test_a_bench_without_an_engine_only_verifies():
    problem = GemmProblem.of(32, 48, 40, "fp16")
    with CpuBenches(variants(), CPU).open(problem) as bench:
        prepared = bench.prepare(picks_for(problem, "tiled")[0])
        assert bench.verdict(prepared) == ""
        assert bench.estimate(prepared) == 0.0
        with pytest.raises(RuntimeError, match="only verifies"):
            bench.time([prepared], [1.0], 1, 100.0)
        assert not bench.lost()


def test_what_stands_in_on_a_cpu_is_not_what_was_verified():
    problem = GemmProblem.of(2048, 2048, 2048, "fp16")
    (trial,) = tune_shape(problem, picks_for(problem, "tiled"), DeviceBench(problem, variants(), CPU), verify_only=True).trials
    assert trial.status == "failed"
    assert "tiled was not run: CPU: a product over the interpreter's cap" in trial.message


def test_a_whole_tune_with_real_kernels(tmp_path):
    class Benches:
        bank, engine = Bank("cpu"), WallClock()

        @contextlib.contextmanager
        def open(self, problem):
            yield DeviceBench(problem, variants(), CPU, self.bank, self.engine)

    files = {"resume": tmp_path / "journal.jsonl", "table": tmp_path / "table.json"}
    able = [name for name, variant in variants().items() if variant.interpretable]
    report = tune([(32, 48, 40), (1, 64, 64)], dtype="fp16", top_k=2, variants=able, benches=Benches(), progress=False, **files)
    assert report.tuned == 2, str(report)
    assert report.rejected == {"wrong": 0, "failed": 0}
    assert len(store.load(files["table"]).entries) == 2


def test_torchs_precision_is_set_and_given_back():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with torch_precision("tf32"):
        assert matmul.fp32_precision == "tf32"
        with torch_precision("ieee"):
            assert matmul.fp32_precision == "ieee"
        with torch_precision(""):
            assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before
    with contextlib.suppress(ZeroDivisionError), torch_precision("tf32"):
        raise ZeroDivisionError
    assert matmul.fp32_precision == before


def test_on_a_cpu_nothing_is_tried_that_cannot_run_there(tmp_path):
    """The model ranks a Gluon kernel first here: without a word it would be counted as failed."""
    told = {"dtype": "fp16", "top_k": 12, "verify_only": True, "device": "cpu", "progress": False}
    report = tune([(32, 48, 40)], resume=tmp_path / "journal.jsonl", **told)
    assert report.rejected == {"wrong": 0, "failed": 0}
    assert len(report.rows[0]["trials"]) >= 4
    named = tune([(32, 48, 40)], resume=tmp_path / "named.jsonl", variants=["ping_pong"], **told)
    assert named.rejected["failed"] == len(named.rows[0]["trials"]) > 0
