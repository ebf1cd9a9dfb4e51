"""Registering: what is declared becomes refusals, names are kept apart, packages' entry points, threads."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import minblas
from heuristics.archs import ARCHS
from kernel_zoo import catalog
from kernel_zoo.spec import Arch, Epilogue, GemmProblem, Operand, Recipe, TileConfig
from minblas import dispatch, errors, register
from tests.minblas.user_kernels import TILES, recipe, recipe_with, torch_launch, tutorial_kernel

H200 = ARCHS["h200"]
SQUARE = GemmProblem.of(64, 64, 64, "fp16")


@pytest.fixture(autouse=True)
def _clean():
    before = {variant.name for variant in dispatch.registry()}
    yield
    for variant in dispatch.registry():
        if variant.name not in before:
            dispatch.unregister(variant.name)


def registered(name="me.tutorial", made=recipe, **changes):
    declared = {"dtypes": ["fp16"], "layouts": ["nn"], "candidates": TILES, "verify": False, **changes}
    return minblas.register_variant(name, made, **declared)


def refusal(variant, problem, arch=H200):
    found = variant.refusal(problem, arch)
    return found.sentence if found else None


def test_a_registered_variant_computes():
    registered()
    a, b = torch.randn(70, 40).half(), torch.randn(40, 50).half()
    got = minblas.gemm(a, b, variant="me.tutorial")
    assert torch.allclose(got.double(), a.double() @ b.double(), atol=2e-2)
    assert minblas.explain(a, b, variant="me.tutorial").variant == "me.tutorial"
    assert minblas.explain(a, b).variant != "me.tutorial"


def test_kernels_are_found_by_calling_the_recipe():
    assert registered().kernels == (tutorial_kernel,)
    assert len(registered("me.second", lambda call, tile: Recipe((recipe(call, tile),) * 2)).kernels) == 1


def test_digest_is_the_kernels_and_opaque_ones_have_their_own():
    def one(a, b, out, **rest):
        out.copy_(a @ b)

    def other(a, b, out, **rest):
        out.copy_(a @ b + 0)

    digests = {registered().digest}
    for name, function in (("me.one", one), ("me.other", other)):
        digests.add(minblas.register_variant(name, launch=function, dtypes=["fp32"], layouts=["nn"]).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (GemmProblem.of(64, 64, 64, "bf16"), "inputs are bf16; needs fp16"),
        (GemmProblem.of(64, 64, 64, "fp16", "nt"), "the layout is nt; needs nn"),
        (GemmProblem.of(64, 64, 64, "fp16", batch=3), "the batch is 3"),
        (GemmProblem.of(64, 64, 0, "fp16"), "k is 0"),
        (GemmProblem.of(64, 64, 64, "fp16", out_dtype="fp32"), "out is fp32 and inputs are fp16; needs fp16 output"),
        (GemmProblem.of(2**16, 2**16, 64, "fp16"), "past 2^31 - 1"),
        (GemmProblem.of(64, 64, 64, "fp16", epilogue=Epilogue(alpha="x")), "alpha other than 1"),
        (GemmProblem.of(64, 64, 64, "fp16", epilogue=Epilogue(activation="gelu")), "the epilogue has gelu"),
        (replace(SQUARE, out=Operand.dense("fp16", 64, 64, transposed=True)), "out has strides (1, 64)"),
        (replace(SQUARE, b=Operand.dense("bf16", 64, 64)), "a is fp16 and b is bf16"),
    ],
)
def test_refusals_follow_from_the_declarations(problem, words):
    variant = registered()
    assert refusal(variant, SQUARE) is None
    assert words in refusal(variant, problem)


def test_what_is_declared_is_taken():
    wide = registered(dtypes=[torch.bfloat16, "float16"], layouts=["nn", "nt"], epilogue="full", batch=True, wide=True)
    c = Operand.dense("bf16", 64, 64, batch=3)
    problem = GemmProblem.of(64, 64, 64, "bf16", "nt", batch=3, epilogue=Epilogue("x", "x", c, None, "relu"))
    assert refusal(wide, problem) is None
    assert refusal(wide, GemmProblem.of(2**16, 2**16, 64, "fp16")) is None
    scaled = registered("me.scaled", epilogue="alpha_beta")
    c = Operand.dense("fp16", 64, 64)
    assert refusal(scaled, GemmProblem.of(64, 64, 64, "fp16", epilogue=Epilogue("x", "x", c))) is None
    assert "bias" in refusal(scaled, GemmProblem.of(64, 64, 64, "fp16", epilogue=Epilogue(bias=c)))


def test_fp32_means_exact_products_unless_tf32_is_declared():
    exact, rounded = registered(dtypes=["fp32"]), registered("me.tf32", dtypes=["tf32"])
    ieee, tf32 = (GemmProblem.of(64, 64, 64, "fp32", precision=name) for name in ("ieee", "tf32"))
    assert refusal(exact, ieee) is None
    assert refusal(exact, tf32) == "precision is 'tf32'; needs ieee"
    assert refusal(rounded, tf32) is None
    assert refusal(rounded, ieee) == "precision is 'ieee'; needs tf32"


def test_alignment_and_capability():
    variant = registered(alignment=16, capability="sm_90")
    assert "a's lines start at multiples of 2 bytes" in refusal(variant, GemmProblem.of(64, 64, 65, "fp16"))
    assert refusal(variant, SQUARE, ARCHS["a100"]) == "a100 has compute capability 8.0; needs 9.0 or newer"


def test_only_declared_tiles_fit():
    variant = registered()
    problem = GemmProblem.of(64, 64, 64, "fp16")
    assert variant.refusal(problem, H200, TILES[0]) is None
    assert "one of the declared candidates" in variant.refusal(problem, H200, TileConfig(16, 16, 16)).sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "tutorial"}, "words with a dot between"),
        ({"name": "me."}, "words with a dot between"),
        ({"name": "a b"}, "for example 'me.tutorial'"),
        ({"name": 3}, "a variant's name is 3"),
        ({"candidates": [(64, 64, 32)]}, "a candidate is (64, 64, 32); needed: a minblas.TileConfig"),
        ({"dtypes": ["fp17"]}, "fp17"),
        ({"dtypes": "fp16"}, "a list of types"),
        ({"dtypes": []}, "a list of types"),
        ({"layouts": ["nx"]}, "layouts is"),
        ({"layouts": "nn"}, "layouts is"),
        ({"epilogue": "alpha"}, "did you mean 'alpha_beta'"),
        ({"candidates": []}, "at least one TileConfig"),
        ({"alignment": 3}, "1, 2, 4, 8 or 16"),
        ({"capability": "hopper"}, "sm_90"),
        ({"made": None}, "neither a recipe nor a launch"),
        ({"launch": torch_launch}, "both a recipe and a launch"),
        ({"made": lambda call, tile: 1 / 0}, "the recipe failed on 64 x 64 x 64 fp16 nn"),
        ({"made": lambda call, tile: None}, "the recipe returned NoneType"),
    ],
)
def test_declarations_that_cannot_be_used(changes, words):
    with pytest.raises(errors.ArgumentError) as caught:
        registered(**changes)
    assert words in str(caught.value)
    assert all(variant.origin == "zoo" for variant in dispatch.registry())


def test_a_name_is_taken_once_and_both_origins_are_named():
    registered()
    with pytest.raises(errors.ArgumentError) as caught:
        registered(made=lambda call, tile: recipe(call, tile))
    assert "user_kernels.py" in str(caught.value)
    assert "test_register.py" in str(caught.value)
    assert "unregister('me.tutorial')" in str(caught.value)
    minblas.unregister("me.tutorial")
    registered()


@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_opaque_launch_gets_matrices(batch):
    seen = []

    def launch(a, b, out, *, alpha, beta, c, bias):
        seen.append((a.shape, b.shape, out.shape, alpha, beta, None if c is None else c.shape, bias))
        torch_launch(a, b, out, alpha=alpha, beta=beta, c=c, bias=bias)

    declared = {"dtypes": ["fp32"], "layouts": ["nn"], "epilogue": "alpha_beta", "batch": True, "interpretable": True}
    minblas.register_variant("me.opaque", launch=launch, verify=False, **declared)
    a, b, c = torch.randn(*batch, 5, 7), torch.randn(*batch, 7, 6), torch.randn(6)
    got = minblas.gemm(a, b, alpha=2.0, beta=3.0, c=c, variant="me.opaque")
    assert torch.allclose(got, 2 * (a @ b) + 3 * c, atol=1e-5)
    assert seen == [((*batch, 5, 7), (*batch, 7, 6), (*batch, 5, 6), 2.0, 3.0, (*batch, 5, 6), None)]


def test_a_wrong_kernel_is_found_when_it_is_registered():
    with warnings.catch_warnings(record=True) as caught:  # pytest.warns would raise numpy's own, which triton 3.6 provokes
        warnings.simplefilter("always")
        registered(made=recipe_with("no mask at the store"), verify=True)
    assert any("guard bytes overwritten" in str(warning.message) for warning in caught)
    with pytest.raises(errors.VariantError, match="quarantined"):
        minblas.gemm(torch.zeros(8, 8).half(), torch.zeros(8, 8).half(), variant="me.tutorial")


def test_registering_beside_running_products():
    stop, failures = threading.Event(), []
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    expected = minblas.gemm(a, b)

    def multiply():
        while not stop.is_set():
            try:
                assert torch.equal(minblas.gemm(a, b), expected)
            except Exception as error:
                failures.append(error)
                return

    def add(index):
        try:
            for turn in range(5):
                registered(f"me.v{index}_{turn}")
                dispatch.unregister(f"me.v{index}_{turn}")
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=multiply), *(threading.Thread(target=add, args=(i,)) for i in range(4))]
    for worker in workers:
        worker.start()
    for worker in workers[1:]:
        worker.join()
    stop.set()
    workers[0].join()
    assert failures == []
    assert dispatch.registry() == catalog.VARIANTS


class TestEntryPoints:
    @staticmethod
    def offer(monkeypatch, **loads):
        points = [SimpleNamespace(name=name, value=f"{name}:thing", dist=None, load=load) for name, load in loads.items()]
        monkeypatch.setattr(register.metadata, "entry_points", lambda group: points if group == "minblas.variants" else [])
        monkeypatch.setattr(register, "_loaded", False)

    @staticmethod
    def variant(name, arch: Arch = H200):
        made = registered("me.template")
        dispatch.unregister("me.template")
        return replace(made, name=name, origin="zoo")

    def test_variants_lists_and_callables(self, monkeypatch):
        single, pair = self.variant("pkg.single"), [self.variant("pkg.a"), self.variant("pkg.b")]
        self.offer(monkeypatch, single=lambda: single, pair=lambda: pair, call=lambda: lambda: registered("pkg.called"))
        register.load_entry_points()
        names = [variant.name for variant in dispatch.registry() if variant.origin == "user"]
        assert names == ["pkg.single", "pkg.a", "pkg.b", "pkg.called"]

    def test_a_broken_one_is_said_once_and_skipped(self, monkeypatch):
        good = self.variant("pkg.good")

        def broken():
            raise ImportError("no module named cute")

        self.offer(monkeypatch, broken=broken, nothing=lambda: [3], good=lambda: good)
        with pytest.warns(RuntimeWarning) as caught:
            register.load_entry_points()
        assert len(caught) == 2
        assert "broken = broken:thing" in str(caught[0].message)
        assert "no module named cute" in str(caught[0].message)
        register.load_entry_points()
        assert "pkg.good" in {variant.name for variant in dispatch.registry()}
