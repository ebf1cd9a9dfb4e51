"""What pruning drops, what it keeps, and what takes the place of a winner that cannot serve."""

from dataclasses import replace

import pytest

from heuristics.pruning import Wanted, prune
from heuristics.table import problem_key
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import H200_ENVIRONMENT, LARGE, PROBLEM, SMALL, SPLIT, SPLIT_K, ZOO, entry, runner_up, table, variant

OTHER = GemmProblem.of(96, 64, 64, "bf16", "nt")


def dropped(rows, wanted=Wanted(), zoo=ZOO, **more):  # noqa: B008  (frozen)
    left, gone = prune(table(*rows), zoo, wanted, **more)
    return left.entries, [(drop.what, drop.kind, drop.key.m) for drop in gone]


def test_a_sound_table_stays_as_it_is():
    rows = (entry(runner_ups=(runner_up(),)), entry(OTHER, "split_k", SPLIT))
    assert dropped(rows) == (rows, [])


def test_a_stale_row_goes_and_says_why():
    left, gone = prune(table(entry(digest="0ld"), entry(OTHER)), ZOO, Wanted())
    assert left.entries == (entry(OTHER),)
    assert str(gone[0]) == "stale: 1024 x 1024 x 1024 16bit nt: measured on kernel 0ld of tiled, which is now d-tiled"


def test_a_runner_up_that_can_serve_takes_the_place_of_a_winner_that_cannot():
    picky = variant("tiled", refuses_tile=lambda problem, tile: tile == SMALL)
    row = entry(
        low_us=9.0, high_us=11.0, runner_ups=(runner_up("tiled", LARGE, 12.0, "d-tiled"), runner_up("split_k", SPLIT, 13.0))
    )
    (left,), gone = dropped((row,), zoo=(picky, SPLIT_K))
    assert (left.variant, left.tile, left.time_us, left.low_us, left.high_us) == ("tiled", LARGE, 12.0, None, None)
    assert [seen.variant for seen in left.runner_ups] == ["split_k"]
    assert gone == [("part", "illegal", 1024)]


def test_a_stale_runner_up_goes_alone():
    row = entry(runner_ups=(runner_up("split_k", SPLIT, 11.0, "0ld"), runner_up("tiled", LARGE, 12.0)))
    (left,), gone = dropped((row,))
    assert (left.variant, left.runner_ups) == ("tiled", row.runner_ups[1:])
    assert gone == [("part", "stale", 1024)]


def test_a_variant_that_another_program_registers_stays_unless_asked():
    rows = (entry(name="me.own"),)
    assert dropped(rows) == (rows, [])
    assert dropped(rows, Wanted(unknown=True)) == ((), [("row", "unknown", 1024)])


def test_rows_before_a_date_go_and_undated_ones_stay():
    rows = (entry(date="2026-01-31"), entry(OTHER, date="2026-02-01"), entry(replace(OTHER, m=97)))
    assert dropped(rows, Wanted(before="2026-02-01")) == (rows[1:], [("row", "old", 1024)])


def test_rows_that_did_not_pass_the_gate_go():
    rows = (entry(), entry(OTHER))
    wanted = Wanted(gate=((problem_key(OTHER), "triton 3.6.0: 4 local-memory accesses"),))
    assert dropped(rows, wanted) == (rows[:1], [("row", "gate", 96)])


def test_a_row_that_the_ladder_answers_as_well_without_is_redundant():
    near = [GemmProblem.of(m, 1024, 1024, "bf16", "nt") for m in (1000, 1024, 1050)]
    rows = [entry(problem, tile=LARGE, runner_ups=(runner_up(tile=SMALL, time_us=20.0),)) for problem in near]
    left, gone = dropped(rows, Wanted(redundant=True))
    assert 1 <= len(left) < 3
    assert {kind for _, kind, _ in gone} == {"redundant"}
    again, _ = prune(table(*left), ZOO, Wanted(redundant=True))
    assert set(again.entries) <= set(left)


def test_a_row_whose_answer_would_be_worse_without_is_not_redundant():
    rows = (entry(tile=LARGE, time_us=10.0, runner_ups=(runner_up(tile=SMALL, time_us=10.5), runner_up("split_k", SPLIT, 12.0))),)
    flipped = (
        entry(tile=SMALL, time_us=10.0, runner_ups=(runner_up(tile=LARGE, time_us=10.5), runner_up("split_k", SPLIT, 12.0))),
    )
    kept = [len(dropped(some, Wanted(redundant=True))[0]) for some in (rows, flipped)]
    assert kept.count(1) >= 1  # the model prefers one of the two tiles: the other's row is needed


def test_a_row_of_another_table_makes_the_same_row_redundant():
    packaged = replace(table(entry(tile=LARGE)), origin="packaged", name="packaged h200")
    left, gone = dropped((entry(tile=LARGE),), Wanted(redundant=True), others=[packaged])
    assert left == ()
    assert gone == [("row", "redundant", 1024)]


def test_an_unlisted_device_needs_one_named():
    unlisted = table(environment=replace(H200_ENVIRONMENT, gpu_name="NVIDIA X1"))
    with pytest.raises(ValueError, match="NVIDIA X1, whose limits are not listed"):
        prune(unlisted, ZOO, Wanted())


def test_the_rest_of_the_table_is_untouched():
    full = replace(table(entry(digest="0ld"), model={"tiled": {"compute": 0.7}}), description="made up", protocol={"rounds": 5})
    left, _ = prune(full, ZOO, Wanted())
    assert replace(left, entries=full.entries) == full
    assert PROBLEM.m == 1024
