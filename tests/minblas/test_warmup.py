"""Warming up: which binaries a set of shapes needs, compiled once each; loading is a fake's."""

from __future__ import annotations

import json

import pytest
import torch

import minblas
from kernel_zoo import build, catalog
from kernel_zoo.spec import GemmProblem
from minblas import dispatch, errors, launch, warmup
from minblas.shapes import problem_of
from tests.minblas.user_kernels import TILES, recipe

module = __import__("sys").modules["minblas.warmup"]


@pytest.fixture
def compiled(monkeypatch):
    """Instead of compiling: the list of what would be."""
    seen = []
    monkeypatch.setattr(module.build, "compile_binary", lambda spec, cc: seen.append((spec, cc)))
    return seen


def test_a_range_of_m_is_a_handful_of_binaries(compiled):
    report = warmup([(range(1, 129), 4096, 4096)], layout="nt", workers=0)
    assert report.shapes == 128
    assert report.plans < 40
    assert 1 <= report.binaries < 128
    assert len(compiled) == len(set(compiled)) == report.binaries
    assert {cc for _, cc in compiled} == {90}
    assert report.failures == ()
    assert "128 shapes" in str(report)
    assert "compiled into the disk cache" in str(report)
    assert report.as_dict()["loaded"] == 0


@pytest.mark.parametrize(
    ("n", "k", "dtype", "layout", "first"),
    [(4096, 4096, "bf16", "nt", 1), (256, 16384, "fp16", "nn", 1), (1000, 1003, "bf16", "tn", 500), (512, 1024, "tf32", "nt", 1)],
)
def test_a_range_is_what_choosing_every_m_gives(compiled, n, k, dtype, layout, first):
    report = warmup([(range(first, first + 160), n, k)], dtype=dtype, layout=layout, workers=0)
    device, expected, picks = torch.device("cpu"), {}, []
    for m in range(first, first + 160):
        selection = dispatch.select(problem_of((m, n, k), dtype, layout), device)
        pick = (selection.variant, selection.tile.describe())
        if not picks or picks[-1][1:] != pick:
            picks.append((m, *pick))
        for call in catalog.get(selection.variant).plan(selection.problem, selection.tile, selection.arch).calls:
            expected.setdefault(build.specialise(call), []).append(m)
    assert {spec for spec, _ in compiled} == set(expected)
    assert report.exact
    assert [(pick.serves.first, pick.variant, pick.tile) for pick in report.picks] == picks
    assert [pick.serves.last + 1 for pick in report.picks[:-1]] == [pick.serves.first for pick in report.picks[1:]]
    order = {spec: i for i, spec in enumerate(dict.fromkeys(spec for spec, _ in compiled))}
    for spec, values in expected.items():
        serves = report.needs[order[spec]].serves
        assert sum(each.count for each in serves) == len(values)
        assert (serves[0].first, serves[-1].last) == (values[0], values[-1])
        assert all(any(each.first <= m <= each.last for each in serves) for m in values)


def test_the_report_says_which_m_needs_which_binary(compiled):
    report = warmup([(range(60, 70), 4096, 4096)], layout="nt", workers=0)
    text = str(report)
    for binary in report.needs:
        assert f"{binary.variant} {binary.tile} {binary.kernel}" in text
    assert any("divisible by" in binary.differs or "odd" in binary.differs for binary in report.needs)
    assert len({(binary.kernel, binary.variant, binary.tile, binary.differs) for binary in report.needs}) == report.binaries
    assert json.loads(json.dumps(report.as_dict()))["needs"][0]["serves"][0]["first"] == 60
    assert report.choosing_seconds <= report.seconds


def test_progress_is_shown_where_it_is_wanted(compiled, capsys):
    minblas.warmup([(64, 64, 64)], dtype="fp16", workers=0)
    assert capsys.readouterr().err == ""
    minblas.warmup([(64, 64, 64)], dtype="fp16", workers=0, progress=True)
    assert "compiling: 1/1" in capsys.readouterr().err


def test_a_very_long_range_is_searched_and_the_report_says_so(compiled, monkeypatch):
    monkeypatch.setattr(module, "MOST_EXACT", 64)
    report = warmup([(range(1, 2049), 256, 512)], layout="nt", workers=0)
    assert not report.exact
    assert report.chosen < report.shapes == 2048
    assert f"chosen for {report.chosen:,} of 2,048 shapes" in str(report)
    assert report.as_dict()["exact"] is False


def test_for_the_device_that_the_options_name(compiled):
    with minblas.options(arch="a100"):
        report = warmup([(512, 512, 512)], workers=0)
    assert report.device == "cpu, for a100"
    assert {cc for _, cc in compiled} == {80}


def test_what_is_compiled_is_what_is_launched(compiled):
    problem = GemmProblem.of(512, 640, 768, "fp16", "nt")
    warmup([problem], workers=0)
    selection = dispatch.select(problem, torch.device("cpu"))
    calls = catalog.get(selection.variant).plan(problem, selection.tile, selection.arch).calls
    assert {spec for spec, _ in compiled} == {build.specialise(call) for call in calls}


def test_aten_and_empty_products_need_nothing(compiled):
    report = warmup([(64, 64, 64), (0, 64, 64)], dtype="int8", workers=0)
    assert (report.binaries, report.aten, compiled) == (0, 1, [])


def test_failures_are_reported_not_raised(monkeypatch):
    def compile_binary(spec, cc):
        raise ValueError("ptxas: too many registers")

    monkeypatch.setattr(module.build, "compile_binary", compile_binary)
    report = warmup([(512, 512, 512)], workers=0)
    assert "too many registers" in str(report)
    assert len(report.failures) >= 1


def test_a_recipe_that_fails_is_reported(compiled, monkeypatch):
    def fails_on_odd_sizes(call, tile):
        if call.m % 2:
            raise ZeroDivisionError("odd")
        return recipe(call, tile)

    minblas.register_variant("me.odd", fails_on_odd_sizes, dtypes=["bf16"], layouts=["nn"], candidates=TILES, verify=False)
    try:
        with minblas.options(variant="me.odd"):
            report = warmup([(64, 64, 64), (63, 64, 64)], workers=0)
    finally:
        minblas.unregister("me.odd")
    assert report.binaries == 1
    assert "ZeroDivisionError: odd" in report.failures[0]


def test_a_refusal_is_reported(compiled):
    with minblas.options(variant="gemv"):
        report = warmup([(64, 64, 64)], workers=0)
    assert "one of them at most 4" in report.failures[0]


def test_loading_on_a_gpu(compiled, monkeypatch):
    loaded = []

    def prepare(variant, problem, tile, arch, device):
        loaded.append((variant.name, tile))
        if problem.k == 640:
            raise RuntimeError("no room for the module")

    monkeypatch.setattr(launch, "prepare", prepare)
    arch = minblas.explain(64, 64, 64).arch
    monkeypatch.setattr("minblas.device.arch_of", lambda device: arch)
    report = warmup([(512, 512, 512), (512, 512, 1024), (512, 512, 640)], device="cuda:0", workers=0)
    assert report.device == "cuda:0"
    assert report.loaded >= 1
    assert len(loaded) <= 3
    assert "loaded in" in str(report)
    assert all(binary.loaded and not binary.was_loaded for binary in report.needs)


@pytest.mark.parametrize("shape", [(64, 64), (64, "64", 64), (64, 64, 64.0), 64])
def test_shapes_that_are_none(shape):
    with pytest.raises(errors.ArgumentError, match="a shape is"):
        warmup([shape], workers=0)


def test_in_worker_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shapes = [(64, 64, 64), (65, 65, 65), (1, 512, 512)]
    report = warmup(shapes, dtype="fp16", workers=1)
    assert report.failures == ()
    assert report.binaries >= 3
    assert len(list(tmp_path.rglob("*.cubin"))) == report.binaries
    assert report.cached == 0
    assert all(binary.seconds > 0 and binary.status == "ok" and not binary.loaded for binary in report.needs)
    again = warmup(shapes, dtype="fp16", workers=0)
    assert again.cached == again.binaries == report.binaries
    assert f"({report.binaries} were there)" in str(again)
    assert sum(binary.seconds for binary in again.needs) < sum(binary.seconds for binary in report.needs)
