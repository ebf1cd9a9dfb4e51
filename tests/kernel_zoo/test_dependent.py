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
from tests.kernel_zoo.cases import H200, INTERPRETED, takes
from tests.kernel_zoo.dependence import assert_follows_the_launch_before

COMPILED = [variant for variant in catalog.VARIANTS if variant.recipe is not None]
each_variant = pytest.mark.parametrize("variant", COMPILED, ids=lambda variant: variant.name)
SHAPES = ((1, 512, 8192), (16, 512, 4096), (96, 128, 8192), (4096, 4096, 512), (4224, 4096, 4096))


def problems(variant, arch):
    """Problems of different kinds that a variant takes."""
    found = [takes(variant, m, n, k, "bf16", layout, arch=arch) for m, n, k in SHAPES for layout in ("nn", "nt")]
    return [problem for problem in found if problem is not None]


def launches(variant, arch):
    """Every launch of every tile that is tried for some problem."""
    for problem in problems(variant, arch):
        for tile in variant.space(problem, arch):
            if variant.refusal(problem, arch, tile) is None:
                yield from variant.plan(problem, tile, arch).calls


@each_variant
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_from_hopper_on_every_launch_is_dependent(variant, capability):
    calls = list(launches(variant, replace(H200, capability=capability)))
    assert calls or capability != (9, 0)
    assert all(call.dependent and call.constants["DEPENDENT"] is True for call in calls)


@each_variant
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9)])
def test_before_hopper_none_is(variant, capability):
    """Their devices have no such instruction."""
    calls = list(launches(variant, replace(H200, capability=capability)))
    assert calls or variant.name not in ("tiled", "persistent", "split_k", "gemv")
    assert not any(call.dependent or call.constants["DEPENDENT"] for call in calls)


def test_a_kernel_and_its_launch_go_by_the_same_capability():
    assert _args.DEPENDENT_CC == build.DEPENDENT_CC
    spec = build.specialise(next(launches(catalog.get("tiled"), H200)))
    assert [spec.options(cc).get("launch_pdl", False) for cc in (80, 89, 90, 100)] == [False, False, True, True]


def smallest_launches():
    """For every kernel that is not Gluon's, its launch with the smallest tile."""
    found = {}
    for variant in COMPILED:
        for call in launches(variant, H200):
            sizes = [call.constants.get(name, 1) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "LINES", "COLS")]
            size = math.prod(sizes)
            known = found.get(call.kernel)
            if not is_gluon(call.kernel) and (known is None or size < known[0]):
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


def test_before_hopper_a_kernel_has_no_such_instruction():
    call = next(launches(catalog.get("tiled"), replace(H200, capability=(8, 0))))
    assert "griddepcontrol" not in build.compile_binary(build.specialise(call), 80).asm["ptx"]


def test_every_kernel_of_the_catalog_is_looked_at():
    kernels = {kernel.__name__ for variant in COMPILED for kernel in variant.kernels if not is_gluon(kernel)}
    assert set(SMALLEST) == kernels


@pytest.mark.parametrize("name", ["tiled", "split_k", "gemv"])
def test_the_interpreter_takes_a_dependent_launch_for_a_plain_one(name):
    variant = catalog.get(name)
    problem = GemmProblem.of(3, 40, 300, "bf16", "nt")
    results = []
    for arch in (H200, replace(H200, capability=(8, 0))):
        tile = next(tile for tile in variant.space(problem, arch) if variant.refusal(problem, arch, tile) is None)
        recipe = variant.plan(problem, tile, arch)
        assert {call.dependent for call in recipe.calls} == {arch.cc >= 90}
        slots = make_slots(problem, seed=1)
        interpret.run(recipe, slots, {"ALPHA": 1.0, "BETA": 0.0})
        assert verify(problem, slots).ok
        results.append(matrix(slots["OUT"], problem.out, 1).clone())
    assert torch.equal(*results)


def test_every_interpreted_variants_launches_are_dependent_ones():
    """So that all of its tests go that way."""
    assert all(call.dependent for variant in INTERPRETED for call in launches(variant, H200))
