"""The compile gate: what it lets pass, what it stops and what it says."""

from dataclasses import replace

import pytest

from kernel_zoo import catalog, compile_pool, gate
from kernel_zoo.compile_pool import Answer
from kernel_zoo.gate import GateRow
from kernel_zoo.spec import GemmProblem, KernelCall, Operand, Resources, TileConfig, Variant
from kernel_zoo.triton_compat import tl, triton
from tests.kernel_zoo.cases import H200

TILED, TMA, GEMV, SPLIT_K = (catalog.get(name) for name in ("tiled", "tma", "gemv", "split_k"))
SQUARE = GemmProblem.of(256, 256, 256)
TILE = TileConfig(64, 64, 64)
A100 = replace(H200, name="a100", capability=(8, 0), smem_per_block=166912)


@triton.jit
def broken_kernel(X, N: tl.constexpr):
    tl.static_assert(N == 0, "never")


def user_variant(kernel, constants):
    def recipe(call, tile):
        return KernelCall(kernel, (1,), (call.out,), constants)

    return Variant("me.user", "", lambda p, a: None, lambda p, a: [TILE], recipe=recipe, kernels=(kernel,))


def test_rows_of_every_family_pass_and_come_back_in_order():
    rows = [
        GateRow(TILED, SQUARE, TILE, H200),
        GateRow(TMA, SQUARE, TILE, H200),
        GateRow(GEMV, GemmProblem.of(1, 4096, 4096), TileConfig(1, 256, 16, 1, 1, 4, 1), H200),
        GateRow(SPLIT_K, GemmProblem.of(64, 64, 4096), replace(TILE, split_k=8, knobs=(("tma", 1),)), H200),
        GateRow(TILED, SQUARE, TILE, A100),
    ]
    results = gate.gate(rows, workers=2)
    assert [result.row for result in results] == rows
    assert [result.faults for result in results] == [()] * len(rows)
    kinds = [{kind for item in result.resources for kind in item.instructions} for result in results]
    assert {"wgmma", "cp.async"} <= kinds[0]
    assert {"wgmma", "tma"} <= kinds[1]
    assert "ffma" in kinds[2]
    assert {"wgmma", "tma"} <= kinds[3]
    assert len(results[3].resources) == 2
    assert {"mma", "cp.async"} <= kinds[4]


def test_a_refused_row_fails_with_the_refusal_and_compiles_nothing(monkeypatch):
    monkeypatch.setattr(compile_pool, "compile_here", lambda *job: pytest.fail("compiled"))
    (result,) = gate.gate([GateRow(TMA, GemmProblem.of(255, 255, 255), TILE, H200, "table.json")])
    assert not result.ok
    assert result.faults[0].startswith("refused: a's lines start at multiples of 2 bytes")
    assert result.row.describe() == f"table.json: tma {TILE.describe()} for 255 x 255 x 255 bf16 nn on h200"


def test_equal_binaries_are_compiled_once(monkeypatch):
    compiled = []
    kinds = Resources(1, 1, 0, ("wgmma", "mma", "cp.async"))
    monkeypatch.setattr(compile_pool, "compile_here", lambda *job: compiled.append(job) or Answer("ok", resources=kinds))
    rows = [GateRow(TILED, GemmProblem.of(m, 256, 256), TILE, arch) for m in (256, 512, 1024) for arch in (H200, A100)]
    assert all(result.ok for result in gate.gate(rows, workers=0))
    assert sorted(cc for _, cc in compiled) == [80, 90]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Resources(1, 1, 7, ("wgmma", "cp.async")), "7 local-memory accesses; must be 0"),
        (Resources(300_000, 1, 0, ("wgmma", "cp.async")), "300,000 bytes of shared memory; h200 has 232,448 per block"),
        (Resources(1, 1, 0, ("mma", "cp.async")), "no wgmma, which tiled counts on for this tile"),
        (Resources(1, 1, 0, ("wgmma",)), "no asynchronous copies although every operand is aligned"),
    ],
)
def test_each_fault_is_named(monkeypatch, found, message):
    monkeypatch.setattr(compile_pool, "compile_here", lambda *job: Answer("ok", resources=found))
    (result,) = gate.gate([GateRow(TILED, SQUARE, TILE, H200)], workers=1)
    assert result.faults == (message,)


def test_each_fault_of_other_families_is_named(monkeypatch):
    monkeypatch.setattr(compile_pool, "compile_here", lambda *job: Answer("ok", resources=Resources(1, 1, 0, ())))
    rows = [
        GateRow(TMA, SQUARE, replace(TILE, num_warps=2), H200),
        GateRow(GEMV, GemmProblem.of(1, 4096, 4096), TileConfig(1, 256, 16, 1, 1, 4, 1), H200),
        GateRow(TILED, GemmProblem.of(256, 256, 0), TILE, H200),
    ]
    faults = [result.faults for result in gate.gate(rows, workers=0)]
    assert faults[0] == ("no tensor-core instructions", "no TMA copies although operands are given as descriptors")
    assert faults[1] == ("no fp32 multiply-adds",)
    assert faults[2] == ()


@pytest.mark.parametrize(
    ("a", "b", "aligned"),
    [
        ((64, 1), (64, 1), True),
        ((72, 1), (1, 80), True),
        ((65, 1), (64, 1), False),
        ((64, 1), (1, 65), False),
        ((1, 64), (64, 1), True),
    ],
)
def test_asynchronous_copies_are_asked_for_where_operands_are_aligned(a, b, aligned):
    problem = GemmProblem(
        1, 64, 64, 64, Operand("bf16", 64, 64, (0, *a)), Operand("bf16", 64, 64, (0, *b)), Operand.dense("bf16", 64, 64)
    )
    assert gate._vectorised(problem) == aligned


def test_a_ragged_side_along_the_lines_needs_no_asynchronous_copies():
    ragged = GemmProblem(
        1, 61, 64, 64, Operand("bf16", 61, 64, (0, 1, 64)), Operand.dense("bf16", 64, 64), Operand.dense("bf16", 61, 64)
    )
    assert not gate._vectorised(ragged)


def test_a_kernel_that_does_not_compile_fails_with_the_compilers_words():
    variant = user_variant(broken_kernel, {"N": 3})
    (result,) = gate.gate([GateRow(variant, SQUARE, TILE, H200)])
    assert len(result.faults) == 1
    assert result.faults[0].startswith("does not compile: ")
    assert "never" in result.faults[0]


def test_the_script_gates_a_tables_rows(tmp_path, capsys):
    from heuristics import store
    from heuristics.table import Environment, HeuristicTable, TableEntry, problem_key
    from tests.gate.run_gate import main

    def entry(variant, problem, tile):
        return TableEntry(problem_key(problem), variant.name, tile, variant.digest, 10.0)

    rows = (entry(TILED, SQUARE, TILE), entry(catalog.get("aten"), GemmProblem.of(8, 8, 8), None))
    environment = Environment("NVIDIA H200", (9, 0), 132, triton="3.7.1")
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    store.save(HeuristicTable("good", environment, rows), good)
    store.save(HeuristicTable("bad", environment, (entry(TMA, GemmProblem.of(255, 255, 255), TILE),)), bad)
    assert main([str(good), "--workers", "1"]) == 0
    assert "gate: 1 of 1 rows pass in 1 tables, triton " in capsys.readouterr().out
    assert main([str(good), str(bad), "--workers", "1"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("bad.json: tma")
    assert "refused: a's lines start at multiples of 2 bytes" in out[0]
    assert out[1].startswith("gate: 1 of 2 rows pass in 2 tables")
