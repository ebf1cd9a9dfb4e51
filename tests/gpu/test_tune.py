"""Tuning on a GPU: in a process of its own, past a candidate that spoils the device, and on first use without a trace."""

import pytest
import torch

import minblas
from heuristics import store
from heuristics.table import problem_key
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas import dispatch, first_use
from minblas.tune import tune
from tests.gpu.faulty_kernels import wild_recipe
from tests.gpu.support import DEVICE

SHAPES = [(512, 512, 512), (16, 1024, 1024)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Tables and journals of this test only."""
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path / "user" / "tables")
    monkeypatch.setattr(store, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(first_use, "FIRST_USE", first_use.FirstUse())
    dispatch.forget_plans()
    minblas.stats(reset=True)
    yield {"resume": tmp_path / "journal.jsonl", "table": tmp_path / "table.json", "progress": False}
    dispatch.QUARANTINE.forgive()
    dispatch.forget_plans()


def test_in_a_process_of_its_own(files):
    report = tune(SHAPES, top_k=4, **files)
    assert (report.tuned, report.faults, report.notes) == (2, [], []), str(report)
    failed = [trial["message"] for row in report.rows for trial in row["trials"] if trial["status"] != "ok"]
    assert all("spills" in message for message in failed), failed  # which tiles spill depends on the Triton version
    for shape in SHAPES:
        entry = store.load(files["table"]).lookup(problem_key(GemmProblem.of(*shape)))
        assert 0 < entry.low_us <= entry.time_us <= entry.high_us
        assert entry.torch_us > 0


def test_a_candidate_that_spoils_the_device_costs_itself(files):
    minblas.register_variant(
        "me.wild", wild_recipe, dtypes=["bf16"], layouts=["nn"], candidates=[TileConfig(64, 64, 32)], verify=False
    )
    try:
        report = tune(SHAPES[:1], variants=["me.wild", "tiled"], top_k=3, **files)
    finally:
        minblas.unregister("me.wild")
    assert report.tuned == 1, str(report)
    assert len(report.faults) == 1
    assert "me.wild" in report.faults[0]
    assert torch.ones(8, device=DEVICE).sum() == 8  # this process still has its GPU


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_gpus_share_the_shapes(files):
    report = tune([*SHAPES, (256, 256, 2048), (1024, 1024, 256)], top_k=3, devices="all", **files)
    assert report.tuned == 4, str(report)


def test_on_first_use(files):
    a, b = (torch.randn(640, 640, device=DEVICE).bfloat16() for _ in range(2))
    torch.manual_seed(3)
    expected = torch.randn(4, device=DEVICE)
    torch.manual_seed(3)
    with minblas.options(tune="first_use", tune_budget=60.0):
        result = minblas.gemm(a, b)
        minblas.gemm(a, b)
    assert torch.equal(torch.randn(4, device=DEVICE), expected)
    torch.testing.assert_close(result, (a.double() @ b.double()).bfloat16(), rtol=2**-6, atol=2**-6)
    stats = minblas.stats()
    assert (stats.tunes, stats.warm_calls) == (1, 1), str(stats)
    assert 0 < stats.tune_seconds < 70
    selection = dispatch.select(GemmProblem.of(640, 640, 640), DEVICE)
    assert selection.rung == "exact"


def test_never_in_a_capture(files):
    a, b = (torch.randn(384, 384, device=DEVICE).bfloat16() for _ in range(2))
    minblas.gemm(a, b)  # loaded, so that the capture can launch it
    out, graph = torch.empty_like(a), torch.cuda.CUDAGraph()
    with minblas.options(tune="first_use", tune_budget=60.0), torch.cuda.graph(graph):
        minblas.gemm(a, b, out=out)
    graph.replay()
    assert minblas.stats().tunes == 0
    torch.testing.assert_close(out, (a.double() @ b.double()).bfloat16(), rtol=2**-6, atol=2**-6)
