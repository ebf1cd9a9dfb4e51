"""The ladder, rung by rung, with variants made up for it."""

import re
import warnings
from dataclasses import replace

import pytest

from heuristics.choose import ForcedVariantError, NoVariantError, Policy, UnknownVariantError, choose
from heuristics.model import estimate
from heuristics.notices import TableWarning
from heuristics.resources import Record, ResourceTable
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, Resources, TileConfig, binary_class, tile_key
from tests.heuristics.fakes import (
    A100_ENVIRONMENT,
    H100_ENVIRONMENT,
    H200,
    LARGE,
    NET,
    PROBLEM,
    SMALL,
    SPLIT,
    SPLIT_K,
    TILED,
    ZOO,
    entry,
    runner_up,
    table,
    variant,
)


def pick(problem=PROBLEM, variants=ZOO, tables=(), arch=H200, resources=None, **policy):
    chosen = choose(problem, arch, variants, tables, resources, Policy(**policy))
    assert chosen.reason
    assert "\n" not in chosen.reason
    return chosen


def brief(selection):
    return (selection.variant, selection.tile, selection.rung)


NEARBY = GemmProblem.of(1040, 1024, 1024, "bf16", "nt")
FAR = GemmProblem.of(4096, 1024, 1024, "bf16", "nt")
USER = variant("me.own", origin="user")


# exact


def test_a_users_row_is_exact_and_comes_before_a_packaged_one():
    packaged = table(entry(name="split_k", tile=SPLIT), origin="packaged", name="packaged h200")
    mine = table(entry(tile=LARGE))
    found = pick(tables=(packaged, mine))
    assert brief(found) == ("tiled", LARGE, "exact")
    assert (found.table, found.distance, found.measured_us) == ("mine", 0.0, 10.0)
    alone = pick(tables=(packaged,))
    assert (*brief(alone), alone.table) == ("split_k", SPLIT, "exact", "packaged h200")


def test_fp16_is_served_by_a_bf16_row():
    assert pick(GemmProblem.of(1024, 1024, 1024, "fp16", "nt"), tables=(table(entry()),)).rung == "exact"


def test_a_row_of_another_alignment_is_no_hit():
    shifted = replace(PROBLEM, a=replace(PROBLEM.a, align=2))
    assert pick(shifted, tables=(table(entry()),)).rung == "model"


def test_a_table_hit_is_no_licence():
    # The row was legal where it was measured; this call's C lies where the variant cannot read it.
    picky = variant("tiled", refuses=lambda problem: problem.epilogue.c is not None and problem.epilogue.c.align < 16)
    c = Operand("bf16", 1024, 1024, (0, 1024, 1), align=2)
    problem = replace(PROBLEM, epilogue=Epilogue(beta="1", c=c))
    aligned = replace(PROBLEM, epilogue=Epilogue(beta="1", c=replace(c, align=16)))
    row = table(entry(aligned))
    assert pick(aligned, (picky, SPLIT_K), (row,)).variant == "tiled"
    found = pick(problem, (picky, SPLIT_K), (row,))
    assert found.variant == "split_k"
    assert "may not serve: tiled was given 1024 rows; needs others" in found.notes[0]


def test_the_runner_up_serves_where_the_winner_may_not():
    wild = variant("wild", deterministic=False)
    row = table(entry(name="wild", runner_ups=(runner_up("wild"), runner_up("split_k", SPLIT))))
    assert pick(variants=(wild, *ZOO), tables=(row,)).variant == "wild"
    found = pick(replace(PROBLEM, deterministic=True), (wild, *ZOO), (row,))
    assert brief(found) == ("split_k", SPLIT, "exact")
    assert found.measured_us == 11.0
    assert "wild may differ from run to run" in found.notes[0]


def test_a_tile_that_no_longer_fits_is_passed_over():
    picky = variant("tiled", refuses_tile=lambda problem, tile: tile == LARGE)
    found = pick(variants=(picky, NET), tables=(table(entry(tile=LARGE, runner_ups=(runner_up(tile=SMALL),))),))
    assert brief(found) == ("tiled", SMALL, "exact")


def test_another_kernel_is_a_miss_with_one_warning():
    stale = table(*(entry(replace(PROBLEM, m=m), digest="0ld", runner_ups=(runner_up("split_k", SPLIT),)) for m in (1024, 512)))
    said = []
    for m in (1024, 512):
        with warnings.catch_warnings(record=True, action="always", category=TableWarning) as caught:
            assert pick(replace(PROBLEM, m=m), (TILED, NET), (stale,)).rung == "model"
        said += [str(warning.message) for warning in caught]
    assert said == [
        "table mine: rows of variant tiled are ignored: they were measured on kernel 0ld, which is now d-tiled; tune again"
    ]


def test_a_row_bound_to_no_kernel_is_taken():
    assert pick(tables=(table(entry(digest="")),)).rung == "exact"


def test_a_row_of_a_variant_that_is_not_here_is_a_miss_with_one_warning():
    with pytest.warns(TableWarning, match=r"rows of variant me\.gone are ignored: it is not registered"):
        assert pick(tables=(table(entry(name="me.gone")),)).rung == "model"
    assert pick(tables=(table(entry(name="me.gone")),)).rung == "model"  # a second warning would be an error here


def test_another_tritons_rows_stay_exact_while_the_kernel_is_the_same():
    assert pick(tables=(table(entry(triton="3.5.0")),)).rung == "exact"


# who may serve unasked


def test_a_packaged_table_may_not_name_the_net_or_a_users_variant():
    for name in ("aten", "me.own"):
        row = table(entry(name=name, tile=None if name == "aten" else SMALL), origin="packaged", name=f"packaged {name}")
        with pytest.warns(TableWarning, match=f"rows of variant {name} are ignored: packaged tables name the zoo's kernels only"):
            assert pick(variants=(*ZOO, USER), tables=(row,)).variant not in ("aten", "me.own")


def test_a_users_table_may_name_either():
    assert brief(pick(tables=(table(entry(name="aten", tile=None)),))) == ("aten", None, "exact")
    assert brief(pick(variants=(*ZOO, USER), tables=(table(entry(name="me.own")),))) == ("me.own", SMALL, "exact")


def test_a_users_variant_does_not_serve_unasked():
    found = pick(variants=(USER, NET))
    assert brief(found) == ("aten", None, "default")
    assert brief(pick(variants=(USER, NET), variant="me.own"))[::2] == ("me.own", "forced")
    reasons = {item.variant: item.refusal.sentence for item in found.refused}
    assert reasons == {"me.own": "me.own is registered by the user; needs to be forced, or named by a row of a table"}


def test_neighbouring_rows_of_the_net_or_a_users_variant_do_not_spread():
    rows = table(entry(name="aten", tile=None), entry(replace(PROBLEM, m=1000), "me.own"))
    assert pick(NEARBY, (*ZOO, USER), (rows,)).rung == "model"


def test_the_net_competes_where_the_fastest_is_preferred():
    row = table(entry(torch_us=8.0), origin="packaged")
    assert pick(tables=(row,)).variant == "tiled"
    fastest = pick(tables=(row,), prefer="fastest")
    assert brief(fastest) == ("aten", None, "exact")
    assert fastest.measured_us == 8.0
    assert pick(tables=(table(entry(torch_us=9.9)),), prefer="fastest").variant == "tiled"  # within the noise
    assert pick(tables=(row,), prefer="fastest", exclude=frozenset({"aten"})).variant == "tiled"


def test_the_net_serves_what_nothing_else_can():
    picky = variant("tiled", refuses=lambda problem: True)
    found = pick(variants=(picky, NET))
    assert brief(found) == ("aten", None, "default")
    assert [item.variant for item in found.refused] == ["tiled"]


def test_without_the_net_what_nothing_can_serve_is_an_error_with_every_reason():
    picky = variant("tiled", refuses=lambda problem: True)
    with pytest.raises(NoVariantError, match="tiled: tiled was given 1024 rows; needs others; aten: aten is excluded") as caught:
        pick(variants=(picky, NET), exclude=frozenset({"aten"}))
    assert isinstance(caught.value, LookupError)
    assert {item.variant for item in caught.value.refused} == {"tiled", "aten"}
    with pytest.raises(NoVariantError, match="none is registered"):
        pick(variants=())


# borrowed and nearest


def test_a_row_of_another_device_is_borrowed_and_reranked():
    # There the split was measured faster; the model, on this device, prefers the plain tile for a square that fills it.
    big = GemmProblem.of(8192, 8192, 512, "bf16", "nt")
    row = entry(big, "split_k", SPLIT, 10.0, runner_ups=(runner_up("tiled", LARGE, 11.0),))
    found = pick(big, tables=(table(row, environment=H100_ENVIRONMENT, name="packaged h100-sxm", origin="packaged"),))
    assert brief(found) == ("tiled", LARGE, "borrowed")
    assert found.table == "packaged h100-sxm"
    assert "NVIDIA H100 80GB HBM3" in found.reason


def test_the_devices_own_row_comes_before_a_borrowed_one():
    borrowed, own = table(entry(tile=LARGE), environment=H100_ENVIRONMENT), table(entry(tile=SMALL), origin="packaged")
    assert brief(pick(tables=(borrowed, own))) == ("tiled", SMALL, "exact")


def test_another_capability_is_not_borrowed():
    assert pick(tables=(table(entry(), environment=A100_ENVIRONMENT),)).rung == "model"


def test_a_near_row_serves_with_its_distance():
    found = pick(NEARBY, tables=(table(entry(tile=LARGE)),))
    assert brief(found) == ("tiled", LARGE, "nearest")
    assert found.distance == pytest.approx(0.022, abs=0.001)
    assert found.table == "mine"


def test_beyond_an_octave_no_row_is_near():
    assert pick(FAR, tables=(table(entry(tile=LARGE)),)).rung == "model"


def test_near_rows_are_reranked_on_the_real_problem_and_by_how_the_model_erred_on_them():
    fewer, more = GemmProblem.of(700, 1024, 1024, "bf16", "nt"), GemmProblem.of(1500, 1024, 1024, "bf16", "nt")

    def by_model(problem, tile):
        return estimate(problem, H200, "tiled", tile).time_us

    def rows(small_error, large_error):
        small = entry(fewer, tile=SMALL, time_us=by_model(fewer, SMALL) * small_error)
        return (table(small, entry(more, tile=LARGE, time_us=by_model(more, LARGE) * large_error)),)

    better = min((SMALL, LARGE), key=lambda tile: by_model(PROBLEM, tile))
    assert brief(pick(tables=rows(1.0, 1.0))) == ("tiled", better, "nearest")
    assert pick(tables=rows(1.0, 0.5)).tile == LARGE
    assert pick(tables=rows(0.5, 1.0)).tile == SMALL


def test_a_borrowed_row_nearby_is_used_where_the_device_has_none():
    found = pick(NEARBY, tables=(table(entry(tile=SMALL), environment=H100_ENVIRONMENT, name="h100"),))
    assert (found.rung, found.table) == ("nearest", "h100")
    assert found.distance == pytest.approx(0.272, abs=0.001)  # a quarter of an octave for being another device's


def test_near_rows_that_may_not_serve_leave_the_model():
    only = variant("tiled", refuses_tile=lambda problem, tile: tile == LARGE)
    found = pick(NEARBY, (only, NET), (table(entry(tile=LARGE)),))
    assert brief(found) == ("tiled", SMALL, "model")


def test_another_tile_that_is_far_better_on_this_problem_is_not_passed_over():
    few, more = GemmProblem.of(60, 8192, 8192, "bf16", "nt"), GemmProblem.of(100, 8192, 8192, "bf16", "nt")
    tiny = TileConfig(16, 16, 16)
    rows = (table(entry(few, tile=tiny, time_us=estimate(few, H200, "tiled", tiny).time_us)),)
    found = pick(more, (TILED, NET), rows)
    assert brief(found) == ("tiled", SMALL, "model")
    assert "well before the tiles of the nearest rows, 0.74 octaves away" in found.reason
    assert found.entry is None
    close = GemmProblem.of(61, 8192, 8192, "bf16", "nt")  # within a fortieth of an octave the rows' tiles alone compete
    assert brief(pick(close, (TILED, NET), rows)) == ("tiled", tiny, "nearest")


def test_near_rows_are_asked_for_legality_until_the_first_legal_one():
    asked = []

    def refuses(problem, tile):
        asked.append(tile)
        return False

    recording = variant("tiled", refuses_tile=refuses)
    rows = table(
        *(entry(GemmProblem.of(m, 1024, 1024, "bf16", "nt"), tile=LARGE, runner_ups=(runner_up(tile=SMALL),)) for m in (900, 1000))
    )
    found = pick(NEARBY, (recording, NET), (rows,))
    assert asked == [found.tile]


# rows


def test_a_pick_says_which_row_it_took():
    row, nearby = entry(tile=LARGE, runner_ups=(runner_up(tile=SMALL),)), table(entry(tile=LARGE))
    only_small = variant("tiled", (SMALL,), refuses_tile=lambda problem, tile: tile == LARGE)
    assert pick(tables=(table(row),)).entry is row
    assert pick(variants=(only_small, NET), tables=(table(row),)).entry is row
    assert pick(tables=(table(row),), variant="tiled").entry is row
    assert pick(NEARBY, tables=(nearby,)).entry is nearby.entries[0]
    borrowed = table(row, environment=H100_ENVIRONMENT)
    assert pick(tables=(borrowed,)).entry is row
    assert pick().entry is None


def test_a_modelled_row_serves_and_says_that_nobody_measured_it():
    row = entry(tile=LARGE, source="modelled")
    found = pick(tables=(table(row),))
    assert brief(found) == ("tiled", LARGE, "exact")
    assert found.reason == "the row of this very problem is the model's: nobody measured it"
    assert found.measured_us is None
    assert found.entry is row
    assert "the modelled one" in pick(tables=(table(row),), variant="tiled").reason


def test_a_modelled_row_nearby_does_not_correct_the_model():
    fewer, more = GemmProblem.of(700, 1024, 1024, "bf16", "nt"), GemmProblem.of(1500, 1024, 1024, "bf16", "nt")
    by_model = {tile: estimate(PROBLEM, H200, "tiled", tile).time_us for tile in (SMALL, LARGE)}
    better, worse = sorted(by_model, key=by_model.__getitem__)

    def rows(source):
        # As measured times, these would have the model be wrong twofold about each.
        return (table(entry(fewer, tile=better, time_us=1e4, source=source), entry(more, tile=worse, time_us=0.1, source=source)),)

    assert pick(tables=rows("measured")).tile == worse
    assert brief(pick(tables=rows("modelled"))) == ("tiled", better, "nearest")


# forced


def test_a_forced_variant_takes_the_measured_tile_else_the_models():
    row = table(entry(name="split_k", tile=SPLIT, runner_ups=(runner_up("tiled", SMALL, 12.0),)))
    found = pick(tables=(row,), variant="tiled")
    assert (*brief(found), found.measured_us) == ("tiled", SMALL, "forced", 12.0)
    assert "the tile is the model's" in pick(variant="tiled").reason


def test_a_forced_tile_is_taken_as_it_is():
    odd = TileConfig(32, 32, 32)
    assert brief(pick(variant="tiled", tile=odd)) == ("tiled", odd, "forced")
    picky = variant("tiled", refuses_tile=lambda problem, tile: tile == odd)
    with pytest.raises(
        ForcedVariantError, match=r"tiled cannot serve 1024 x 1024 x 1024 bf16 nt on h200: tiled was given 32x32x32"
    ):
        pick(variants=(picky, NET), variant="tiled", tile=odd)


def test_a_tile_alone_goes_to_a_variant_that_takes_it():
    only_split = variant("tiled", refuses_tile=lambda problem, tile: tile.split_k > 1)
    assert brief(pick(variants=(only_split, SPLIT_K, NET), tile=SPLIT)) == ("split_k", SPLIT, "forced")


def test_forcing_is_an_error_with_the_variants_own_refusal():
    picky = variant("tiled", refuses=lambda problem: problem.m > 1000)
    with pytest.raises(ForcedVariantError) as caught:
        pick(variants=(picky, NET), variant="tiled")
    assert isinstance(caught.value, ValueError)
    assert caught.value.refusal == picky.refusal(PROBLEM, H200)
    assert caught.value.refusal.sentence in str(caught.value)


def test_forcing_what_does_not_repeat_under_deterministic_is_an_error():
    wild = variant("wild", deterministic=False)
    with pytest.raises(ForcedVariantError, match="wild may differ from run to run; needs bits that repeat"):
        pick(replace(PROBLEM, deterministic=True), (wild, NET), variant="wild")


def test_a_variant_none_of_whose_tiles_fits_says_why():
    picky = variant("tiled", refuses_tile=lambda problem, tile: True)
    with pytest.raises(ForcedVariantError, match="tiled was given"):
        pick(variants=(picky, NET), variant="tiled")
    with pytest.raises(ForcedVariantError, match=re.escape("a tile given by the caller (tile=...)")):
        pick(variants=(variant("bare", ()), NET), variant="bare")


@pytest.mark.parametrize("policy", [{"variant": "tield"}, {"exclude": frozenset({"tield"})}])
def test_unknown_names_suggest_the_nearest(policy):
    with pytest.raises(
        UnknownVariantError, match=r"'tield' is not registered; did you mean tiled\? registered: tiled, split_k, aten"
    ) as caught:
        pick(**policy)
    assert caught.value.nearest == ["tiled"]


def test_what_is_forced_is_not_held_back_by_what_is_excluded():
    assert pick(variant="tiled", exclude=frozenset({"tiled"})).rung == "forced"


# policy


def test_excluded_variants_serve_on_no_rung():
    without = {"exclude": frozenset({"tiled"})}
    assert pick(**without).variant == "split_k"
    assert pick(tables=(table(entry()),), **without).variant == "split_k"
    assert pick(NEARBY, tables=(table(entry()),), **without).variant == "split_k"


def test_deterministic_excludes_what_does_not_declare_it():
    wild = variant("wild", (LARGE,), deterministic=False)
    wide = GemmProblem.of(2048, 2048, 2048, "bf16", "nt")
    problem = replace(wide, deterministic=True)
    assert pick(wide, (wild, SPLIT_K)).variant == "wild"
    assert pick(problem, (wild, SPLIT_K)).variant == "split_k"
    with pytest.raises(NoVariantError, match="wild may differ"):
        pick(problem, (wild,))


def test_a_workspace_limit_holds_for_rows_and_for_the_model():
    row = table(entry(name="split_k", tile=SPLIT))
    assert pick(tables=(row,), workspace_limit=1 << 22).variant == "split_k"
    assert pick(tables=(row,), workspace_limit=(1 << 22) - 1).variant == "tiled"
    long_k = GemmProblem.of(64, 64, 65536, "bf16", "nt")
    assert pick(long_k).variant == "split_k"
    assert pick(long_k, workspace_limit=0).variant == "tiled"


def of_large(needs):
    """Data in which every form of tiled's LARGE needs this."""
    key = f"tiled {binary_class(PROBLEM)} {tile_key(PROBLEM, LARGE)}"
    return ResourceTable(90, "3.7.1", {"tiled": "d-tiled"}, {key: Record(needs, needs, needs)})


def test_a_kernel_known_to_spill_or_to_be_too_large_is_no_candidate():
    for faulty in (Resources(1024, 255, 12, ()), Resources(H200.smem_per_block + 1, 100, 0, ())):
        resources = of_large(faulty)
        assert pick(tables=(table(entry(tile=LARGE)),), resources=resources).tile != LARGE
        assert pick(variants=(variant("tiled", (LARGE, SMALL)), NET), resources=resources).tile == SMALL
    fine = of_large(Resources(1024, 128, 0, ()))
    assert pick(tables=(table(entry(tile=LARGE)),), resources=fine).tile == LARGE


# nothing to compute


@pytest.mark.parametrize("size", [(0, 8, 8, 1), (8, 0, 8, 1), (8, 8, 8, 0), (0, 0, 0, 0), (8, 8, 0, 1), (8, 0, 0, 1)])
def test_empty_problems_are_answered(size):
    m, n, k, batch = size
    problem = GemmProblem.of(m, n, k, "bf16", "nt", batch=batch)
    rows = table(entry(), entry(problem))
    assert pick(problem).variant == "tiled"
    assert pick(problem, tables=(rows,)).variant == "tiled"
    for name in ("tiled", "split_k", "aten"):
        assert pick(problem, variant=name).variant == name


def test_choosing_changes_nothing_and_repeats():
    rows = (table(entry(), entry(FAR)),)
    assert pick(NEARBY, tables=rows) == pick(NEARBY, tables=rows)
