"""The generator of test cases itself."""

from itertools import combinations

from tests.kernel_zoo.pairwise import cover

PARAMETERS = {"a": (1, 2, 3, 4), "b": ("x", "y", "z"), "c": (True, False), "d": (0, 1, 2), "e": tuple("pqrs")}


def pairs(row):
    return {(p, row[p], q, row[q]) for p, q in combinations(PARAMETERS, 2)}


def all_pairs():
    return {(p, x, q, y) for p, q in combinations(PARAMETERS, 2) for x in PARAMETERS[p] for y in PARAMETERS[q]}


def test_every_pair_is_met_in_far_fewer_rows_than_the_cross():
    found = cover(PARAMETERS, dict)
    assert set().union(*map(pairs, found.cases)) == all_pairs()
    assert len(found.cases) <= 24 < 4 * 3 * 2 * 3 * 4
    assert not found.infeasible


def test_an_illegal_row_is_replaced_until_every_legal_pair_is_met():
    def make(row):
        return None if (row["a"] == 1 and row["c"]) or (row["b"] == "x" and row["e"] in "pq") else dict(row)

    found = cover(PARAMETERS, make)
    assert found.refused > 0
    illegal = {("a", 1, "c", True), ("b", "x", "e", "p"), ("b", "x", "e", "q")}
    assert found.infeasible == illegal
    assert set().union(*map(pairs, found.cases)) == all_pairs() - illegal


def test_the_same_seed_gives_the_same_rows_and_a_limit_keeps_the_most_useful():
    assert cover(PARAMETERS, dict, seed=3).cases == cover(PARAMETERS, dict, seed=3).cases
    few = cover(PARAMETERS, dict, limit=5).cases
    assert len(few) == 5
    assert len(set().union(*map(pairs, few))) > 0.4 * len(all_pairs())
