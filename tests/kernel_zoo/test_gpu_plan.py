"""The GPU suite's cases, generated and checked where there is no GPU."""

import pytest

from kernel_zoo import catalog
from kernel_zoo.build import specialise
from tests.gpu import planned
from tests.kernel_zoo.cases import H200, INTERPRETED


@pytest.mark.parametrize("variant", catalog.VARIANTS, ids=lambda variant: variant.name)
def test_each_variant_has_its_cases_and_all_are_legal(variant):
    cases = planned.kernel_cases(variant, H200)
    assert len(cases) == planned.CASES_PER_VARIANT
    for case in cases:
        assert variant.refusal(case.problem, case.arch, case.tile) is None
        assert all(hash(job) for job in case.jobs())
    if variant.recipe is not None:
        assert {case.tile.knobs for case in cases} == {tile.knobs for tile in planned.gpu_tiles(variant, H200)}
        assert len({case.tile for case in cases}) > 5


@pytest.mark.parametrize("variant", INTERPRETED, ids=lambda variant: variant.name)
def test_a_few_of_them_are_right_in_the_interpreter(variant):
    def programs(case):
        recipe = variant.plan(case.problem, case.tile, case.arch)
        return sum(call.grid[0] for call in recipe.calls) * case.problem.batch * (1 + case.problem.k // case.tile.block_k)

    cheap = sorted(planned.kernel_cases(variant, H200), key=programs)[:3]
    for case in cheap:
        verdict = case.run()
        assert verdict.ok, f"{verdict.message}\n{case.describe()}"


def test_shapes_cover_every_class_and_fit_a_gpu():
    problems = planned.shape_problems()
    assert 40 <= len(problems) <= 200
    assert {problem.shape_class for problem in problems} >= {
        "batched",
        "ragged",
        "gemv",
        "decode",
        "split-K",
        "large",
        "square",
        "prefill",
    }
    assert {problem.dtype for problem in problems} == {"fp16", "bf16", "fp32"}


def test_table_cases_cover_every_binary_of_the_packaged_rows():
    cases = planned.table_cases(H200)
    binaries = {specialise(call) for case in cases for call in case.variant.plan(case.problem, case.tile, H200).calls}
    wanted = {spec for case in planned._rows(H200) for spec, _ in case.jobs()}
    assert binaries == wanted
