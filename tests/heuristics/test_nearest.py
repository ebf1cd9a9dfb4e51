"""What rows near a problem propose, and how far they correct the model."""

import math
from dataclasses import replace

import pytest

from heuristics import nearest
from heuristics.model import times_us
from heuristics.nearest import Row, weighed
from heuristics.pairs import PAIRS
from heuristics.table import problem_key, problem_of
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import H100_ENVIRONMENT, H200, LARGE, PROBLEM, SMALL, entry, runner_up, table

KEY = problem_key(PROBLEM)
NONE = table()
FIRST, SECOND = PAIRS.numbers("tiled", (SMALL, LARGE))


def of(m, **more):
    return entry(GemmProblem.of(m, 1024, 1024, "bf16", "nt"), **more)


def row(far, **errors):
    """A row whose measurements err by so much: small=, large=."""
    made = entry(tile=SMALL, runner_ups=(runner_up(tile=LARGE),))
    factors = [errors.get("small", 1.0), errors.get("large", 1.0)]
    return Row(far, NONE, made, made.measurements, [FIRST, SECOND], [math.log(error) for error in factors])


def near(*tables, foreign=()):
    return nearest.near(KEY, H200, tables, foreign, None)


def test_a_tile_of_several_rows_is_corrected_by_their_mean():
    picks, factors, _ = weighed([row(0.0, small=1.2), row(0.0, small=1.2 * 1.21)], lambda *_: True)
    assert list(picks) == [FIRST, SECOND]
    assert factors == pytest.approx([1.2 * 1.1, 1.0])


def test_the_nearer_row_counts_more_and_gives_the_distance():
    rows = [row(0.1, small=1.5), row(0.8, small=0.6)]
    picks, factors, _ = weighed(rows, lambda *_: True)
    assert picks[FIRST] is rows[0]
    assert 1.0 < factors[0] < 1.5


def test_a_far_row_corrects_less():
    near_by, far = (weighed([row(far, small=1.5)], lambda *_: True)[1][0] for far in (0.0, 0.9))
    assert near_by == pytest.approx(1.5)
    assert 1.0 < far < 1.5


def test_other_tiles_are_corrected_by_the_mean_of_all_and_held_back():
    _, _, alone = weighed([row(0.3)], lambda *_: True)
    _, _, slow = weighed([row(0.3, small=1.2, large=1.2)], lambda *_: True)
    assert alone > 1.0
    assert slow == pytest.approx(1.2 * alone)


def test_what_is_no_evidence_proposes_nothing_and_corrects_nothing():
    picks, factors, elsewhere = weighed([row(0.3, small=1.9)], lambda owner, seen, winner: not winner)
    assert (list(picks), factors) == ([SECOND], [1.0])
    assert elsewhere == weighed([row(0.3)], lambda *_: True)[2]
    assert weighed([row(0.3)], lambda *_: False)[0] == {}


def test_errors_are_measured_over_estimated_times_of_the_row_itself():
    entries = [
        of(700, tile=SMALL, time_us=50.0, runner_ups=(runner_up(tile=LARGE, time_us=20.0),)),
        of(1500, tile=LARGE, time_us=30.0),
    ]
    for found in near(table(*entries)):
        estimates = times_us(problem_of(found.entry.key), H200, [(seen.variant, seen.tile) for seen in found.seen])
        expected = [seen.time_us / estimate for seen, estimate in zip(found.seen, estimates, strict=True)]
        limited = [min(max(error, 0.5), 2.0) for error in expected]
        assert [math.exp(error) for error in found.errors] == pytest.approx(limited)
        assert found.numbers == [PAIRS.numbers(seen.variant, (seen.tile,))[0] for seen in found.seen]


def test_when_programs_start_is_not_handed_on():
    """A row's tile is proposed without its knob `early`: which start is faster is each problem's own affair."""
    early = replace(SMALL, knobs=(("early", 1),))
    (found,) = near(table(entry(PROBLEM, tile=early, runner_ups=(runner_up(tile=LARGE),))))
    assert found.numbers == [FIRST, SECOND]
    assert found.seen[0].tile == early


def test_three_rows_are_near_and_none_beyond_an_octave():
    rows = table(*(of(m) for m in (400, 700, 900, 1100, 1500, 2500)))
    found = near(rows)
    assert [item.entry.key.m for item in found] == [1100, 900, 700]
    assert near(table(of(400), of(2500))) == []


def test_another_devices_rows_are_farther_and_say_nothing_of_errors():
    own, other = table(of(900)), table(of(1000), environment=H100_ENVIRONMENT)
    found = near(own, foreign=(other,))
    assert [item.table for item in found] == [own, other]
    assert found[1].errors is None
    assert found[1].far == pytest.approx(0.25 + math.log2(1024 / 1000))
    assert near(foreign=(table(of(1900), environment=H100_ENVIRONMENT),)) == []


def test_modelled_rows_propose_and_say_nothing_of_errors():
    (found,) = near(table(of(900, source="modelled", time_us=1.0)))
    assert found.errors is None
    assert weighed([found], lambda *_: True)[1] == [1.0]
