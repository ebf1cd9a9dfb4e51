"""Fitting: known coefficients are found again from times they made, and what is written into a table is what the model reads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from heuristics import model
from heuristics.archs import ARCHS
from heuristics.coefficients import Coefficients, Kernels
from heuristics.cost import Scorer
from heuristics.fit import fit
from heuristics.fit_data import Measurements
from heuristics.fit_loss import caution
from heuristics.legality import Legality
from heuristics.pairs import corrected_as
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem, TileConfig

H200 = ARCHS["h200"]
ZOO = [variant for variant in VARIANTS if variant.name != "aten"]
PROBLEMS = [
    GemmProblem.of(m, n, k, "bf16", layout)
    for m, n, k, layout in (
        (256, 1024, 2048, "nt"), (512, 1536, 1024, "nn"), (1024, 1024, 520, "nt"), (2048, 768, 4096, "nn"),
        (16, 4096, 4096, "nt"), (1, 4096, 1024, "nt"), (300, 301, 500, "nn"), (4096, 4096, 512, "nt"),
    )
]  # fmt: skip
#: A world in which one loop is slower than the built-in coefficients say, and one tile slower still.
WORLD = {
    "tma": {"step": 0.3, "fill": 2.0},
    "tma resident": {"compute": 0.5},
    "tma 64x64x64 w4 s4": {"work": 1.0, "total": 1.5},
    "pitch": {"16": 3.0},
}


def times(problem: GemmProblem, fitted: dict[str, dict[str, float]]) -> dict:
    ranked = model.rank(Legality(problem, H200), ZOO)
    picks = [(candidate.variant, candidate.tile) for candidate in ranked[:24]]
    return dict(zip(picks, Scorer(problem, H200, fitted).times(picks).tolist(), strict=True))


@pytest.fixture(scope="module")
def report():
    return fit([(problem, times(problem, WORLD)) for problem in PROBLEMS], H200, steps=40)


def test_the_first_pick_gets_better(report):
    assert (report.problems, report.times) == (len(PROBLEMS), 24 * len(PROBLEMS))
    assert report.before < 0.99
    assert report.after > report.before
    assert report.after > 0.985


def test_estimates_come_closer(report):
    def error(fitted):
        found = [
            abs(math.log(us / seen))
            for problem in PROBLEMS
            for us, seen in zip(times(problem, fitted).values(), times(problem, WORLD).values(), strict=True)
        ]
        return sum(found) / len(found)

    assert error(report.model) < 0.5 * error({})


def test_every_loop_has_all_its_coefficients_and_its_error(report):
    names = set(Coefficients.__slots__) | {"fit_error"}
    loops = {name: values for name, values in report.model.items() if not {"work", "total"} & set(values) and name != "pitch"}
    assert {"tma", "tma resident", "gemv"} <= set(loops)
    for values in loops.values():
        assert set(values) == names
        assert all(math.isfinite(value) and value >= 0 for value in values.values())
    assert set(report.model["pitch"]) == {"64", "32", "16"}


def test_the_slower_loop_was_found(report):
    assert report.model["tma resident"]["compute"] < 0.85


def test_what_has_no_times_stays_as_it_was():
    seen = {pick: us for pick, us in times(PROBLEMS[0], WORLD).items() if pick[0] != "gemv"}
    stay = ("tma tf32", "tma tf32 64x64x64 w4 s4", "tiled 2-byte 32x32x32 w4 s4", "gemv along 1x1x1 w1 s1")
    gone = ("tma", "tma 32x32x32 w1 s1", "ping_pong resident 32x32x32 w1 s1")
    given = {name: {"work": 3.0, "total": 3.0} for name in (*stay, *gone)}
    assert {"tma", "ping_pong resident"} <= {*fit([(PROBLEMS[0], seen)], H200, 1).model}
    found = fit([(PROBLEMS[0], seen)], H200, 1, given=given).model
    assert {name for name, values in given.items() if found.get(name) == values} == set(stay)


def test_a_fit_starts_from_the_table():
    seen = [(PROBLEMS[0], times(PROBLEMS[0], WORLD))]
    fresh, known = (fit(seen, H200, 1, given=given).model["tma"]["fill"] for given in ({}, {"tma": {"fill": 9.0}}))
    assert fresh < 1.0
    assert known > 8.0


def test_a_start_that_a_tile_decides_is_not_fitted_to():
    seen = times(PROBLEMS[0], WORLD)
    more = {(name, replace(tile, knobs=(*tile.knobs, ("early", 1)))): 2 * us for (name, tile), us in seen.items()}
    with_them, without = (fit([(PROBLEMS[0], given)], H200, 2) for given in (seen | more, seen))
    assert with_them == without


def test_a_tile_that_errs_is_held_back():
    """Two tiles are off by nothing on the mean, one of them by 20% up and down."""
    first, second = TileConfig(64, 64, 64, num_stages=4), TileConfig(64, 128, 64, num_stages=4)
    problems = [GemmProblem.of(256 * i, 1024, 1024, "bf16", "nt") for i in range(1, 41)]
    seen = []
    for index, problem in enumerate(problems):
        picks = [("tma", first), ("tma", second)]
        exact = dict(zip(picks, Scorer(problem, H200).times(picks).tolist(), strict=True))
        exact["tiled", first] = exact["tma", first]
        seen.append((problem, exact | {picks[1]: exact[picks[1]] * (1.2 if index % 2 else 1 / 1.2)}))
    data = Measurements(seen, H200)
    there = {
        (variant, tile): place for place, (variant, tile) in enumerate((name.split(" ")[0], tile) for name, tile in data.tiles)
    }
    held, _ = caution(data, np.log(data.estimates(Kernels({}))))
    steady, unsteady = (held[there["tma", corrected_as(tile)]] for tile in (first, second))
    assert unsteady > 1.02 * steady


def test_steps_are_told():
    told: list[int] = []
    fit([(PROBLEMS[0], times(PROBLEMS[0], WORLD))], H200, 3, told.append)
    assert told == [1, 2, 3]


def test_nothing_to_fit():
    with pytest.raises(ValueError, match="no times were given"):
        fit([], H200)
