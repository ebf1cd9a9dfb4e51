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
        assert {case.tile for case in cases} == set(planned.gpu_tiles(variant, H200))
        assert len({case.tile for case in cases}) > 5


def test_they_are_few_enough_for_one_run():
    """The packaged rows' binaries, some 500, and an eighth of these once more come on top."""
    assert len(catalog.VARIANTS) * planned.CASES_PER_VARIANT <= 800


@pytest.mark.parametrize("name", ["warp_specialised", "ping_pong"])
def test_a_walk_there_and_back_turns(name):
    cases = [case for case in planned.kernel_cases(catalog.get(name), H200) if case.tile.knob("serpentine")]
    assert any(case.problem.m > case.tile.group_m * case.tile.block_m for case in cases)


def test_every_gluon_tile_meets_batches_and_transposed_results():
    cases = planned.gluon_cases(H200)
    tiles = {(variant.name, tile) for variant, tile, _ in planned.gluon_tiles()}
    assert {(case.variant.name, case.tile) for case in cases if case.problem.batch > 1 and not case.tile.knobs} == tiles
    turned = {(case.variant.name, case.tile.without("swap")) for case in cases if case.tile.knob("swap")}
    assert turned >= tiles
    assert {case.problem.layout for case in cases if case.tile.knob("swap")} == set(planned.LAYOUTS)
    assert {(case.variant.name, case.tile.without("early")) for case in planned.chain_cases(H200)} == tiles


def test_a_variant_that_counts_has_a_case_with_many_counters():
    case = planned.counting_case(catalog.get("split_k_fused"), H200)
    assert case.variant.plan(case.problem, case.tile, case.arch).counters > 4
    assert planned.counting_case(catalog.get("tiled"), H200) is None


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
