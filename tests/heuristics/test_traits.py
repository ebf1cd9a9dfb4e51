"""What the model makes of kernels that have a warp to load, work on two tiles, copy operands first, or add up in one launch.

Each is compared with another kernel that has the same coefficients, so that what differs is the picture alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heuristics.archs import get_arch
from heuristics.choose import choose
from heuristics.coefficients import COEFFICIENTS
from heuristics.cost import Scorer, Sizes
from heuristics.fit import fit
from heuristics.footprint import footprint
from heuristics.occupancy import of_tile
from heuristics.policy import Policy
from heuristics.reasons import because, repeats
from heuristics.traits import TRAITS, Traits, traits_of
from heuristics.verdicts import why
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem, Operand, Resources, TileConfig
from tests.heuristics.fakes import H200, variant

LARGE = TileConfig(128, 256, 64, num_warps=8, num_stages=4)
HALF = TileConfig(128, 128, 64, num_warps=8, num_stages=4)
SMALL = TileConfig(64, 64, 128, num_stages=4)
SAME = {
    "launch": 1.0, "fill": 1.0, "step": 0.02, "compute": 0.8, "store": 0.5, "resident": 1.0, "second": 0.5, "partial": 0.5,
    "stream": 0.9, "latency": 1.0, "overlap": 4.0, "l2": 0.9, "port": 1.0,
}  # fmt: skip
ALIKE = dict.fromkeys(TRAITS, SAME)


def of(m, n, k, layout="nt", **more):
    return GemmProblem.of(m, n, k, "bf16", layout, **more)


def parts(problem, name, tile, fitted=None):
    return Scorer(problem, H200, fitted or ALIKE).estimate(name, tile)


def test_a_tile_adds_to_what_its_variant_is():
    assert traits_of("tma") == Traits(tma=True, early_us=2.5)
    assert traits_of("tma", replace(LARGE, knobs=(("persistent", 1),))) == Traits(tma=True, resident=True, early_us=2.5)
    assert traits_of("split_k", replace(SMALL, knobs=(("tma", 1),))).tma
    assert traits_of("me.mine", LARGE) == Traits()
    assert not traits_of("tma").sole
    assert traits_of("ping_pong", LARGE).sole


def test_launches_start_as_the_variants_say_and_as_a_tile_may_say():
    assert {name: traits.early_us for name, traits in TRAITS.items()} == {
        known.name: known.early_us for known in VARIANTS if known.name in TRAITS
    }
    assert all(known.early_us == 0 for known in VARIANTS if known.name not in TRAITS)
    assert traits_of("tma", replace(LARGE, knobs=(("early", 1),))).early_us == math.inf
    assert traits_of("tma", replace(LARGE, knobs=(("early", 0),))).early_us == 0
    assert traits_of("tiled", replace(LARGE, knobs=(("early", 1),))).early_us == 0
    problem = of(2048, 2048, 2048)  # a roof of 17 us: late, unless asked
    late, asked = (parts(problem, "tma", replace(LARGE, knobs=knobs)) for knobs in ((), (("early", 1),)))
    assert asked.parts["launch"] < late.parts["launch"]


def test_every_variant_with_traits_has_coefficients():
    assert set(TRAITS) <= set(COEFFICIENTS)


def test_one_that_loads_by_a_warp_of_its_own_has_its_sm_alone():
    problem, shallow = of(64 * 132 * 2, 64, 4096), TileConfig(64, 64, 64, num_stages=2)  # all wait, which neighbours would hide
    shared, alone = (parts(problem, name, shallow).parts["main loop"] for name in ("tma", "warp_specialised"))
    assert alone > 1.5 * shared


@pytest.mark.parametrize("sides", [(128, 256), (256, 192), (256, 160), (192, 128)])
def test_the_busiest_sm_decides_in_whole_tiles(sides):
    tile = replace(LARGE, block_m=sides[0], block_n=sides[1], num_stages=3)
    full = of(sides[0] * 12, sides[1] * 11, 4096)
    more = of(sides[0] * 12 + 1, sides[1] * 11, 4096)
    ratio = parts(more, "warp_specialised", tile).parts["main loop"] / parts(full, "warp_specialised", tile).parts["main loop"]
    assert ratio == pytest.approx(2.0, rel=0.05)


def test_two_tiles_by_turns_hide_all_ends_but_one_where_products_are_long():
    problem = of(128 * 132, 128 * 4, 4096)  # four tiles an SM
    one, two = (parts(problem, name, HALF) for name in ("warp_specialised", "ping_pong"))
    assert two.parts["main loop"] == one.parts["main loop"]
    fitted = {**ALIKE, "ping_pong": {**SAME, "resident": 0.0}}
    assert parts(problem, "ping_pong", HALF, fitted).parts["fill and store"] == pytest.approx(one.parts["fill and store"] / 4)


def test_two_tiles_by_turns_hide_no_more_than_the_products_last():
    problem = of(128 * 132, 128 * 4, 64)  # one k block
    fitted = {**ALIKE, "ping_pong": {**SAME, "resident": 0.0}}
    one = parts(problem, "warp_specialised", HALF, fitted).parts
    two = parts(problem, "ping_pong", HALF, fitted).parts
    a_tile = one["main loop"] / 4 + one["fill and store"] / 4
    assert two["main loop"] + two["fill and store"] == pytest.approx(2 * a_tile)


def test_a_copy_is_a_launch_and_its_bytes():
    tile = replace(HALF, knobs=(("persistent", 1),))
    aligned, ragged = of(4096, 4096, 4096, "nn"), of(4096, 4095, 4096, "nn")
    assert "copy" not in parts(aligned, "repack", tile).parts
    assert "copy" not in parts(ragged, "tma", tile).parts
    found = parts(ragged, "repack", tile)
    least = 2 * 4096 * 4095 * 2 / (H200.bandwidth_gbps * 1e3)  # B is read and written once; A is read where it lies
    assert least < found.parts["copy"] < 2 * least + 2
    assert found.time_us == pytest.approx(parts(ragged, "tma", tile).time_us + found.parts["copy"])


def test_what_is_copied():
    ragged, batched = of(100, 101, 103, "nn"), of(100, 101, 103, "nn", batch=6)
    assert Sizes.of(of(128, 128, 128)).copied_bytes == 0
    assert Sizes.of(ragged).copied_bytes == 2 * 2 * (100 * 103 + 103 * 101)
    assert Sizes.of(batched).copied_bytes == 6 * Sizes.of(ragged).copied_bytes
    shared = replace(batched, b=replace(batched.b, strides=(0, *batched.b.strides[1:])))
    assert Sizes.of(shared).copied_bytes == 2 * 2 * (6 * 100 * 103 + 103 * 101)


def test_a_copy_of_what_has_no_unit_stride_is_read_in_lines():
    strided = replace(of(1024, 1024, 1024), a=Operand("bf16", 1024, 1024, (0, 2048, 2)))
    copied, direct = (parts(strided, name, HALF).parts["main loop"] for name in ("repack", "tma"))
    assert copied < direct / 2


def test_the_last_to_arrive_reads_every_partial_tile_and_launches_nothing():
    problem = of(64, 640, 16384)
    times = [parts(problem, "split_k_fused", replace(SMALL, split_k=split)).parts["reduction"] for split in (2, 4, 8)]
    a_split = (times[1] - times[0]) / 2
    assert times[2] - times[1] == pytest.approx(4 * a_split)
    assert 0.1 + 4 * 64 * 64 / (64 * H200.clock_ghz * 1e3) < a_split < 1.0  # through one SM's port
    assert times[0] - 2 * a_split < 2.0
    larger = replace(SMALL, block_n=128, split_k=4)
    assert parts(problem, "split_k_fused", larger).parts["reduction"] > times[1]
    rounds = of(64 * 133, 64, 16384)  # one tile more than SMs
    assert parts(rounds, "split_k_fused", replace(SMALL, split_k=4)).parts["reduction"] > times[1] + 4 * a_split


def test_occupancy_counts_the_warps_that_load():
    problem = of(4096, 4096, 4096)
    found = of_tile(problem, H200, "warp_specialised", LARGE)
    assert (found.programs, found.warps, found.registers, found.source) == (1, 12, 168, "formula")
    assert found.shared_bytes <= H200.smem_per_block
    assert "shared memory" in found.limited_by
    three = of_tile(problem, H200, "warp_specialised", replace(LARGE, block_m=192, block_n=128, num_warps=12))
    assert (three.programs, three.warps, three.registers) == (1, 16, 128)
    compiled = of_tile(problem, H200, "ping_pong", HALF, Resources(180_000, 168, 0, ("wgmma",)))
    assert (compiled.programs, compiled.warps, compiled.limits["registers"]) == (1, 12, 1)
    held = footprint(problem, H200, "ping_pong", None, HALF, None)
    assert held.resident
    assert (held.at_once, held.programs) == (132, 32 * 32)


ZOO = (
    variant("tma", (HALF,), refuses=lambda problem: problem.a.line_align < 16),
    variant("repack", (HALF,), refuses=lambda problem: problem.a.line_align >= 16, workspace=1 << 20),
    variant("split_k_fused", (replace(SMALL, split_k=8),), workspace=1 << 20),
    variant("tiled", (SMALL,)),
)


def test_explain_says_what_is_copied_and_who_adds_up():
    ragged = of(4095, 4095, 4095, "nn")
    pick = choose(ragged, H200, ZOO)
    assert pick.variant == "repack"
    assert because(pick).startswith("A and B, with lines aligned to 2 bytes, are copied to aligned ones first; ")
    forced = choose(of(64, 640, 16384), H200, ZOO, policy=Policy(variant="split_k_fused"))
    assert "added in order by the last program to arrive" in repeats(forced)
    behind = why(choose(of(256, 256, 512), H200, ZOO), "split_k_fused")
    assert behind.part == "reduction"
    assert "its last programs add up partial sums" in behind.sentence


def test_a_fit_finds_what_makes_a_new_kernel_slow():
    tiles = {
        "warp_specialised": (LARGE, HALF), "ping_pong": (HALF,), "repack": (HALF, SMALL),
        "split_k_fused": tuple(replace(SMALL, split_k=split) for split in (2, 4, 8)),
    }  # fmt: skip
    ragged = [of(511, 513, 2047, "nn"), of(1023, 1025, 999, "nn")]
    problems = [of(4096, 4096, 4096), of(2048, 1024, 8192), of(128, 256, 16384), *ragged]
    world = {"warp_specialised resident": {"compute": 0.5}, "repack": {"partial": 0.05}, "split_k_fused": {"second": 6.0}}

    def times(problem, fitted):
        names = [name for name in tiles if (name == "repack") == (problem.a.line_align < 16)]
        picks = [(name, tile) for name in names for tile in tiles[name]]
        return dict(zip(picks, Scorer(problem, H200, fitted).times(picks).tolist(), strict=True))

    report = fit([(problem, times(problem, world)) for problem in problems], H200, steps=60)
    assert report.model["warp_specialised resident"]["compute"] < 0.8
    assert report.model["repack"]["partial"] < 0.85 * COEFFICIENTS["repack"].partial
    assert report.model["split_k_fused"]["second"] > 1.2 * COEFFICIENTS["split_k_fused"].second
    assert report.after >= report.before


def test_the_built_in_coefficients_put_each_where_it_was_seen_to_win():
    """Ratios of a first probe on an H200, not to the per cent: what it found faster is estimated faster."""
    wide = TileConfig(128, 192, 64, num_warps=8, num_stages=4)
    resident = replace(LARGE, knobs=(("flatten", 1), ("persistent", 1), ("subtile", 2)))
    scorer = Scorer(of(3072, 3072, 3072), H200)
    assert scorer.time_us("warp_specialised", wide) < 0.95 * scorer.time_us("tma", resident)
    ragged = Scorer(of(4095, 4093, 4097, "nn"), H200)
    assert 3 * ragged.time_us("repack", resident) < ragged.time_us("tiled", TileConfig(64, 256, 16, num_warps=8, num_stages=4))
    tiny = Scorer(of(32, 32, 8192), H200)
    split = replace(TileConfig(64, 32, 128, num_stages=6), split_k=16)
    assert tiny.time_us("split_k_fused", split) > tiny.time_us("split_k", replace(split, knobs=(("tma", 1),)))


def test_capability_ten_is_scored_too():
    b200 = get_arch("b200")
    assert Scorer(of(4095, 4095, 4095, "nn"), b200).time_us("repack", HALF) > 0
