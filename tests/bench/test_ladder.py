"""The ladder: its steps are what they say, each gives right results at a ragged size, times are compared with the right rivals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from bench import cli, ladder, ladder_results, steps, terminal
from bench.steps import LADDERS, SCALAR, SCALAR_TILE, Ladder, Step
from heuristics.archs import get_arch
from kernel_zoo import catalog
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig

H200 = get_arch("h200")
CPU = torch.device("cpu")
TILE = TileConfig(32, 32, 32, num_warps=4, num_stages=2)
SHORT = Ladder(
    "fp32",
    (40, 48, 36),
    (36, 20, 28),
    (
        Step("naive", SCALAR.name, SCALAR_TILE),
        Step("not written yet", "no_such"),
        Step("a tile", "tiled", TILE),
        Step("cannot be interpreted", precision="bf16x6"),
        Step("other precision", "tiled", TILE, precision="tf32"),
        Step("resident", "persistent", TILE),
    ),
)
STEPS = [(each, step) for each in LADDERS for step in each.steps]


def named(step):
    return SCALAR if step.variant == SCALAR.name else catalog.get(step.variant)


@pytest.mark.parametrize(("each", "step"), STEPS, ids=lambda value: getattr(value, "dtype", "") or value.name)
def test_every_step_is_right_at_a_ragged_size(each, step):
    small = each.problem(each.small, step.precision)
    kernel = ladder.find(step, each.problem(each.sizes, step.precision), H200)
    if kernel.variant is None:
        assert step.variant in ("warp_specialised", "ping_pong"), kernel.refused
        return
    assert not kernel.refused
    if not kernel.variant.interpretable or step.precision == "bf16x6":
        return  # compiled only, see below
    assert ladder.check(kernel.variant, kernel.tile, each.problem(each.sizes, step.precision), small, H200) == ("ok", "")
    if kernel.tile.block_m > 1 and step.variant:
        assert small.m % kernel.tile.block_m
        assert small.n % kernel.tile.block_n


@pytest.mark.parametrize("each", LADDERS, ids=lambda each: each.dtype)
def test_small_sizes_are_ragged_and_aligned_as_the_real_ones(each):
    real, small = each.problem(each.sizes), each.problem(each.small)
    assert len(set(each.small)) == 3
    assert [small.operands[name].line_align for name in "AB"] == [real.operands[name].line_align for name in "AB"] == [16, 16]


def test_the_order_is_from_the_naive_to_the_fastest():
    bf16, fp32 = (list(each.steps) for each in LADDERS)
    assert [each.sizes for each in LADDERS] == [(4096,) * 3, (4092,) * 3]
    families = [step.variant for step in bf16]
    assert families == ["scalar", *["tiled"] * 5, *["tma"] * 4, "warp_specialised", "ping_pong", ""]
    assert [step.variant for step in fp32] == ["scalar", *["tiled"] * 5, "persistent", "", "", ""]
    # Other precisions come last and say so; nothing of the ladder itself does.
    for each in LADDERS:
        others = [step for step in each.steps if step.precision]
        assert others == list(each.steps[len(each.steps) - len(others) :])
        assert all(step.name.startswith("other precision: ") for step in others)
        assert len({step.name for step in each.steps}) == len(each.steps)
    assert [step.precision for step in fp32 if step.precision] == ["bf16x6", "tf32"]


def changes(before, after):
    found = {name for name in ("group_m", "num_warps", "num_stages", "block_k") if getattr(before, name) != getattr(after, name)}
    found |= {"sides"} if (before.block_m, before.block_n) != (after.block_m, after.block_n) else set()
    return found | {name for name, _ in {*before.knobs} ^ {*after.knobs}}


def test_a_step_changes_what_its_name_says():
    said = {
        "tiles in groups that share L2": {"group_m"},
        "loads 4 stages ahead": {"num_stages"},
        "loads 3 stages ahead": {"num_stages"},
        "TMA descriptors": set(),
        "resident programs": {"persistent"},
        "tiles and K as one loop": {"flatten"},
        "the store in two pieces, a 4th stage": {"subtile", "num_stages"},
    }
    seen = set()
    for each in LADDERS:
        for before, after in zip(each.steps, each.steps[1:], strict=False):
            if after.name in said:
                seen.add(after.name)
                expected = said[after.name] - ({"persistent"} if after.variant == "persistent" else set())
                assert changes(before.tile, after.tile) == expected, after.name
    assert seen == set(said)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_naive_kernel_is_right_in_every_layout(dtype, layout):
    problem = GemmProblem.of(35, 66, 7, dtype, layout)
    assert ladder.check(SCALAR, SCALAR_TILE, problem, problem, H200) == ("ok", "")


def test_a_wrong_kernel_is_found():
    lazy = replace(SCALAR, recipe=lambda call, tile: steps.recipe(replace(call, k=call.k - 1), tile))
    problem = GemmProblem.of(35, 66, 7)
    status, message = ladder.check(lazy, SCALAR_TILE, problem, problem, H200)
    assert status == "wrong"
    assert "elements wrong" in message


def test_the_naive_kernel_refuses_what_it_does_not_compute():
    row = Operand("bf16", 8, 8, (0, 0, 1))
    for problem in (
        GemmProblem.of(8, 8, 8, "int8"),
        GemmProblem.of(8, 8, 8, "fp32", precision="tf32"),
        GemmProblem.of(8, 8, 8, batch=2),
        GemmProblem.of(8, 8, 8, epilogue=Epilogue(bias=row)),
        GemmProblem.of(1 << 16, 1 << 16, 8),
    ):
        assert SCALAR.refusal(problem, H200) is not None, problem
    assert SCALAR.name not in {variant.name for variant in catalog.VARIANTS}


def test_what_cannot_be_interpreted_is_compiled_for_the_real_size():
    uninterpretable = replace(SCALAR, interpretable=False)
    big, none = GemmProblem.of(64, 64, 64), GemmProblem.of(0, 0, 0)
    assert ladder.check(uninterpretable, SCALAR_TILE, big, none, H200) == ("compiled", "not interpreted")
    broken = replace(
        uninterpretable, recipe=lambda call, tile: replace(steps.recipe(call, tile), constants={"BLOCK_M": 3, "BLOCK_N": 4})
    )
    status, message = ladder.check(broken, SCALAR_TILE, big, none, H200)
    assert status == "failed"
    assert message


def test_a_device_that_cannot_take_a_step_leaves_it_out_with_the_refusal():
    results = [ladder._begin(LADDERS[0], number, step, get_arch("a100"))[2] for number, step in enumerate(LADDERS[0].steps, 1)]
    tma = [result for result in results if result.variant == "tma"]
    assert len(tma) == 4
    for result in tma:
        assert result.status == "unserved"
        assert result.message == "a100 has compute capability 8.0; needs 9.0 or newer (TMA)"
    assert results[-1].status == "ok"  # what is picked there is another variant


class Stub:
    """A launch of ours takes 10 us, torch's 20, one of the step before 30; nothing is launched."""

    def __init__(self, device=None):
        self.captured = 0

    def estimate(self, run):
        self.captured = 0
        return 500.0

    def capture(self, run, indices):
        self.captured += 1
        return 10.0 * self.captured * len(indices)

    def measure(self, replays):
        return list(replays)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(ladder, "LADDERS", (SHORT,))


def test_steps_are_compared_with_torch_and_the_last_step_that_ran(short):
    done = ladder.on_gpu(ladder.Request(rounds=2, silent=True), CPU, Stub())
    assert not done.faulty
    naive, missing, tile, emulated, tf32, resident = done.results
    assert [result.number for result in done.results] == [1, 2, 3, 4, 5, 6]
    assert missing.status == "unserved"
    assert missing.message == "there is no variant no_such"
    assert missing.time_us is None
    assert naive.gain is None
    assert naive.against == "torch.matmul ieee"
    for result in (naive, tile, tf32, resident):
        assert result.time_us == 10.0
        assert result.ratio == result.ratio_low == result.ratio_high == 2.0
        assert result.tflops == pytest.approx(2 * 40 * 48 * 36 / 10.0 / 1e6)
    assert (tile.over, tile.gain) == (1, 3.0)
    assert (resident.over, resident.gain) == (3, 3.0)  # not over another precision
    assert (tf32.over, tf32.against) == (None, "torch.matmul tf32")
    assert (emulated.over, emulated.against) == (None, "torch.matmul ieee")


def test_torch_forms_its_products_as_the_step_does(short, monkeypatch):
    seen = []

    class Looks(Stub):
        def capture(self, run, indices):
            run(0)
            return super().capture(run, indices)

    monkeypatch.setattr(ladder.rival, "torch_product", lambda *args: lambda: seen.append(setting.fp32_precision))
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    ladder.on_gpu(ladder.Request(rounds=1, silent=True), CPU, Looks())
    assert seen == ["ieee", "ieee", "ieee", "tf32", "ieee"]
    assert setting.fp32_precision == before


@pytest.mark.parametrize("fault", ["wrong", "failed"])
def test_a_faulty_step_is_not_timed_and_not_compared_with(short, monkeypatch, fault):
    prepare = ladder.launch.prepare

    def spoilt(variant, problem, tile, *args, **keywords):
        if tile != TILE or variant.name != "tiled":
            return prepare(variant, problem, tile, *args, **keywords)
        if fault == "failed":
            raise RuntimeError("out of registers")
        return lambda slots, alpha, beta: slots["OUT"].zero_()

    monkeypatch.setattr(ladder.launch, "prepare", spoilt)
    done = ladder.on_gpu(ladder.Request(rounds=1, silent=True), CPU, Stub())
    assert done.faulty
    assert [result.status for result in done.results] == ["ok", "unserved", fault, "ok", fault, "ok"]
    assert done.results[2].time_us is None
    assert ("out of registers" in done.results[2].message) == (fault == "failed")
    assert done.results[5].over == 1


@pytest.fixture
def run(short, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words, code=0, gpu=False):
        monkeypatch.setattr(terminal, "has_gpu", lambda: gpu)
        monkeypatch.setattr(terminal, "gpu", lambda: CPU)
        monkeypatch.setattr(ladder.timing, "CudaEngine", Stub)
        result = CliRunner().invoke(cli.app, ["bench", "--ladder", *map(str, words)])
        assert result.exit_code == code, result.output
        return result

    return invoke


def test_without_a_gpu_the_command_checks_and_says_that_timing_needs_one(run, tmp_path):
    text = run("--out", tmp_path / "deep" / "ladder.jsonl").output
    assert "timing needs one" in text
    assert "TFLOP/s" not in text
    lines = [line for line in text.splitlines() if line.startswith("│")]
    assert len(lines) == len(SHORT.steps)
    said = [line.split("│")[-2].strip() for line in lines]
    assert said == ["right", "left out: there is no variant no_such", "right", "compiles: not interpreted", "right", "right"]
    head, *rows = map(json.loads, (tmp_path / "deep" / "ladder.jsonl").read_text().splitlines())
    assert head["kind"] == "environment"
    assert "timing needs one" in head["note"]
    assert {row["kind"] for row in rows} == {"step"}
    assert [row["name"] for row in rows] == [step.name for step in SHORT.steps]
    assert not any("time_us" in row for row in rows)


def test_with_a_gpu_there_is_a_line_a_step_with_rate_ratio_and_gain(run):
    text = run("--rounds", 2, "--size", 33, 35, 40, gpu=True).output
    assert "33 x 35 x 40 fp32" in text
    assert "needs one" not in text
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert [line[0] for line in lines] == ["1", "2", "3", "4", "5", "6"]
    assert lines[0][3:] == ["0.00924", "2 (2-2)", "-", "right"]
    assert lines[1][3:] == ["-", "-", "-", "left out: there is no variant no_such"]
    assert lines[2][5] == "3 (3-3) over 1"
    assert lines[5][5] == "3 (3-3) over 3"


def test_json_has_every_number(run):
    found = json.loads(run("--json", gpu=True).stdout)
    assert set(found) == {"environment", "note", "results"}
    assert found["environment"]["rounds"] == 5
    last = found["results"][-1]
    assert {"ladder", "number", "name", "variant", "tile", "time_us", "tflops", "ratio_low", "gain", "gain_high", "over"} <= set(
        last
    )
    assert (last["ratio"], last["gain"], last["over"]) == (2.0, 3.0, 3)


OTHERS = [
    ("--suite", "all-16bit"),
    ("--class", "large"),
    ("--host",),
    ("--workers", 2),
    ("--no-aten",),
    ("--limit", 3),
    ("--no-eager",),
]


@pytest.mark.parametrize("words", OTHERS)
def test_what_does_not_go_with_it_is_refused(run, words):
    assert "bench --ladder" in run(*words, code=2).output


def test_types_and_sizes_without_a_ladder_are_refused(run):
    assert "dtype 'fp7' is not known" in run("--dtype", "fp7", code=2).output
    assert "there is no ladder for fp16" in run("--dtype", "fp16", code=2).output
    assert "at least 1" in run("--size", 8, 0, 8, code=2).output


def test_a_wrong_step_is_the_exit_code(run, monkeypatch):
    monkeypatch.setattr(ladder, "check", lambda *args: ("wrong", "3 elements wrong"))
    assert "WRONG: 3 elements wrong" in run(code=1).output


def test_a_dtype_keeps_its_ladder():
    assert [each.dtype for each in ladder.Request(dtype="fp32").ladders] == ["fp32"]
    assert [each.sizes for each in ladder.Request(sizes=(8, 16, 24)).ladders] == [(8, 16, 24)] * 2


def test_every_status_has_words():
    assert set(ladder_results._SAID) == {"ok", "compiled", "unserved", "wrong", "failed"}
