"""Candidates are tried with both starts where either may be the faster one."""

import pytest

from heuristics.archs import get_arch
from heuristics.roof import roof_us
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas.tune_starts import other_starts
from minblas.tune_trial import Pick

BY_NAME = {variant.name: variant for variant in VARIANTS}
H200 = get_arch("h200")
MIDDLING = GemmProblem.of(1024, 1024, 4096, "bf16", "nt")  # a roof of about 9 us


def first(name, problem=MIDDLING):
    return Pick(name, BY_NAME[name].space(problem, H200)[0])


@pytest.mark.parametrize("name", ["tma", "warp_specialised", "ping_pong", "split_k", "split_k_fused"])
def test_the_other_start_of_a_pick(name):
    (other,) = other_starts(MIDDLING, H200, [first(name)], BY_NAME)
    starts = [BY_NAME[name].plan(MIDDLING, pick.tile, H200).calls[0].dependent for pick in (first(name), other)]
    assert starts in ([False, True], [True, False])
    assert other.tile.knob("early", -1) == int(starts[1])


def test_a_knob_that_is_set_is_turned_and_others_are_kept():
    tile = TileConfig(64, 128, 64, num_stages=8, num_warps=8, knobs=(("early", 1), ("swap", 1)))
    (other,) = other_starts(MIDDLING, H200, [Pick("ping_pong", tile)], BY_NAME)
    assert other.tile.knobs == (("early", 0), ("swap", 1))


@pytest.mark.parametrize("sizes", [(64, 64, 64), (8192, 8192, 8192)])
def test_short_and_long_products_have_one_start(sizes):
    problem = GemmProblem.of(*sizes, "bf16", "nt")
    assert not 0.8 <= roof_us(problem, H200)[0] <= 40
    assert other_starts(problem, H200, [first("ping_pong", problem)], BY_NAME) == []


def test_launches_that_never_start_early_have_one():
    picks = [first("persistent"), first("tiled"), Pick("aten", None), Pick("me.unknown", first("tma").tile)]
    assert other_starts(MIDDLING, H200, picks, BY_NAME) == []
