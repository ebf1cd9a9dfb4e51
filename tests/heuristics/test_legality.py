"""One statement of legality: the choice, the shortlist and the explanation agree on it."""

from __future__ import annotations

import time

import pytest

from heuristics.choose import choose
from heuristics.legality import Legality
from heuristics.model import shortlist
from heuristics.policy import ForcedVariantError, Policy
from heuristics.resources import Record, ResourceTable
from kernel_zoo import catalog
from kernel_zoo.spec import GemmProblem, Resources, TileConfig, binary_class, tile_key
from tests.heuristics.fakes import H200, LARGE, NET, PROBLEM, SMALL, entry, table, variant

SPILLED = Record(*(Resources(1024, 255, 12, ()),) * 3)


def known(problem, *picks):
    """Data in which these (variant, tile) spill."""
    keys = [f"{one.name} {binary_class(problem)} {tile_key(problem, tile)}" for one, tile in picks]
    return ResourceTable(90, "3.7.1", {one.name: one.digest for one, _ in picks}, dict.fromkeys(keys, SPILLED))


def test_a_variants_own_rules_come_first():
    picky = variant("tiled", refuses=lambda problem: problem.m > 512, refuses_tile=lambda problem, tile: tile == LARGE)
    may = Legality(PROBLEM, H200, known(PROBLEM, (picky, SMALL)))
    assert may.refusal(picky).rule == may.refusal(picky, SMALL).rule == "shape"
    small = GemmProblem.of(512, 512, 512, "bf16", "nt")
    may = Legality(small, H200, known(small, (picky, SMALL), (picky, LARGE)))
    assert may.refusal(picky) is None
    assert may.refusal(picky, LARGE).rule == "tile"
    assert may.refusal(picky, SMALL).rule == "spills"


def test_a_namesake_is_judged_by_itself():
    may = Legality(PROBLEM, H200)
    assert may.refusal(variant("tiled", refuses=lambda problem: True)) is not None
    assert may.refusal(variant("tiled")) is None


def test_without_data_the_rules_decide():
    assert Legality(PROBLEM, H200).refusal(variant("tiled"), LARGE) is None


def test_what_spills_is_no_candidate_anywhere():
    zoo = (variant("tiled", (LARGE, SMALL)), NET)
    data = known(PROBLEM, (zoo[0], LARGE))
    for tables in ((), (table(entry(tile=LARGE)),), (table(entry(GemmProblem.of(1100, 1024, 1024, "bf16", "nt"), tile=LARGE)),)):
        chosen = choose(PROBLEM, H200, zoo, tables, data)
        assert (chosen.variant, chosen.tile) != ("tiled", LARGE)
        assert all(candidate.tile != LARGE for candidate in chosen.ranked)
    assert {candidate.tile for candidate in shortlist(Legality(PROBLEM, H200, data), zoo)} == {SMALL, None}
    with pytest.raises(ForcedVariantError, match=r"spills registers \(12 accesses"):
        choose(PROBLEM, H200, zoo, (), data, Policy(variant="tiled", tile=LARGE))


def test_a_variant_all_of_whose_tiles_spill_is_refused_in_words():
    zoo = (variant("tiled", (LARGE,)), NET)
    chosen = choose(PROBLEM, H200, zoo, (), known(PROBLEM, (zoo[0], LARGE)))
    (refused,) = (candidate for candidate in chosen.refused if candidate.variant == "tiled")
    assert refused.refusal.sentence == "the kernel spills registers (12 accesses to local memory); needs no spills"


@pytest.mark.parametrize("sizes", [(1024, 1024, 1024), (1000, 48, 4096), (3, 4096, 4096), (64, 64, 16384)])
def test_the_choice_the_shortlist_and_the_explanation_agree(sizes):
    problem = GemmProblem.of(*sizes, "bf16", "nt")
    legal = {(c.variant, c.tile) for c in shortlist(Legality(problem, H200), catalog.VARIANTS, 10_000) if c.tile is not None}
    spilling = sorted(legal, key=repr)[::2]
    data = known(problem, *((catalog.get(name), tile) for name, tile in spilling))
    may = Legality(problem, H200, data)
    listed = {(c.variant, c.tile) for c in shortlist(may, catalog.VARIANTS, 10_000) if c.tile is not None}
    chosen = choose(problem, H200, catalog.VARIANTS, (), data)
    ranked = {(c.variant, c.tile) for c in chosen.ranked if c.tile is not None}
    assert listed == ranked == {(name, tile) for name, tile in legal if may.refusal(catalog.get(name), tile) is None}
    assert listed
    assert not listed & set(spilling)
    assert (chosen.variant, chosen.tile) in listed


def test_asking_is_cheap():
    """A choice asks for a handful of tiles; with data that must not cost more than the variant's own rules do."""
    tiled, tile = catalog.get("tiled"), TileConfig(128, 128, 64, num_warps=8)
    data = known(PROBLEM, (tiled, SMALL), (tiled, tile))

    def seconds(may):
        may.refusal(tiled, tile)
        best = float("inf")
        for _ in range(20):
            begun = time.perf_counter()
            for _ in range(50):
                may.refusal(tiled, tile)
            best = min(best, time.perf_counter() - begun)
        return best / 50

    assert seconds(Legality(PROBLEM, H200, data)) - seconds(Legality(PROBLEM, H200)) < 25e-6
