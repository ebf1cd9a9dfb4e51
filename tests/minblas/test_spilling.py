"""A pick that nobody measured: where the driver says that its binary spills, the next kernel serves, and it is said once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import minblas
from heuristics.table import Environment, HeuristicTable, TableEntry, problem_key
from kernel_zoo import catalog
from minblas import dispatch, errors, launch
from tests.minblas.oracle import close

pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def spilling(monkeypatch):
    """Make picks spill of which `names` (variants) or `picks` (with tiles) tell."""
    state = {"names": set(), "picks": set(), "prepared": []}
    real = launch.prepare

    def prepare(variant, problem, tile, *rest, **keywords):
        made = real(variant, problem, tile, *rest, **keywords)
        state["prepared"].append((variant.name, tile))
        if variant.name in state["names"] or (variant.name, tile) in state["picks"]:
            made.__class__ = type("Spilling", (type(made),), {"spills": 7})
        return made

    monkeypatch.setattr(launch, "prepare", prepare)
    return state


def operands():
    return torch.randn(32, 48), torch.randn(48, 24)


def served():
    return set(minblas.stats().calls)


def test_a_pick_that_spills_gives_way(spilling, caplog):
    a, b = operands()
    first = minblas.explain(a, b)
    spilling["picks"] = {(first.variant, first.tile)}
    with caplog.at_level("WARNING", logger="minblas"):
        close(minblas.gemm(a, b), a, b)
        close(minblas.gemm(a, b, activation="relu"), a, b, activation="relu")
    plan = minblas.plan(a, b)
    assert (plan.variant, plan.tile) == spilling["prepared"][1] == (first.ranked[1].variant, first.ranked[1].tile)
    assert [message for message in caplog.messages if "spills registers" in message] == [
        f"{first.variant} {first.tile.describe()} spills registers on h200 (7 words) and is passed over"
    ]
    assert not minblas.stats().quarantined  # it failed nowhere: it serves where it is forced
    assert minblas.plan(a, b, variant=first.variant, tile=first.tile).tile == first.tile


def test_the_tries_are_bounded_and_the_best_serves_after_all(spilling):
    a, b = operands()
    first = minblas.explain(a, b)
    spilling["names"] = {variant.name for variant in catalog.VARIANTS}
    close(minblas.gemm(a, b), a, b)
    assert served() == {first.variant}
    assert len(spilling["prepared"]) == 3


def test_the_net_does_not_stand_in_for_a_kernel_that_spills(spilling):
    a, b = operands()
    zoo = {variant.name for variant in catalog.VARIANTS} - {"aten"}
    spilling["names"] = zoo
    close(minblas.gemm(a, b), a, b)
    assert "aten" not in served()


def test_batch_invariant_keeps_its_one_kernel(spilling):
    a, b = operands()
    spilling["names"] = {"tiled"}
    close(minblas.gemm(a, b, batch_invariant=True), a, b)
    assert served() == {"tiled"}


def test_a_measured_pick_and_a_users_own_are_left_alone(spilling, monkeypatch):
    a, b = operands()
    chosen = minblas.explain(a, b)
    spilling["picks"] = {(chosen.variant, chosen.tile)}
    row = TableEntry(problem_key(chosen.problem), chosen.variant, chosen.tile, catalog.get(chosen.variant).digest, 1.0)
    measured = HeuristicTable("mine", Environment("h200", (9, 0), 132, triton="3.7.1"), (row,))
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "tables", lambda arch: (measured,))
        assert minblas.plan(a, b).rung == "exact"
        assert minblas.plan(a, b).tile == chosen.tile
    assert minblas.plan(a, b).tile != chosen.tile
    mine = replace(catalog.get(chosen.variant), name="test.mine", origin="user")
    dispatch.register(mine)
    try:
        spilling["names"] = {"test.mine"}
        monkeypatch.setattr(dispatch, "tables", lambda arch: (replace(measured, entries=(replace(row, variant="test.mine"),)),))
        assert minblas.plan(a, b).variant == "test.mine"
    finally:
        minblas.unregister("test.mine")


def test_nothing_is_compiled_to_replace_it_where_compiling_is_not_allowed(spilling, monkeypatch):
    a, b = operands()
    chosen = minblas.explain(a, b)
    spilling["names"] = {chosen.variant}
    ready = lambda variant, problem, tile, *rest: (variant.name, tile) == (chosen.variant, chosen.tile)  # noqa: E731
    monkeypatch.setattr(launch, "is_ready", ready)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: minblas.options())
    with minblas.options(on_cold="raise"):
        close(minblas.gemm(a, b), a, b)
    assert served() == {chosen.variant}
    monkeypatch.setattr(launch, "is_ready", lambda *rest: False)
    with minblas.options(on_cold="raise"), pytest.raises(errors.ColdCallError):
        minblas.gemm(a + 1, b[:, :8])
