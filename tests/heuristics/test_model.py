"""The model against what is known: measured times, the directions in which costs must grow, and the picks an expert would make."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heuristics import suites
from heuristics.archs import ARCHS
from heuristics.coefficients import COEFFICIENTS, Coefficients
from heuristics.legality import Legality
from heuristics.model import best_first, estimate, legal, rank, ridge, shortlist, times_us
from heuristics.pairs import PAIRS
from heuristics.roof import rate, roof_us
from heuristics.schema import parse_tile
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig
from tests.heuristics.fakes import H200, variant

ZOO = tuple(item for item in VARIANTS if item.recipe is not None)
ZEROS = [(0, 8, 8, 1), (8, 0, 8, 1), (8, 8, 0, 1), (8, 8, 8, 0), (0, 0, 0, 0)]


def of(m, n, k, layout="nt", dtype="bf16", **more):
    return GemmProblem.of(m, n, k, dtype, layout, **more)


def tile(m, n, k, stages, warps=4, split=1, **knobs):
    return TileConfig(m, n, k, split_k=split, num_warps=warps, num_stages=stages, knobs=tuple(sorted(knobs.items())))


def best(problem, arch=H200):
    return rank(Legality(problem, arch), ZOO)[0]


RESIDENT = tile(128, 256, 64, 3, 8, persistent=1, subtile=2)


def measured():
    """(problem, {(variant, tile): us}) of every shape measured."""
    document = json.loads(Path(__file__).with_name("h200_times.json").read_text())
    for item in document["shapes"]:
        batch, m, n, k, layout, dtype = item["shape"]
        times = {(name, parse_tile(text)): us for us, name, text in item["rows"]}
        yield GemmProblem.of(m, n, k, dtype, layout, batch=batch), times


MEASURED = list(measured())


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def test_the_models_first_pick_is_near_the_best_measured():
    # Replays every choice over what was timed: a change that makes the model worse fails here.
    shares = {}
    for problem, times in MEASURED:
        first = list(times)[int(times_us(problem, H200, list(times)).argmin())]
        shares[problem.describe()] = min(times.values()) / times[first]
    assert geomean(shares.values()) > 0.97, shares
    assert min(shares.values()) > 0.85, shares


def test_the_best_measured_is_on_the_shortlist():
    # By sides: tiles that differ in a knob alone are within the noise of one another.
    missing = []
    tried = {name for _, times in MEASURED for name, _ in times}
    zoo = [item for item in ZOO if item.name in tried]
    for problem, times in MEASURED:
        best = min(times.values())
        good = {(name, config.block_m, config.block_n) for (name, config), us in times.items() if us < 1.02 * best}
        listed = {(c.variant, c.tile.block_m, c.tile.block_n) for c in shortlist(Legality(problem, H200), zoo)}
        if not good & listed:
            missing.append(problem.describe())
    assert missing == []


def test_estimates_are_unbiased_and_close():
    errors = [
        math.log(estimate(problem, H200, *pick).time_us / us)
        for problem, times in MEASURED
        for pick, us in times.items()
        if us < 2 * min(times.values())
    ]
    assert abs(sum(errors) / len(errors)) < 0.08
    assert sum(map(abs, errors)) / len(errors) < 0.14


@pytest.mark.parametrize(
    ("name", "config"), [("tiled", tile(64, 64, 64, 3)), ("tma", RESIDENT), ("split_k", tile(64, 64, 64, 3, split=4))]
)
@pytest.mark.parametrize("grow", ["m", "n", "k", "batch"])
def test_more_work_never_takes_less(name, config, grow):
    sizes = {"m": 512, "n": 512, "k": 512, "batch": 1}
    times = []
    for factor in (1, 2, 4, 8, 16):
        batch = sizes["batch"] * (factor if grow == "batch" else 1)
        grown = {axis: sizes[axis] * (factor if axis == grow else 1) for axis in "mnk"}
        times.append(estimate(of(**grown, batch=batch), H200, name, config).time_us)
    assert times == sorted(times)
    assert times[-1] > times[0]


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_no_estimate_beats_the_roof(arch):
    sampled = suites.problems(["card", "square-pow2", "vit", "llama3-8b"])
    for problem in sampled:
        floor, _ = roof_us(problem, arch)
        for candidate in rank(Legality(problem, arch), ZOO):
            assert floor < candidate.estimate.time_us < math.inf, (problem.describe(), candidate)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_long_k_over_a_small_result_is_split(layout):
    pick = best(of(256, 256, 16384, layout))
    assert pick.variant == "split_k"
    assert pick.tile.split_k >= 4


def test_a_large_square_is_not_split_and_takes_large_tiles():
    pick = best(of(8192, 8192, 8192))
    assert pick.tile.split_k == 1
    assert pick.tile.block_m * pick.tile.block_n >= 128 * 256


@pytest.mark.parametrize("m", [8, 16])
@pytest.mark.parametrize("n", [4096, 28672])
def test_decode_takes_sixteen_rows(m, n):
    pick = best(of(m, n, 4096))
    rows = pick.tile.block_n if pick.tile.knob("swap") else pick.tile.block_m
    assert rows == 16


def test_one_row_is_a_gemv():
    assert best(of(1, 4096, 4096)).variant == "gemv"


def test_a_small_square_fills_the_device_with_small_tiles():
    pick = best(of(512, 512, 512))
    assert pick.tile.block_m * pick.tile.block_n <= 64 * 64


def test_a_wave_that_spills_over_costs():
    # 132 tiles fill 132 SMs once; one more column of tiles starts a second round.
    config = tile(128, 256, 64, 3, 8)
    full, over = (estimate(of(128 * 11, 256 * n, 4096), H200, "tma", config).time_us for n in (12, 13))
    assert over > 1.7 * full


def test_tile_padding_costs():
    config = tile(128, 128, 64, 3, 8)
    whole, ragged = (estimate(of(128 * k, 4096, 4096), H200, "tiled", config).time_us for k in (16, 17))
    assert estimate(of(128 * 16 + 8, 4096, 4096), H200, "tiled", config).time_us == pytest.approx(ragged, rel=0.02)
    assert ragged > whole


def test_lines_that_are_not_aligned_cost_dearly():
    config = tile(128, 128, 64, 3, 8)
    aligned, odd = of(4096, 4096, 4096, "nn"), of(4095, 4093, 4097, "nn")
    assert odd.a.line_align == 2
    ratio = estimate(odd, H200, "tiled", config).time_us / estimate(aligned, H200, "tiled", config).time_us
    assert 3 < ratio < 12  # measured: about 7


def test_reading_c_and_an_activation_cost():
    config = tile(128, 128, 64, 3, 8)
    plain = of(4096, 4096, 256)
    c = Operand.dense("fp32", 4096, 4096)
    dearer = [replace(plain, epilogue=e) for e in (Epilogue(beta="1", c=c), Epilogue(activation="gelu"))]
    base = estimate(plain, H200, "tiled", config).time_us
    assert all(estimate(problem, H200, "tiled", config).time_us > base for problem in dearer)


def test_ieee_is_slower_than_tf32_and_more_parts_cost_more():
    config = tile(64, 64, 32, 3)
    order = ("tf32", "bf16x3", "bf16x6", "ieee")
    times = [
        estimate(of(4096, 4096, 4096, dtype="fp32", precision=precision), H200, "tiled", config).time_us for precision in order
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_rates_exist_for_every_precision(arch):
    for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"):
        assert rate(of(8, 8, 8, dtype="fp32", precision=precision), arch) > 0
    for dtype in ("fp64", "int8", "fp8", "int32"):
        assert rate(of(8, 8, 8, dtype=dtype), arch) > 0
    assert ridge(of(8, 8, 8), arch) > 20


@pytest.mark.parametrize(("m", "n", "k", "batch"), ZEROS)
@pytest.mark.parametrize("item", ZOO, ids=lambda item: item.name)
def test_nothing_to_compute_is_no_crash(m, n, k, batch, item):
    problem = of(m, n, k, batch=batch)
    for config in (tile(64, 64, 64, 3), tile(64, 64, 64, 3, split=4), TileConfig(1, 2, 2048)):
        assert 0.0 <= estimate(problem, H200, item.name, config).time_us < math.inf
    assert all(candidate.estimate.time_us >= 0 for candidate in rank(Legality(problem, H200), ZOO))


def test_ranked_candidates_are_legal_and_in_order():
    problem = of(300, 300, 300)
    ranked = rank(Legality(problem, H200), ZOO)
    by_name = {item.name: item for item in ZOO}
    assert all(by_name[c.variant].refusal(problem, H200, c.tile) is None for c in ranked)
    assert_in_order(ranked)


def assert_in_order(candidates):
    """By time, but that estimates within half a percent count as equal."""
    times = [c.estimate.time_us for c in candidates]
    assert all(earlier <= 1.005 * later for earlier, later in itertools.pairwise(times))


def test_ties_go_to_the_first_mentioned():
    first, second = variant("one"), variant("two")
    may = Legality(of(64, 64, 64), H200)
    assert [c.variant for c in rank(may, (first, second))[:2]] in (["one", "two"], ["one", "one"])
    assert rank(may, (second, first))[0].variant == "two"


#: Of each pair the first is to be taken where their times are equal.
EQUAL = {
    "no partial sums before some": (tile(64, 64, 64, 3), tile(64, 64, 64, 3, split=2)),
    "fewer partial sums before more": (tile(64, 64, 64, 3, split=2), tile(64, 64, 64, 3, split=4)),
    "fewer bytes a product before more": (tile(64, 64, 64, 3), tile(32, 128, 64, 3)),
}


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL)
@pytest.mark.parametrize("spread", [1.0, 1.004])
def test_ties_go_to_what_needs_less(pair, spread):
    numbers = PAIRS.numbers("one", pair)
    assert list(best_first(np.array([10.0 * spread, 10.0]), numbers)) == [0, 1]
    assert list(best_first(np.array([10.0, 10.0 * spread]), numbers)) == [0, 1]
    assert list(best_first(np.array([10.0, 10.0]), numbers[::-1])) == [1, 0]
    assert list(best_first(np.array([10.2, 10.0]), numbers)) == [1, 0]


def test_legality_is_asked_until_the_first_legal_tile_and_no_further():
    asked = []

    def refuses(problem, config):
        asked.append(config)
        return len(asked) < 3

    sizes = [tile(16 * side, 64, 64, 3) for side in (1, 2, 4, 8, 16)]
    found = legal(Legality(of(4096, 4096, 4096), H200), [variant("one", sizes, refuses_tile=refuses)])
    assert asked == []
    _, _, first = next(found)
    assert len(asked) == 3
    assert first == asked[2]
    assert len({config.block_m for config in asked}) == 3


def test_a_variant_that_refuses_the_problem_is_not_asked_for_tiles():
    picky = variant("one", refuses=lambda problem: True)
    object.__setattr__(picky, "space", lambda problem, arch: pytest.fail("asked for tiles"))
    assert list(legal(Legality(of(64, 64, 64), H200), [picky])) == []


def test_parts_are_named_and_the_estimate_repeats():
    made = estimate(of(256, 256, 16384), H200, "split_k", tile(64, 64, 128, 4, split=8, tma=1))
    assert set(made.parts) == {"launch", "main loop", "fill and store", "device memory", "reduction"}
    assert made.parts["reduction"] > 0
    assert made == estimate(of(256, 256, 16384), H200, "split_k", tile(64, 64, 128, 4, split=8, tma=1))


def test_fitted_coefficients_replace_the_built_in_ones():
    problem, config = of(64, 64, 64), tile(64, 64, 64, 3)
    slow = estimate(problem, H200, "tiled", config, {"tiled": {"launch": 101.0}}).time_us
    assert slow == pytest.approx(estimate(problem, H200, "tiled", config).time_us + 101.0 - COEFFICIENTS["tiled"].launch)
    assert estimate(problem, H200, "tma", config, {"tiled": {"launch": 101.0}}) == estimate(problem, H200, "tma", config)


def test_a_variant_without_coefficients_is_scored_all_the_same():
    assert estimate(of(64, 64, 64), H200, "me.own", tile(64, 64, 64, 3)).time_us > Coefficients().launch


def test_the_net_is_estimated_by_class():
    assert estimate(of(4096, 4096, 4096), H200, "aten", None).time_us == pytest.approx(160, rel=0.15)


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (256, 256, 16384), (16, 4096, 4096), (2, 4096, 4096), (300, 300, 300)])
def test_a_shortlist_is_short_varied_and_holds_the_best(size):
    problem = of(*size)
    may = Legality(problem, H200)
    ranked, short = rank(may, ZOO), shortlist(may, ZOO, 16)
    assert len(short) == min(16, len(ranked))
    assert short[0] == ranked[0]
    assert len({(c.variant, c.tile) for c in short}) == len(short)
    assert {c.variant for c in short} == {c.variant for c in ranked}  # a model wrong about a family does not hide it
    assert len({(c.tile.block_m, c.tile.block_n, c.tile.block_k) for c in short}) >= 5
    assert_in_order(short)


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (256, 256, 16384), (16, 4096, 4096), (735, 18432, 768)])
def test_half_of_a_shortlist_is_the_models_own_ranking(size):
    """Two of each of nine variants would fill it, and hide what the model ranks third to eighth."""
    may = Legality(of(*size), H200)
    ranked, short = rank(may, ZOO), shortlist(may, ZOO, 16)
    seen, favourites = [], []
    for candidate in ranked:
        family = (candidate.variant, candidate.tile.block_m, candidate.tile.block_n, candidate.tile.block_k)
        seen.append(family)
        if seen.count(family) <= 3:
            favourites.append(candidate)
    assert favourites[:8] == [candidate for candidate in short if candidate in favourites[:8]]


def test_a_shortlist_is_never_longer_than_asked():
    assert len(shortlist(Legality(of(512, 512, 512), H200), ZOO, 3)) == 3


@pytest.mark.parametrize("per_variant", [3, 6, 40])
def test_a_shortlist_has_as_many_of_each_variant_as_asked(per_variant):
    may = Legality(of(512, 512, 512), H200)
    ranked, short = rank(may, ZOO), shortlist(may, ZOO, 4, per_variant=per_variant)
    assert short[0] == ranked[0]
    assert_in_order(short)
    for name in {c.variant for c in ranked}:
        there, sent = [[c for c in listed if c.variant == name] for listed in (ranked, short)]
        assert len(sent) == min(per_variant, len(there))
        shapes = {(c.tile.block_m, c.tile.block_n, c.tile.block_k) for c in there}
        sent_shapes = [(c.tile.block_m, c.tile.block_n, c.tile.block_k) for c in sent]
        assert len(set(sent_shapes)) == min(len(shapes), len(sent))  # every block shape before a second of any


def test_few_of_each_variant_leave_a_shortlist_as_long_as_asked():
    assert len(shortlist(Legality(of(512, 512, 512), H200), ZOO, 12, per_variant=1)) == 12
