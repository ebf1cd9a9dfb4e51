"""Programmatic dependent launches: which launches are, where their kernels wait, that the interpreter takes them for plain ones."""

import math
import re
from dataclasses import replace

import pytest
import torch

from kernel_zoo import build, catalog, interpret
from kernel_zoo.kernels import _args
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import GemmProblem
from kernel_zoo.triton_compat import is_gluon
from tests.kernel_zoo.cases import H200, takes
from tests.kernel_zoo.dependence import assert_follows_the_launch_before

COMPILED = [variant for variant in catalog.VARIANTS if variant.recipe is not None]
each_variant = pytest.mark.parametrize("variant", COMPILED, ids=lambda variant: variant.name)
PLAIN = ("tiled", "persistent")
SHAPES = (
    (1, 512, 1024),
    (1, 65536, 4096),
    (16, 512, 2048),
    (96, 128, 2048),
    (256, 256, 256),
    (256, 256, 65536),
    (4096, 4096, 4096),
)


def problems(variant, arch):
    """Problems of different kinds that a variant takes."""
    found = [takes(variant, m, n, k, "bf16", layout, arch=arch) for m, n, k in SHAPES for layout in ("nn", "nt")]
    return [problem for problem in found if problem is not None]


def plans(variant, arch):
    """(problem, launches) of every tile that is tried for some problem."""
    for problem in problems(variant, arch):
        for tile in variant.space(problem, arch):
            if variant.refusal(problem, arch, tile) is None:
                yield problem, variant.plan(problem, tile, arch).calls


def launches(variant, arch):
    """Every launch of those."""
    return (call for _, calls in plans(variant, arch) for call in calls)


@each_variant
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_a_launch_and_its_kernel_agree(variant, capability):
    """The kernel of a dependent launch has to wait; one that waits in another launch waits for nothing, and costs a binary."""
    arch = replace(H200, capability=capability)
    calls = list(launches(variant, arch))
    assert calls or capability != (9, 0)
    assert all(call.dependent is call.constants.get("DEPENDENT", False) for call in calls)
    assert capability >= (9, 0) or not any(call.dependent for call in calls)


@pytest.mark.parametrize(
    "variant", [variant for variant in COMPILED if variant.name not in PLAIN], ids=lambda variant: variant.name
)
def test_from_hopper_on_short_products_start_early_and_long_ones_do_not(variant):
    starts = {}
    for problem, (first, *_) in plans(variant, H200):
        roof_us = max(problem.flops / 989e6, problem.least_bytes / 4.8e6)
        starts.setdefault("short" if roof_us < 1.5 else "long" if roof_us > 15 else "between", set()).add(first.dependent)
    assert starts.get("short") == {True}
    assert starts.get("long", {False}) == {False}


@pytest.mark.parametrize("name", PLAIN)
def test_variants_that_gain_nothing_by_it_have_no_such_kernels(name):
    assert not any(call.dependent or "DEPENDENT" in call.constants for call in launches(catalog.get(name), H200))


def test_a_sum_of_partial_results_always_starts_early():
    sums = [calls[1] for name in ("split_k", "gemv") for _, calls in plans(catalog.get(name), H200) if len(calls) == 2]
    assert sums
    assert all(call.dependent for call in sums)


def test_a_kernel_and_its_launch_go_by_the_same_capability():
    assert _args.DEPENDENT_CC == build.DEPENDENT_CC
    spec = build.specialise(next(call for call in launches(catalog.get("tma"), H200) if call.dependent))
    assert [spec.options(cc).get("launch_pdl", False) for cc in (80, 89, 90, 100)] == [False, False, True, True]


def smallest_launches():
    """For every kernel that can be launched early and is not Gluon's, such a launch with the smallest tile."""
    found = {}
    for variant in COMPILED:
        for call in launches(variant, H200):
            sizes = [call.constants.get(name, 1) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "LINES", "COLS")]
            size = math.prod(sizes)
            known = found.get(call.kernel)
            if call.dependent and not is_gluon(call.kernel) and (known is None or size < known[0]):
                found[call.kernel] = (size, call)
    return {kernel.__name__: call for kernel, (_, call) in found.items()}


SMALLEST = smallest_launches()


@pytest.mark.parametrize("name", SMALLEST)
def test_a_kernel_waits_before_it_comes_to_memory(name):
    """Gluon's kernels are looked at where they are compiled anyway."""
    ptx = build.compile_binary(build.specialise(SMALLEST[name]), 90).asm["ptx"]
    assert_follows_the_launch_before(ptx)
    before = ptx[: ptx.index("griddepcontrol.wait")]
    assert not re.search(r"\bbra\b", before), "some threads may come past it"


def test_a_kernel_that_does_not_start_early_has_no_such_instruction():
    for arch, variant in ((H200, "tiled"), (replace(H200, capability=(8, 0)), "split_k")):
        call = next(launches(catalog.get(variant), arch))
        assert "griddepcontrol" not in build.compile_binary(build.specialise(call), arch.cc).asm["ptx"]


def test_every_kernel_of_the_catalog_is_looked_at():
    kernels = {kernel.__name__ for variant in COMPILED for kernel in variant.kernels if "DEPENDENT" in kernel.arg_names}
    gluon = {kernel.__name__ for variant in COMPILED for kernel in variant.kernels if is_gluon(kernel)}
    assert set(SMALLEST) == kernels - gluon
    assert gluon <= kernels


@pytest.mark.parametrize("name", ["split_k", "gemv"])
def test_the_interpreter_takes_a_dependent_launch_for_a_plain_one(name):
    variant = catalog.get(name)
    problem = GemmProblem.of(3, 40, 300, "bf16", "nt")
    results = []
    for arch in (H200, replace(H200, capability=(8, 0))):
        tile = next(tile for tile in variant.space(problem, arch) if variant.refusal(problem, arch, tile) is None)
        recipe = variant.plan(problem, tile, arch)
        assert {call.dependent for call in recipe.calls} == {arch.cc >= 90}  # the problem is short
        slots = make_slots(problem, seed=1)
        interpret.run(recipe, slots, {"ALPHA": 1.0, "BETA": 0.0})
        assert verify(problem, slots).ok
        results.append(matrix(slots["OUT"], problem.out, 1).clone())
    assert torch.equal(*results)
