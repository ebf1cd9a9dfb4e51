"""What a choice keeps between problems answers as asking anew does."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heuristics.choose import choose
from heuristics.eligibility import Eligibility
from heuristics.legality import Legality
from heuristics.model import best_first
from heuristics.pairs import PAIRS, Pairs
from heuristics.policy import Policy
from heuristics.resources import Record, known
from heuristics.roster import Roster, roster
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem, Refusal, TileConfig
from tests.heuristics.fakes import H200, LARGE, PROBLEM, SMALL, entry, table, variant
from tests.heuristics.test_cold import problems


def some(count):
    """Distinct problems off every grid."""
    found = problems(random.Random(count))
    return [next(found) for _ in range(count)]


@pytest.mark.parametrize("fastest", [False, True])
def test_the_variants_that_take_a_problem_are_those_that_say_so(fastest):
    kept = Roster(VARIANTS, H200)
    for problem in some(300):
        found = kept.able(problem, fastest)
        asked = [one for one in VARIANTS if one.supports(problem, H200) is None and (fastest or one.name != "aten")]
        assert list(found.values()) == asked
        assert list(found) == [one.name for one in asked]


def test_a_rule_that_declares_nothing_is_asked_about_every_problem():
    picky = variant("tiled", refuses=lambda problem: problem.m == 7)
    kept = Roster((*VARIANTS[:3], picky), H200)
    for m in (7, 8, 7):
        assert ("tiled" in kept.able(GemmProblem.of(m, 64, 64), False)) == (m != 7)


def test_a_variant_with_another_rule_makes_no_claim_for_it():
    refusal = Refusal("suspended", "it is suspended", "another")
    suspended = replace(VARIANTS[4], supports=lambda problem, arch: refusal)
    assert suspended.name == "tiled"
    assert "tiled" not in roster((suspended, VARIANTS[3]), H200).able(PROBLEM, False)
    assert "tiled" in roster(VARIANTS, H200).able(PROBLEM, False)


def test_what_is_excluded_is_left_out_of_what_is_kept():
    may = Eligibility(PROBLEM, H200, VARIANTS, None, Policy(exclude=frozenset({"tma"})))
    assert "tma" not in may.able()
    assert "tma" in Eligibility(PROBLEM, H200, VARIANTS, None, Policy()).able()


@pytest.mark.parametrize("data", [None, known(90, "3.7.1")], ids=["unknown", "known"])
def test_tiles_that_are_known_to_serve_do(data):
    sound = {}
    for problem in some(60):
        first, again = Legality(problem, H200, data, sound), Legality(problem, H200, data, sound)
        plain = Legality(problem, H200, data)
        for one in VARIANTS:
            for tile in one.space(problem, H200):
                assert first.refusal(one, tile) == again.refusal(one, tile) == plain.refusal(one, tile)
    assert sound


def test_tiles_known_by_one_table_of_resources_are_asked_of_another():
    sound = {}
    data = known(90, "3.7.1")
    tiled = next(one for one in VARIANTS if one.name == "tiled")
    tile = tiled.space(PROBLEM, H200)[6]
    assert Legality(PROBLEM, H200, None, sound).refusal(tiled, tile) is None
    poorer = replace(data, records=dict.fromkeys(data.records, Record("no", "no", "no")))
    assert Legality(PROBLEM, H200, poorer, sound).refusal(tiled, tile).rule == "compiler"


def test_a_row_that_stands_for_one_caller_does_not_for_another():
    row = entry(name="aten", tile=None)
    rows = table(replace(row, key=replace(row.key, m=1200)))
    zoo = (variant("tiled"), variant("aten", (), opaque=True))
    assert choose(PROBLEM, H200, zoo, (rows,), policy=Policy(prefer="fastest")).variant == "aten"
    assert choose(PROBLEM, H200, zoo, (rows,)).variant == "tiled"


def in_full(times, numbers):
    """The order as it is defined: sorted, then groups of equals by what else they need."""
    order, start = sorted(range(len(times)), key=lambda index: (math.isnan(times[index]), times[index], index)), 0
    while start < len(order):
        stop = start + 1
        while stop < min(len(order), start + 8) and times[order[stop]] <= 1.005 * times[order[start]]:
            stop += 1
        yield from sorted(order[start:stop], key=lambda index: (needs(PAIRS.pairs[numbers[index]][1]), index))
        start = stop


def needs(tile):
    """Partial sums, then bytes moved for a product."""
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    return (tile.split_k if tile.split_k > 1 else 0, (m * k + n * k + m * n) / (m * n * k))


TIMES = st.one_of(st.floats(1.0, 1.02), st.floats(1.0, 9.0), st.sampled_from((1.0, 1.004, math.inf, math.nan)))
NUMBERED = PAIRS.numbers("tiled", [TileConfig(m, n, 64, split_k=s) for m in (64, 128) for n in (64, 128) for s in (1, 2)])


@given(st.lists(st.tuples(TIMES, st.sampled_from(NUMBERED)), max_size=24))
def test_the_best_is_found_as_if_all_were_sorted(given_times):
    times, numbers = [time for time, _ in given_times], [number for _, number in given_times]
    assert list(best_first(np.array(times, float), numbers)) == list(in_full(times, numbers))


def test_spaces_joined_are_their_rows_one_after_the_other():
    pairs = Pairs()
    spaces = [("tiled", (SMALL, LARGE)), ("gemv", (SMALL,)), ("aten", (None,))]
    first = pairs.joined(spaces)
    assert [pairs.pairs[number] for number in first] == [("tiled", SMALL), ("tiled", LARGE), ("gemv", SMALL), ("aten", None)]
    assert pairs.joined(list(spaces)) is first
    assert pairs.joined([("persistent", spaces[0][1]), *spaces[1:]]).tolist() != first.tolist()
    assert pairs.joined([]).tolist() == []


def test_a_tile_brings_its_other_splits():
    pairs = Pairs()
    split = replace(SMALL, split_k=3)
    (number,) = pairs.numbers("split_k", (split,))
    assert pairs.pairs[number] == ("split_k", split)
    count = len(pairs)
    pairs.numbers("split_k", [replace(SMALL, split_k=splits) for splits in (2, 3, 16, 64)])
    assert len(pairs) == count
