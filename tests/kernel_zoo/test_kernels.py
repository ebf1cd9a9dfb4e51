"""Every variant of the catalog through the interpreter: all pairs of tile, layout, size, batch, epilogue and types.

A case that a variant refuses is replaced by one it takes, so the numbers below count launches that really ran.
"""

import pytest

from kernel_zoo import catalog
from tests.kernel_zoo.cases import INTERPRETED, PARAMETERS, covering, small_tiles, takes

LEAST_CASES = 100
#: Those that run on CPU tensors, the library's among them; the others' cases are for the GPU suite alone.
ON_CPU = [variant for variant in catalog.VARIANTS if variant.interpretable]
CASES = [(variant, i) for variant in ON_CPU for i in range(len(covering(variant).cases))]


@pytest.mark.parametrize(("variant", "i"), CASES, ids=[f"{variant.name}-{i}" for variant, i in CASES])
def test_a_variant_is_right(variant, i):
    case = covering(variant).cases[i]
    verdict = case.run(seed=i)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"


@pytest.mark.parametrize("variant", ON_CPU, ids=lambda variant: variant.name)
def test_a_variant_is_covered_by_enough_cases(variant):
    found = covering(variant)
    assert len(found.cases) >= LEAST_CASES, f"{len(found.cases)} cases, {found.refused} drawings refused"


@pytest.mark.parametrize("variant", INTERPRETED, ids=lambda variant: variant.name)
def test_every_knob_and_every_input_type_a_variant_takes_is_among_its_cases(variant):
    cases = covering(variant).cases
    assert {case.tile.knobs for case in cases} == {tile.knobs for tile in small_tiles(variant)}
    precisions = {"fp16": "", "bf16": "", "fp32": "tf32"}
    taken = {
        dtype for dtype, precision in precisions.items() if any(takes(variant, m, 96, 512, dtype, "nn", precision) for m in (4, 96))
    }
    assert {"fp16", "bf16"} <= {case.problem.dtype for case in cases} == taken
    assert {case.problem.epilogue.activation for case in cases} == set(PARAMETERS["activation"])
    assert any(case.problem.batch > 1 for case in cases)
    assert any(case.problem.epilogue.c is not None for case in cases)


def elements_are_distinct(operand, batch):
    """Whether dims that vary (stride other than 0) reach every element by one index only."""
    reach = 0
    dims = zip(operand.strides, (batch, operand.rows, operand.cols), strict=True)
    for stride, size in sorted((stride, size) for stride, size in dims if stride and size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


@pytest.mark.parametrize("variant", ON_CPU, ids=lambda variant: variant.name)
def test_no_two_elements_of_a_case_share_memory(variant):
    """Filling shared elements is a race on a GPU: two runs from one seed would not have the same inputs."""
    for case in covering(variant).cases:
        for name, operand in case.problem.operands.items():
            assert elements_are_distinct(operand, case.problem.batch), f"{name} of {case.describe()}"
