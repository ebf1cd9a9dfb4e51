"""The tables a choice gets: the user's first, and what the Triton that runs leaves of their rows."""

from __future__ import annotations

import pytest

from heuristics import store
from heuristics.archs import ARCHS
from heuristics.notices import TableWarning, forget
from heuristics.table import Environment, HeuristicTable, TableEntry, problem_key
from kernel_zoo import catalog
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas import dispatch, registry

H200 = ARCHS["h200"]
PROBLEM = GemmProblem.of(1024, 1024, 1024, "bf16", "nt")


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path)
    forget()
    dispatch.forget_plans()
    yield
    forget()
    dispatch.forget_plans()


def save(triton):
    tiled = catalog.get("tiled")
    row = TableEntry(problem_key(PROBLEM), "tiled", TileConfig(64, 64, 64, num_stages=4), tiled.digest, 9.0)
    store.save(HeuristicTable("mine", Environment("NVIDIA H200", (9, 0), 132, triton=triton), (row,)))


def test_a_users_row_of_the_running_triton_comes_before_the_packaged_one(monkeypatch):
    monkeypatch.setattr(registry, "version", lambda distribution: "3.7.1")
    save("3.7.1")
    found = dispatch.select(PROBLEM, H200)
    assert (found.rung, found.variant) == ("exact", "tiled")
    assert found.table.endswith("h200.json")


def test_rows_of_a_triton_that_no_gate_has_seen_are_hints_and_said_once(monkeypatch):
    monkeypatch.setattr(registry, "version", lambda distribution: "99.0.0")
    save("3.7.1")
    with pytest.warns(TableWarning) as said:
        found = dispatch.select(PROBLEM, H200)
    assert found.rung == "borrowed"
    texts = sorted(str(warning.message) for warning in said)
    assert len(texts) == 2  # the user's file, and the packaged one
    assert all("Triton 99.0.0's compile gate has not seen their kernels" in text for text in texts)
    dispatch.forget_plans()
    dispatch.select(PROBLEM, H200)  # a second warning would be an error here


def test_without_a_triton_rows_stand_as_they_were_measured(monkeypatch):
    monkeypatch.setattr(registry, "version", lambda distribution: "")
    save("3.5.0")
    assert dispatch.select(PROBLEM, H200).rung == "exact"
