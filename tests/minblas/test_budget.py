"""options(sm_count=N): the choice, the grids and the tables as for a device with N SMs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import minblas
from heuristics import store
from heuristics.archs import ARCHS
from heuristics.table import Environment, HeuristicTable, TableEntry, problem_key
from kernel_zoo import catalog
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas import device, dispatch
from minblas.cache import CACHE
from minblas.errors import SettingsError
from tests.minblas.oracle import close

H200 = ARCHS["h200"]
RESIDENT = TileConfig(128, 256, 64, 8, 1, 8, 3, (("flatten", 0), ("persistent", 1), ("subtile", 1)))
BIG = GemmProblem.of(8192, 8192, 4096, "bf16", "nt")


@pytest.fixture(autouse=True)
def _clean():
    dispatch.forget_plans()
    yield
    dispatch.forget_plans()


def test_fewer_sms_and_their_arithmetic_on_the_same_memory():
    with minblas.options(sm_count=66):
        half = device.budgeted(H200)
    assert (half.name, half.sm_count, half.bandwidth_gbps, half.l2_bytes) == ("h200", 66, H200.bandwidth_gbps, H200.l2_bytes)
    assert half.tflops["bf16"] == pytest.approx(H200.tflops["bf16"] / 2)
    assert half.sources["sm_count"] == "options(sm_count=66), of the device's 132"


def test_without_a_budget_or_with_all_sms_the_device_is_itself():
    assert device.budgeted(H200) is H200
    with minblas.options(sm_count=132):
        assert device.budgeted(H200) is H200


def test_more_sms_than_the_device_has_are_refused_in_words():
    with minblas.options(sm_count=133), pytest.raises(SettingsError, match="sm_count is 133; needed: 1 to 132, the SMs of h200"):
        minblas.explain(512, 512, 512, arch="h200")
    with minblas.options(sm_count=133):
        assert minblas.explain(512, 512, 512, arch="b200").arch.sm_count == 133


@pytest.mark.parametrize(("name", "tile"), [("tma", RESIDENT), ("persistent", TileConfig(128, 128, 64, num_warps=8, num_stages=4))])
def test_resident_programs_keep_to_the_budget(name, tile):
    variant = catalog.get(name)
    whole = variant.plan(BIG, tile, H200).calls[0].grid[0]
    with minblas.options(sm_count=33):
        small = variant.plan(BIG, tile, device.budgeted(H200)).calls[0].grid[0]
    assert whole % 132 == 0
    assert small == whole // 4


def test_a_row_of_the_whole_device_is_a_hint_under_a_budget(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path)
    monkeypatch.setattr(store, "PACKAGED", tmp_path / "none")
    problem, tiled = GemmProblem.of(1024, 1024, 1024, "bf16", "nt"), catalog.get("tiled")
    row = TableEntry(problem_key(problem), "tiled", TileConfig(64, 64, 64, num_stages=4), tiled.digest, 9.0)
    store.save(HeuristicTable("mine", Environment("NVIDIA H200", (9, 0), 132), (row,)))
    dispatch.forget_plans()
    assert dispatch.select(problem, H200).rung == "exact"
    with minblas.options(sm_count=66):
        assert dispatch.select(problem, H200).rung == "borrowed"
        assert dispatch.select(replace(problem, m=1000), H200).rung in {"nearest", "borrowed", "model"}
    assert dispatch.select(problem, H200).rung == "exact"


def test_explain_shows_the_budget():
    with minblas.options(sm_count=66):
        found = minblas.explain(4096, 4096, 4096, arch="h200")
    assert found.arch.sm_count == 66
    assert found.as_dict()["device"]["sm_count"] == 66
    assert "SM budget: chosen as for 66 of the 132 SMs" in str(found)
    assert not any("SM budget" in note for note in minblas.explain(4096, 4096, 4096, arch="h200").notes)


def test_a_budget_has_plans_of_its_own_and_the_same_numbers():
    a, b = torch.randn(48, 32), torch.randn(32, 40)
    whole = minblas.gemm(a, b)
    plans = len(CACHE)
    with minblas.options(sm_count=7):
        close(minblas.gemm(a, b), a, b)
    assert len(CACHE) == plans + 1
    close(whole, a, b)


def test_the_fixed_tile_of_a_batch_invariant_call_keeps_its_order_of_sums():
    problem = replace(GemmProblem.of(64, 6000, 512, "bf16", "nt"), batch_invariant=True)
    whole = dispatch.select(problem, H200)
    with minblas.options(sm_count=16):
        few = dispatch.select(problem, H200)
    tiled = catalog.get("tiled")
    assert whole.variant == few.variant == "tiled"
    assert tiled.reduction(problem, whole.tile) == tiled.reduction(problem, few.tile)
