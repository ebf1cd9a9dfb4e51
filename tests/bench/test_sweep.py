"""The sweep's own logic, on CPU tensors and with an engine that counts instead of measuring."""

import inspect
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import minblas
from bench import baselines, cli, records, run, small, sweep
from bench.records import CLASSES
from heuristics.archs import get_arch
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from minblas import rival
from minblas.buffers import scalars

CPU = torch.device("cpu")


class CountingEngine:
    """Replays cost what the table says: the first rival 10, the second 20 us a launch."""

    def estimate(self, run):
        run(0)
        return 500.0

    def capture(self, run, indices):
        run(indices[0])
        return len(indices)

    def measure(self, replays):
        return [count * cost for count, cost in zip(replays, [10.0, 20.0, 20.0, 10.0], strict=False)]


@pytest.fixture
def plans():
    cases = [("test", GemmProblem.of(64, 48, 32, "bf16", "nt")), ("test", GemmProblem.of(2, 64, 96, "fp16", "nt"))]
    return sweep.choose_all(cases, CPU)


def quick(**changes):
    return sweep.Options(rounds=2, eager=False, **changes)


def test_every_result_is_checked_before_it_is_timed(plans):
    results = list(sweep.sweep(plans, CPU, quick(), engine=CountingEngine()))
    assert [result.status for result in results] == ["ok", "ok"]
    assert all(result.time_us for result in results)
    assert all(result.ratio for result in results)


@pytest.mark.parametrize(("heavy", "asked", "waited"), [(1.0, 40.0, 40e3), (1e30, 40.0, 0.0), (1.0, 0.0, 0.0)])
def test_a_heavy_product_warms_the_card_up(plans, monkeypatch, heavy, asked, waited):
    seen = []
    timed = sweep.timing.time_interleaved
    monkeypatch.setattr(sweep, "HEAVY_FLOPS", heavy)
    monkeypatch.setattr(sweep.timing, "time_interleaved", lambda *a, **k: seen.append(k["warm_up_us"]) or timed(*a, **k))
    list(sweep.sweep(plans[:1], CPU, quick(warm_up_ms=asked), engine=CountingEngine()))
    assert seen == [waited]


def test_a_sweep_warms_up_for_as_long_whoever_starts_it():
    assert run.Request().warm_up_ms == inspect.signature(cli.bench).parameters["warm_up"].default == sweep.WARM_UP_MS


def test_a_wrong_result_is_reported_and_not_timed(plans, monkeypatch):
    class Wrong:
        compile_seconds = 0.0

        def __call__(self, slots, alpha, beta):
            slots["OUT"].zero_()

    monkeypatch.setattr(sweep, "_prepare", lambda *args: Wrong())
    results = list(sweep.sweep(plans, CPU, quick(), engine=CountingEngine()))
    assert [result.status for result in results] == ["wrong", "wrong"]
    assert all(result.time_us is None for result in results)


def test_a_failure_is_one_row_and_not_the_end(plans, monkeypatch):
    def broken(*args):
        raise RuntimeError("out of registers")

    monkeypatch.setattr(sweep, "_prepare", broken)
    results = list(sweep.sweep(plans, CPU, quick(), engine=CountingEngine()))
    assert [result.status for result in results] == ["failed", "failed"]
    assert "out of registers" in results[0].message


def test_what_nothing_serves_is_a_row_of_its_own():
    with minblas.options(exclude={"aten"}):
        plans = sweep.choose_all([("test", GemmProblem.of(32, 32, 32, "fp64"))], CPU)
    result = next(sweep.sweep(plans, CPU, quick(), engine=CountingEngine()))
    assert result.status == "unserved"


def test_a_spent_budget_stops_the_sweep(plans):
    assert list(sweep.sweep(plans, CPU, quick(budget_s=1.0), engine=CountingEngine(), began=-1e9)) == []


def test_eager_time_is_taken_for_both(plans):
    options = sweep.Options(rounds=1, eager=True)
    result = next(sweep.sweep(plans[:1], CPU, options, engine=CountingEngine()))
    assert result.eager_us
    assert result.torch_eager_us


def test_spread_puts_every_class_into_every_stretch():
    large = [("s", GemmProblem.of(4096, 4096, 1024 + 8 * i)) for i in range(8)]
    gemv = [("s", GemmProblem.of(1, 4096, 1024 + 8 * i)) for i in range(4)]
    ordered = [problem.shape_class for _, problem in sweep.spread(large + gemv)]
    assert sorted(ordered) == sorted(["large"] * 8 + ["gemv"] * 4)
    assert ordered[:6].count("gemv") == 2


def test_cases_keep_what_was_asked_for():
    cases = run.select_cases(run.Request(suites=("all-16bit",), classes=("gemv",), limit=7))
    assert len(cases) == 7
    assert {problem.shape_class for _, problem in cases} == {"gemv"}
    assert {problem.dtype for _, problem in run.select_cases(run.Request(dtype="fp16", limit=20))} == {"fp16"}


def test_the_small_sweep_covers_what_it_says():
    problems = [case.problem for case in small.cases()]
    assert {problem.shape_class for problem in problems} >= {"square", "ragged", "gemv", "decode", "split-K", "batched"}
    assert {problem.layout for problem in problems} >= {"nn", "nt", "tn", "tt"}
    assert {case.variant for case in small.cases()} >= {
        variant.name for variant in VARIANTS if variant.recipe is not None and variant.interpretable
    }
    assert {problem.shape_class for problem in small.real_problems()} <= set(CLASSES)


def test_a_broken_variant_does_not_hide_the_others(monkeypatch):
    def broken(*args):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("minblas.launch.prepare", broken)
    results = list(small.check_all(small.cases()[:2], get_arch("h200"), VARIANTS))
    assert [result.status for result in results] == ["failed", "failed"]


@pytest.mark.parametrize(("dtype", "layout", "batch"), [("bf16", "nt", 1), ("fp32", "tn", 1), ("fp64", "nn", 3)])
def test_the_rival_computes_the_same_product(dtype, layout, batch):
    problem = GemmProblem.of(24, 40, 56, dtype, layout, batch=batch)
    slots = make_slots(problem, seed=1)
    rival.torch_product(problem, slots)()
    a, b = baselines.operands(problem, slots)
    from kernel_zoo.matrices import matrix

    out = matrix(slots["OUT"], problem.out, problem.batch)
    torch.testing.assert_close(out if batch > 1 else out[0], a @ b)


C, BIAS = Operand.dense("fp32", 24, 40), Operand("fp32", 24, 40, (0, 0, 1))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("epilogue", [Epilogue("x", "x", C), Epilogue("1", "1", C), Epilogue("x"), Epilogue("x", bias=BIAS)])
def test_the_rival_computes_the_same_sum(epilogue, batch):
    if epilogue.c is not None:
        epilogue = replace(epilogue, c=Operand.dense("fp32", 24, 40, batch=batch))
    problem = GemmProblem.of(24, 40, 56, "fp32", batch=batch, epilogue=epilogue)
    slots = make_slots(problem, seed=1)
    alpha, beta = scalars(problem)
    rival.torch_product(problem, slots, alpha, beta)()
    verdict = verify(problem, slots, alpha, beta)
    assert verdict.ok, verdict.message


def test_a_whole_sweep_writes_its_files_and_sums_up(monkeypatch, tmp_path):
    cases = [("test", GemmProblem.of(64, 64, 64, "bf16", "nt")), ("test", GemmProblem.of(128, 128, 128, "bf16", "nt"))]
    monkeypatch.setattr(run, "select_cases", lambda request: cases)
    screen = Console(width=160, record=True)
    request = run.Request(out=tmp_path / "results.jsonl", rounds=2, eager=False, aten=False, workers=1)
    done = run.on_gpu(request, screen, CPU, CountingEngine())
    assert not done.faulty
    text = screen.export_text()
    assert "2 shapes" in text
    assert "geomean" in text
    environment, results = records.read(tmp_path / "results.jsonl")
    assert environment["aten"] is False
    assert [result.status for result in results] == ["ok", "ok"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        "ratios.png",
        "report.html",
        "roofline.png",
        "squares.png",
    ]


def test_a_lost_device_ends_the_sweep(plans, monkeypatch):
    def fault(*args):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(sweep, "_prepare", fault)
    monkeypatch.setattr(sweep, "is_lost", lambda device: True)
    assert len(list(sweep.sweep(plans, CPU, quick(), engine=CountingEngine()))) == 1


def test_there_is_no_rival_for_an_epilogue():
    problem = GemmProblem.of(8, 8, 8, epilogue=Epilogue(activation="relu"))
    assert rival.torch_product(problem, make_slots(problem)) is None


def test_torch_precision_is_put_back():
    before = torch.backends.cuda.matmul.fp32_precision
    with rival.torch_precision("tf32"):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before
