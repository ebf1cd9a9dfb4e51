"""Checking: right kernels pass, each kind of wrong one is found, quarantined, and let out again when it is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import minblas
from heuristics.archs import ARCHS
from kernel_zoo import catalog
from kernel_zoo.spec import GemmProblem, KernelCall
from minblas import check_cases, dispatch, errors, launch, quarantine
from tests.minblas.user_kernels import TILES, recipe, recipe_with, torch_launch

H200 = ARCHS["h200"]


@pytest.fixture(autouse=True)
def _clean():
    yield
    for variant in dispatch.registry():
        if variant.origin == "user":
            dispatch.unregister(variant.name)


def register(made=recipe, name="me.kernel", **changes):
    declared = {"dtypes": ["fp16", "bf16"], "layouts": ["nn", "nt"], "candidates": TILES, "verify": False, **changes}
    return minblas.register_variant(name, made, **declared)


def test_a_right_kernel():
    register()
    report = minblas.check("me.kernel")
    assert (report.wrong, report.skipped, report.quarantined) == (0, 0, False)
    assert report.ok
    assert report.right >= 25
    assert set(report.refusals) == {"layout", "epilogue", "batch", "empty"}
    assert "0 wrong" in str(report)
    assert "CPU, through the interpreter" in str(report)
    assert report.as_dict()["right"] == report.right


@pytest.mark.parametrize("fault", ["no mask along K", "off by a little", "last row left out", "no mask at the store"])
def test_each_fault_is_found_by_the_quick_check(fault):
    register(recipe_with(fault))
    report = minblas.check("me.kernel", quick=True)
    assert report.wrong > 0
    assert report.quarantined
    assert "quarantined" in str(report)
    assert report.failures[0].split(":")[1].strip()  # which problem


def test_what_is_found_is_said_in_words():
    register(recipe_with("last row left out"))
    (first, *_) = minblas.check("me.kernel", quick=True).failures
    assert "elements wrong, first at (0, " in first
    assert "elements never written" in first
    assert "tile 32x32x32" in first


def test_a_quarantined_variant_serves_nowhere():
    register(recipe_with("off by a little"))
    minblas.check("me.kernel", quick=True)
    a = torch.randn(32, 32).half()
    with pytest.raises(errors.VariantError, match="quarantined"):
        minblas.gemm(a, a, variant="me.kernel")
    refused = {candidate.variant: candidate.refusal for candidate in minblas.explain(a, a).refused}
    assert refused["me.kernel"].rule == "quarantine"
    with pytest.raises(errors.ArgumentError, match="quarantined"):
        minblas.tune([(32, 32, 32)], dtype="fp16", variants=["me.kernel"], verify_only=True, progress=False)


def test_quarantine_ends_when_a_full_check_passes():
    variant = register()
    quarantine.suspend(variant, "for a test")
    assert quarantine.reason("me.kernel") == "for a test"
    minblas.check("me.kernel", quick=True)
    assert quarantine.reason("me.kernel")
    assert minblas.check("me.kernel").ok
    assert quarantine.reason("me.kernel") == ""
    assert dispatch.get("me.kernel") == variant


def test_a_corrected_kernel_is_registered_anew():
    register(recipe_with("off by a little"))
    minblas.check("me.kernel", quick=True)
    minblas.unregister("me.kernel")
    register()
    assert minblas.check("me.kernel", quick=True).ok
    assert quarantine.reason("me.kernel") == ""


def test_a_kernel_that_raises_is_wrong_not_fatal():
    def launch_badly(a, b, out, **rest):
        raise OSError("no such kernel")

    minblas.register_variant("me.bad", launch=launch_badly, dtypes=["fp32"], layouts=["nn"], interpretable=True, verify=False)
    report = minblas.check("me.bad", quick=True)
    assert report.right == 0
    assert "OSError: no such kernel" in report.failures[0]


def test_an_opaque_kernel():
    minblas.register_variant(
        "me.opaque", launch=torch_launch, dtypes=["fp32", "fp16"], layouts=["nn", "tn"], epilogue="alpha_beta", batch=True,
        interpretable=True, verify=False,
    )  # fmt: skip
    report = minblas.check("me.opaque")
    assert (report.wrong, report.right > 35) == (0, True), str(report)


def test_what_cannot_run_here_is_refused():
    register(interpretable=False)
    report = minblas.check("me.kernel")
    assert (report.right, report.wrong) == (0, 0)
    assert "nothing was checked" in str(report)
    assert "a GPU" in report.examples["device"]


def test_an_unknown_name():
    register()
    with pytest.raises(errors.UnknownVariantError, match=r"did you mean 'me\.kernel'"):
        minblas.check("me.kernal")


def test_a_broken_zoo_variant_is_said_and_stays_listed():
    def scribble(call, tile):
        made = tiled.recipe(call, tile)
        return replace(made, grid=(1,)) if isinstance(made, KernelCall) else made

    tiled = catalog.get("tiled")
    broken = replace(tiled, recipe=scribble)
    report = minblas.check(broken, quick=True)
    assert report.wrong > 0
    assert "tiled" in {variant.name for variant in dispatch.registry()}


@pytest.mark.parametrize("variant", catalog.VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_has_cases_it_takes(variant):
    todo = check_cases.cases(variant, H200)
    taken = [case for case in todo if _served(variant, case.problem)]
    assert len(todo) < 250
    assert len(taken) >= len(todo) / 3
    assert {case.fill for case in taken} >= {"normal", "special", "integers"}
    if variant.name != "gemv":
        wide = variant.refusal(GemmProblem.of(64, 64, 64, "fp32", "nt", precision="tf32"), H200)
        assert {case.problem.dtype for case in taken} >= {"fp16", "bf16"} | (set() if wide else {"fp32"})


def _served(variant, problem):
    if variant.refusal(problem, H200) is not None:
        return False
    return variant.recipe is None or any(variant.refusal(problem, H200, tile) is None for tile in variant.space(problem, H200))


def test_a_stand_in_is_never_taken_for_the_variant(monkeypatch):
    variant = register()
    real = launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda variant, *rest, **more: real(catalog.get("aten"), rest[0], None, *rest[2:]))
    report = minblas.check(variant.name, quick=True)
    assert (report.right, report.wrong) == (0, 0)
    assert report.refusals["device"] > 0
