"""What a selection says of itself."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from heuristics.archs import get_arch
from heuristics.choose import Policy, choose
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import H200, PROBLEM, SMALL, ZOO, entry, runner_up, table, variant

SPLIT_PROBLEM = GemmProblem.of(256, 256, 16384, "bf16", "nt")
HEADS = [
    "problem",
    "device",
    "pick",
    "rung",
    "why",
    "work",
    "roof",
    "estimate",
    "waves",
    "occupancy",
    "workspace",
    "batch-invariant",
]


def test_the_lists_follow_the_facts():
    text = str(choose(SPLIT_PROBLEM, H200, VARIANTS))
    listed = text.split("best by the model:\n")[1].split("\nrefused:\n")
    assert len(listed[0].splitlines()) == 5
    assert "  gemv: m is 256 and n is 256; needs one of them at most 4" in listed[1].splitlines()
    assert '  aten: aten is the net; needs a call that nothing else can serve, or prefer="fastest"' in listed[1].splitlines()


def test_the_facts_are_right():
    lines = dict(line.split(": ", 1) for line in choose(SPLIT_PROBLEM, H200, VARIANTS).lines())
    assert lines["problem"] == "256 x 256 x 16384 bf16 nt, lines of A/B/out aligned to 16/16/16 bytes, class split-K"
    assert lines["device"] == "h200, compute capability 9.0, 132 SMs, 989.4 TFLOP/s for this dtype, 4.8 TB/s"
    # 2 * 256 * 256 * 16384 flops; A, B and out once: 2 * 256 * 16384 * 2 + 256 * 256 * 2 bytes; 989.4e12 / 4.8e12 is the ridge.
    work = "2.147e+09 flops, 1.691e+07 bytes at least (16.9 MB), 127.0 flops a byte, below the ridge at 206"
    assert lines["work"] == work
    assert lines["roof"] == "3.52 us, bound by memory"
    assert "roof: 138.91 us, bound by compute" in choose(GemmProblem.of(4096, 4096, 4096), H200, VARIANTS).lines()


def test_workspace_waves_and_tile_use():
    pick = choose(SPLIT_PROBLEM, H200, VARIANTS)
    assert pick.workspace_bytes == pick.tile.split_k * 256 * 256 * 4
    ragged = choose(GemmProblem.of(96, 128, 64, "bf16", "nn"), H200, ZOO, policy=Policy(variant="tiled", tile=SMALL))
    assert ragged.tile_use == pytest.approx(96 / 128)
    assert ragged.waves == pytest.approx(4 / (132 * 4))  # four tiles; 49 kB of shared memory each lets four programs share an SM


def test_tile_use_knows_a_swapped_tile_and_a_gemv():
    problem = GemmProblem.of(16, 4096, 4096, "bf16", "nt")
    swapped = choose(problem, H200, VARIANTS)
    assert swapped.tile.knob("swap")
    assert swapped.tile_use == 1.0
    thin = choose(GemmProblem.of(3, 4096, 4096, "bf16", "nt"), H200, VARIANTS, policy=Policy(variant="gemv"))
    assert thin.tile_use == 1.0


def test_notes_and_promises_are_shown():
    wild = variant("wild", deterministic=False)
    row = table(entry(name="wild", runner_ups=(runner_up("tiled", SMALL),)))
    unpromised = choose(PROBLEM, H200, (wild, *ZOO), (row,))
    assert "repeats bit for bit: not promised: wild is not declared" in str(unpromised)
    assert "batch-invariant: no" in str(unpromised)
    assert "measured 10.0 us" in str(unpromised)
    promised = choose(replace(PROBLEM, deterministic=True), H200, (wild, *ZOO), (row,))
    assert "note: the winner of the row in mine, wild, may not serve: wild may differ" in str(promised)
    assert "batch-invariant: yes" in str(choose(replace(PROBLEM, batch_invariant=True), H200, ZOO))


def test_the_pick_is_not_among_the_refused():
    found = choose(GemmProblem.of(64, 64, 64, "fp64"), H200, VARIANTS)
    assert found.variant == "aten"
    assert "aten" not in {item.variant for item in found.refused}
    assert {"tiled", "tma"} <= {item.variant for item in found.refused}


@pytest.mark.parametrize("size", [(256, 256, 16384), (3, 5, 7), (0, 4, 4), (4, 4, 0), (1, 4096, 4096)])
@pytest.mark.parametrize("dtype", ["bf16", "fp64"])
def test_everything_is_json(size, dtype):
    found = choose(GemmProblem.of(*size, dtype), H200, VARIANTS)
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["variant"] == found.variant
    assert data["problem"]["m"] == size[0]
    assert data["estimate_us"] == found.estimate.time_us
    assert len(data["ranked"]) <= 5
    assert all(item["refusal"] for item in data["refused"])
    assert str(found)


def test_rich_prints_the_same_facts():
    from rich.console import Console

    out = io.StringIO()
    found = choose(SPLIT_PROBLEM, H200, VARIANTS)
    Console(file=out, width=160).print(found)
    text = out.getvalue()
    assert all(head in text for head in HEADS)
    assert found.tile.describe() in text
    assert "one of them at most 4" in text


def test_ranking_is_only_worked_out_when_asked_for():
    scored = []
    watched = variant("tiled")
    space = watched.space
    watched = replace(watched, space=lambda problem, arch: scored.append(1) or space(problem, arch))
    watched.__dict__["digest"] = "d-tiled"
    found = choose(PROBLEM, H200, (watched,), (table(entry()),))
    assert scored == []
    assert found.ranked
    assert scored == [1]


@pytest.mark.parametrize("name", ["a100", "l4", "rtx4090", "b200", "rtx5090", "h100-pcie"])
def test_every_device_is_answered_without_the_net(name):
    for size in ((4096, 4096, 4096), (16, 4096, 4096), (256, 256, 16384), (1, 4096, 4096), (333, 77, 55)):
        assert choose(GemmProblem.of(*size, "bf16", "nt"), get_arch(name), VARIANTS).variant != "aten"


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_choosing_explaining_and_tables_import_neither_torch_nor_triton():
    code = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
from heuristics import archs, choose, compare, cost, explanation, model, rendering, schema, selection, store, suites, table
from kernel_zoo.spec import GemmProblem, Recipe, TileConfig, Variant
tiled = Variant("tiled", "", lambda p, a: None, lambda p, a: [TileConfig(64, 64, 64)], recipe=lambda c, t: Recipe(()))
found = choose.choose(GemmProblem.of(64, 64, 64), archs.get_arch("h200"), [tiled])
str(found), found.as_dict(), suites.problems("all"), store.packaged_tables(archs.get_arch("h200"))
print(found.variant)
"""
    assert _python(code).strip() == "tiled"


def test_the_call_path_imports_no_pydantic_and_no_rich():
    code = """
import sys
from heuristics import archs, choose, table
print([name for name in ("pydantic", "rich", "torch", "triton", "filelock", "platformdirs") if name in sys.modules])
"""
    assert _python(code).strip() == "[]"
