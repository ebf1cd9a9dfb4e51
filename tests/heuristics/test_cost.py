"""The formulas as arrays: values kept from before, one candidate or many, one problem or one per candidate."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heuristics import coefficients
from heuristics.archs import ARCHS
from heuristics.coefficients import COEFFICIENTS, in_force
from heuristics.cost import Scorer, Sizes, costs, times_us
from heuristics.pairs import PAIRS, Pairs, corrected_as
from heuristics.schema import parse_tile
from heuristics.tile_cost import ProblemClass, Setting, setting
from kernel_zoo.kernels import split_k
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig
from tests.heuristics.fakes import H200

KEPT = Path(__file__).with_name("cost_reference.json")
FITTED = {"tma": {"launch": 3.0, "compute": 0.5}, "gemv": {"port": 0.3, "second": 4.0}, "split_k": {"overlap": 1.5}}


def problem(m, n, k, batch, dtype, layout, precision, aligns, epilogue):
    """A problem from a kept line; `epilogue` is "", or C's dtype, the bias's and an activation."""
    made = GemmProblem.of(m, n, k, dtype, layout, batch=batch, precision=precision)
    if epilogue:
        c, bias, activation = epilogue.split("/")
        made = replace(
            made,
            epilogue=Epilogue(
                beta="1" if c else "0",
                c=Operand.dense(c, m, n, batch=batch) if c else None,
                bias=Operand(bias, m, n, (0, 0, 1)) if bias else None,
                activation=activation,
            ),
        )
    return replace(made, a=replace(made.a, align=aligns[0]), b=replace(made.b, align=aligns[1]))


def kept():
    """(problem, device, variant, tile, fitted, parts, time) of every line."""
    for line in json.loads(KEPT.read_text()):
        *about, device, variant, tile, fitted, parts = line
        yield problem(*about), ARCHS[device], variant, parse_tile(tile) if tile else None, FITTED if fitted else None, parts


@pytest.mark.parametrize(("given", "arch", "variant", "tile", "fitted", "parts"), list(kept()))
def test_estimates_are_what_they_were(given, arch, variant, tile, fitted, parts):
    # A deliberate change of the formulas or coefficients writes new values: python -m tests.heuristics.test_cost
    made = Scorer(given, arch, fitted).estimate(variant, tile)
    assert made.time_us == pytest.approx(parts["total"], rel=1e-9)
    assert dict(made.parts) == pytest.approx({name: us for name, us in parts.items() if name != "total"}, rel=1e-9, abs=1e-12)


def rewrite() -> None:
    """Write what the formulas say now."""
    lines = []
    for line, (given, arch, variant, tile, fitted, _) in zip(json.loads(KEPT.read_text()), kept(), strict=True):
        made = Scorer(given, arch, fitted).estimate(variant, tile)
        lines.append(json.dumps([*line[:-1], {"total": made.time_us, **made.parts}]))
    KEPT.write_text("[\n" + ",\n".join(lines) + "\n]\n")


TILES = (TileConfig(64, 64, 64), TileConfig(128, 256, 64, num_warps=8, knobs=(("persistent", 1),)), TileConfig(64, 16, 128, 1, 4))
PICKS = [("tma", TILES[0]), ("gemv", TileConfig(1, 4, 512, 1, 2, 4, 1)), ("aten", None), ("split_k", TILES[2]), ("tma", TILES[1])]


def test_many_candidates_cost_what_each_costs_alone():
    given = GemmProblem.of(3, 4096, 8192, "bf16", "nt")
    together = times_us(given, H200, PICKS)
    assert together.tolist() == [Scorer(given, H200).time_us(*pick) for pick in PICKS]
    assert times_us(given, H200, PICKS[::-1]).tolist() == together.tolist()[::-1]
    assert times_us(given, H200, []).tolist() == []


def test_a_problem_per_candidate_costs_what_each_costs_alone():
    given = [
        GemmProblem.of(m, n, k, "bf16", "nt")
        for m, n, k in ((3, 4096, 8192), (5000, 2, 776), (64, 64, 64), (9000, 9000, 4096), (17, 40000, 5120))
    ]
    sizes = Sizes(*(np.array(column, float) for column in zip(*map(Sizes.of, given), strict=True)))
    here = setting(ProblemClass.of(given[0]), H200, in_force(None))
    rows = np.array([PAIRS.numbers(variant, (tile,))[0] for variant, tile in PICKS])
    alone = [Scorer(one, H200).time_us(*pick) for one, pick in zip(given, PICKS, strict=True)]
    library = np.array([Scorer(one, H200).estimate("aten", None).parts["product"] for one in given])
    assert costs(here, rows, sizes, lambda: library).total.tolist() == pytest.approx(alone, rel=1e-12)


def test_costs_worked_out_while_another_thread_works_them_out_too(monkeypatch):
    """Each asks for its own pairs and gets theirs, whatever the other has kept meanwhile."""
    given = GemmProblem.of(640, 320, 512, "bf16", "nt")
    mine = Setting(ProblemClass.of(given), H200, in_force(None))
    picks = np.array(PAIRS.numbers("tiled", [TileConfig(64, 64, size) for size in (32, 64, 128)]))
    wanted = mine.costs(picks)
    mine._costs = mine._costs[:0]
    real = type(mine)._loops

    def interrupted(self, t):
        found = real(self, t)
        if not len(self._costs):
            monkeypatch.setattr(type(mine), "_loops", real)
            self.costs(picks)
        return found

    monkeypatch.setattr(type(mine), "_loops", interrupted)
    for one, other in zip(mine.costs(picks), wanted, strict=True):
        assert one.tolist() == other.tolist()


def test_a_mapping_is_read_once_and_another_is_another():
    given, fitted = GemmProblem.of(2048, 2048, 2048), {"tma": {"launch": 5.0}}  # too long for a launch to begin early
    before = times_us(given, H200, PICKS[:1], fitted)[0]
    assert in_force(fitted) is in_force(fitted)
    assert times_us(given, H200, PICKS[:1], {"tma": {"launch": 7.0}})[0] == pytest.approx(before + 2.0)


def test_a_tile_is_corrected_in_its_own_loop_only():
    given = GemmProblem.of(64, 64, 64)
    before = times_us(given, H200, PICKS[:1])[0]
    name, tile = PICKS[0]
    text = corrected_as(tile)
    assert times_us(given, H200, PICKS[:1], {f"{name} {text}": {"work": 1.0, "total": 1.5}})[0] == pytest.approx(1.5 * before)
    assert times_us(given, H200, PICKS[:1], {f"another {text}": {"work": 1.0, "total": 1.5}})[0] == before


def test_a_tile_s_ends_are_corrected_alone():
    given = GemmProblem.of(4096, 4096, 4096, "bf16", "nt")
    name = f"tma {corrected_as(TILES[0])}"
    before, after = (Scorer(given, H200, fitted).estimate("tma", TILES[0]).parts for fitted in ({}, {name: {"ends": 2.0}}))
    assert before["fill and store"] < after["fill and store"] < 2 * before["fill and store"]  # the first block's way stays
    assert after["main loop"] == before["main loop"]


@pytest.mark.parametrize(("pick", "way"), [(PICKS[0], "tma"), (PICKS[1], "gemv along")])
def test_what_a_table_does_not_correct_one_by_one_is_corrected_as_other(pick, way):
    given = GemmProblem.of(3, 4096, 8192, "bf16", "nt")
    other, own = {f"{way} other": {"total": 2.0}}, {f"{way} {corrected_as(pick[1])}": {"total": 3.0}}
    plain, as_other, as_own = (times_us(given, H200, [pick], fitted)[0] for fitted in ({}, other, other | own))
    assert (as_other, as_own) == pytest.approx((2 * plain, 3 * plain))


def test_lines_of_an_odd_pitch_cost_traffic():
    even, odd = (GemmProblem.of(4096, n, 4096, "bf16", "nn") for n in (4096, 4104))
    assert odd.b.leading * 2 % 32 == 16
    assert times_us(odd, H200, PICKS[:1])[0] > 1.05 * times_us(even, H200, PICKS[:1])[0]


def test_a_ragged_k_costs_a_pointer_loop_a_tail():
    tile = TileConfig(64, 64, 64, num_stages=4)
    whole, tail = (times_us(GemmProblem.of(512, 512, k, "bf16", "nt"), H200, [("tiled", tile)])[0] for k in (512, 520))
    assert tail > whole + 0.4


def test_what_is_remembered_of_mappings_is_bounded():
    for launch in range(100):
        in_force({"tma": {"launch": float(launch)}})
    assert len(coefficients._recent) <= coefficients._KEPT


@pytest.mark.parametrize(
    "absurd", [{"compute": 0.0}, {"overlap": 0.0}, {"overlap": 1e6}, {"stream": 1e-320}, {"fill": float("nan")}]
)
def test_coefficients_that_give_no_time_warn_of_nothing_and_rank_last(absurd):
    given = GemmProblem.of(2048, 2048, 2048)
    times = times_us(given, H200, [("tma", TILES[0]), ("tiled", TILES[0])], {"tma": absurd})
    assert np.isfinite(times[0]) or times.argsort()[0] == 1


def test_unknown_coefficients_are_ignored():
    assert in_force({"tma": {"fit_error": 0.1}})["tma"] == COEFFICIENTS["tma"]


def test_pairs_keep_their_numbers_however_often_a_tile_is_made():
    pairs = Pairs()
    first = pairs.numbers("one", TILES)
    again = pairs.numbers("one", [replace(tile) for tile in TILES])
    assert first == again == [0, 1, 2]
    known = len(pairs)  # a split tile has brought its other splits
    assert pairs.numbers("two", TILES[:1]) == [known]
    assert pairs.numbers("one", (None,)) == [known + 1]
    many = [TileConfig(m, 8, 8) for m in range(1, 1000)]  # more than there is room for at first
    assert pairs.numbers("one", many) == list(range(known + 2, known + 2 + len(many)))
    assert pairs.columns(known + 2, len(pairs)).block_m.tolist() == list(range(1, 1000))
    assert pairs.numbers("one", TILES) == first


def test_a_split_tile_is_numbered_with_every_count_that_is_proposed():
    tiles = split_k.space(GemmProblem.of(128, 576, 7168, "bf16", "nt"), H200)
    mine = [tile for tile in tiles if replace(tile, split_k=2) == replace(tiles[0], split_k=2)]
    assert {tile.split_k for tile in mine} > {7, 9}
    pairs = Pairs()
    pairs.numbers("split_k", mine[:1])
    known = len(pairs)
    pairs.numbers("split_k", mine)
    assert len(pairs) == known


def test_objects_that_come_and_go_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("heuristics.pairs._KEPT", 8)
    pairs = Pairs()
    pairs.numbers("one", TILES)
    count = len(pairs)
    for _ in range(50):
        assert pairs.numbers("one", [replace(tile) for tile in TILES]) == [0, 1, 2]
    assert len(pairs._alive) <= 8
    assert len(pairs) == count


def test_the_rows_of_a_tuple_are_kept_and_of_a_list_are_not():
    pairs, given = Pairs(), tuple(TILES)
    rows = pairs.rows("one", given)
    assert rows.tolist() == pairs.numbers("one", given)
    assert pairs.rows("one", given) is rows
    assert pairs.rows("two", given).tolist() != rows.tolist()
    assert pairs.rows("one", list(given)) is not rows
    assert pairs.among(rows, rows[1:]).tolist() == [False] + [True] * (len(rows) - 1)


def test_pairs_of_others_are_not_worked_out_until_they_are_asked_for():
    mine = Setting(ProblemClass.of(GemmProblem.of(64, 64, 64)), H200, in_force(None))
    old = np.array(PAIRS.numbers("tiled", TILES[:1]))
    mine.costs(old)
    there = len(mine._costs)
    new = np.array(PAIRS.numbers("tiled", [TileConfig(64, 64, 64, num_stages=31)]))
    mine.costs(old)
    assert len(mine._costs) == there
    assert mine.costs(new).spans[3].tolist() == [64.0]
    assert len(mine._costs) == len(PAIRS)


if __name__ == "__main__":
    rewrite()
