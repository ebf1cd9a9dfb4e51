"""What explains a pick: the facts in order, against arithmetic of the test's own; verdicts; no problem without an answer."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristics.archs import ARCHS, get_arch
from heuristics.choose import NoVariantError, Policy, UnknownVariantError, choose
from heuristics.traits import traits_of
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig
from tests.heuristics.fakes import H200, LARGE, NET, PROBLEM, SMALL, SPLIT, SPLIT_K, TILED, ZOO, entry, runner_up, table, variant

SPLIT_PROBLEM = GemmProblem.of(256, 256, 16384, "bf16", "nt")
ORDER = [
    "problem", "device", "pick", "rung", "why", "work", "roof", "estimate", "waves", "occupancy", "workspace",
    "repeats bit for bit", "batch-invariant", "best by the model", "refused", "next",
]  # fmt: skip
KEYS = [
    "problem", "device", "variant", "tile", "rung", "table", "distance", "row", "reason", "notes", "why", "flops", "least_bytes",
    "intensity", "ridge", "roof_us", "bound", "estimate_us", "estimate_error", "estimate_parts", "measured_us", "waves",
    "last_wave", "tiles", "programs", "resident", "at_once", "busy_sms", "tile_use", "occupancy", "workspace_bytes", "launches",
    "deterministic", "deterministic_why", "batch_invariant", "batch_invariant_why", "ranked", "refused", "next", "next_why",
]  # fmt: skip


def told(selection, head):
    return dict(line.split(": ", 1) for line in selection.lines())[head]


def forced(problem, name, tile, arch=H200, variants=ZOO):
    return choose(problem, arch, variants, policy=Policy(variant=name, tile=tile))


def test_the_facts_are_told_in_this_order():
    found = choose(SPLIT_PROBLEM, H200, VARIANTS)
    assert [line.split(":")[0] for line in str(found).splitlines() if not line.startswith(" ")] == ORDER
    assert list(found.as_dict()) == KEYS


def test_what_was_assumed_and_where_figures_come_from_follow_what_they_are_about():
    found = replace(choose(SPLIT_PROBLEM, H200, VARIANTS), assumed=("layout nn", "dense matrices"))
    heads = [line.split(":")[0] for line in found.lines(sources=True)]
    assert heads[:3] == ["problem", "assumed", "device"]
    assert heads[3 : 3 + len(H200.sources)] == ["source"] * len(H200.sources)
    assert told(found, "assumed") == "layout nn; dense matrices"
    assert found.as_dict()["problem"]["assumed"] == ["layout nn", "dense matrices"]
    assert "source" not in [line.split(":")[0] for line in found.lines()]


def test_the_facts_of_one_product_by_hand():
    data = choose(SPLIT_PROBLEM, H200, VARIANTS).as_dict()
    assert data["flops"] == 2 * 256 * 256 * 16384
    assert data["least_bytes"] == 2 * 256 * 16384 * 2 + 256 * 256 * 2
    assert data["intensity"] == pytest.approx(data["flops"] / data["least_bytes"])
    assert data["ridge"] == pytest.approx(989.4e12 / 4.8e12)
    assert data["roof_us"] == pytest.approx(data["least_bytes"] / 4.8e6)
    assert data["bound"] == "memory"


def test_waves_of_a_split_by_hand():
    tile = TileConfig(64, 128, 64, split_k=12)  # 4 x 2 tiles of 12 programs; 74 kB each: 3 by shared memory, 4 by 128 registers
    data = forced(replace(PROBLEM, m=256, n=256), "split_k", tile).as_dict()
    assert (data["tiles"], data["programs"], data["busy_sms"]) == (4 * 2, 96, 96)
    assert data["occupancy"]["programs_per_sm"] == 3
    assert data["at_once"] == 3 * 132
    assert data["waves"] == pytest.approx(96 / (3 * 132))
    assert data["workspace_bytes"] == 12 << 20


def test_the_last_wave_and_the_tiles_by_hand():
    data = forced(GemmProblem.of(4000, 4096, 4096, "bf16", "nt"), "tiled", TileConfig(128, 256, 64, num_warps=8)).as_dict()
    assert data["tiles"] == math.ceil(4000 / 128) * 16 == 512
    assert data["at_once"] == 132
    assert data["last_wave"] == pytest.approx((512 - 3 * 132) / 132)
    assert data["tile_use"] == pytest.approx(4000 / (32 * 128))
    assert "512 tiles of 128 x 256 run in 4 waves of 132, the last 88% full" in data["why"]


@pytest.mark.parametrize(
    ("problem", "name", "tile", "words"),
    [
        (
            (256, 256, 16384),
            "split_k",
            TileConfig(128, 128, 64, split_k=16),
            "only 4 tiles of 128 x 128 would leave 128 of 132 SMs",
        ),
        ((256, 256, 16384), "split_k", TileConfig(128, 128, 64, split_k=16), "as 64 programs 68 of 132 still idle"),
        ((2048, 2048, 8192), "split_k", TileConfig(128, 128, 64, split_k=2, num_warps=8), "fill the last wave"),
        ((256, 256, 256), "tiled", SMALL, "only 16 tiles of 64 x 64 leave 116 of 132 SMs idle"),
        ((1024, 1024, 4096), "tiled", SMALL, "all 256 tiles of 64 x 64 run at once on 132 SMs"),
        ((65, 65, 4096), "tiled", SMALL, "74% of the tiles' work lies outside the matrices"),
        ((64, 64, 64), "tiled", SMALL, "too small for its roof to matter"),
        ((8192, 8192, 8192), "tiled", LARGE, "compute-bound: 1.1e+03 GFLOP at 989 TFLOP/s take 1.11e+03 us"),
        ((128, 16384, 8192), "tiled", LARGE, "memory-bound: "),
    ],
)
def test_why_says_what_a_person_wants_to_know(problem, name, tile, words):
    assert words in forced(GemmProblem.of(*problem, "bf16", "nt"), name, tile).as_dict()["why"]


def test_why_of_a_vector_of_short_lines_and_of_nothing():
    thin = choose(GemmProblem.of(1, 8192, 8192, "bf16", "nt"), H200, VARIANTS, policy=Policy(variant="gemv")).as_dict()
    assert thin["why"].startswith(f"one side of the result is 1: the larger matrix is streamed once by {thin['programs']} programs")
    direct = [each for each in VARIANTS if not traits_of(each.name).copies]
    ragged = choose(GemmProblem.of(1001, 1001, 1001, "bf16", "nt"), H200, direct).as_dict()
    assert "lines aligned to 2 bytes are read 2 bytes at a time" in ragged["why"]
    assert "nothing is multiplied" in choose(GemmProblem.of(64, 64, 0), H200, VARIANTS).as_dict()["why"]
    assert choose(GemmProblem.of(0, 64, 64), H200, VARIANTS).as_dict()["why"] == "nothing to compute: m is 0"
    double = choose(GemmProblem.of(64, 64, 64, "fp64"), H200, [v for v in VARIANTS if v.name != "gemv"]).as_dict()
    assert "no kernel of the zoo can serve: inputs are fp64" in double["why"]


def test_resident_programs_walk():
    tile = TileConfig(128, 256, 64, 8, 1, 8, 3, (("flatten", 1), ("persistent", 1), ("subtile", 1)))
    found = forced(GemmProblem.of(4096, 4096, 4096, "bf16", "nt"), "tma", tile, variants=VARIANTS)
    assert "132 resident programs walk over 512 tiles of 128 x 256 in 4 rounds" in found.as_dict()["why"]
    assert "512 tiles walked over by resident programs, 132 at once" in told(found, "waves")


def test_the_row_and_how_far_it_is():
    exact = choose(PROBLEM, H200, ZOO, (table(entry(), name="mine.json"),)).as_dict()
    assert exact["row"]["distance"] == 0
    assert exact["row"]["used"]
    assert "row of this very problem in mine.json" in told(choose(PROBLEM, H200, ZOO, (table(entry(), name="mine.json"),)), "rung")
    near = choose(replace(PROBLEM, k=1500), H200, ZOO, (table(entry(), name="mine.json"),))
    assert near.as_dict()["row"]["problem"] == "1024 x 1024 x 1024 16bit nt"
    assert near.as_dict()["row"]["distance"] == pytest.approx(0.5 * math.log2(1500 / 1024))
    assert "nearest (0.28 octaves from 1024 x 1024 x 1024 16bit nt in mine.json, 10 us there)" in told(near, "rung")
    far = choose(GemmProblem.of(64, 64, 1024, "bf16", "nt"), H200, ZOO, (table(entry(), name="mine.json"),))
    assert "model (nearest row 8.00 octaves away: 1024 x 1024 x 1024 16bit nt in mine.json)" in told(far, "rung")
    assert not far.as_dict()["row"]["used"]
    assert choose(PROBLEM, H200, ZOO).as_dict()["row"] is None


def test_the_fit_error_of_the_table_is_the_estimates():
    fitted = table(model={"tiled": {"fit_error": 0.083}})
    found = forced(PROBLEM, "tiled", SMALL)
    assert found.as_dict()["estimate_error"] is None
    assert "its error not recorded" in told(found, "estimate")
    known = choose(PROBLEM, H200, ZOO, (fitted,), policy=Policy(variant="tiled", tile=SMALL))
    assert known.as_dict()["estimate_error"] == 0.083
    assert "give or take 8%" in told(known, "estimate")


def test_the_top_five_and_what_is_wrong_with_them():
    data = choose(SPLIT_PROBLEM, H200, VARIANTS).as_dict()
    assert len(data["ranked"]) == 5
    assert data["ranked"][0]["trouble"] == "the pick"
    times = [each["estimate_us"] for each in data["ranked"]]
    assert [each["ratio"] for each in data["ranked"]] == pytest.approx([us / data["estimate_us"] for us in times])
    for each in data["ranked"][1:]:
        assert f"{each['ratio'] - 1:.0%} slower by the model: " in each["trouble"] or "as fast by the model" in each["trouble"]


def test_what_is_wrong_is_what_the_tile_makes_of_the_problem():
    small = GemmProblem.of(256, 256, 4096, "bf16", "nt")
    pick = forced(small, "tiled", SMALL)
    assert "of workspace and a second launch" in str(
        forced(GemmProblem.of(2048, 2048, 512, "bf16", "nt"), "tiled", LARGE).why("split_k", SPLIT)
    )
    assert "programs leave 128 of 132 SMs idle" in str(pick.why("tiled", LARGE))
    thin = forced(GemmProblem.of(72, 72 * 64, 4096, "bf16", "nt"), "tiled", TileConfig(16, 128, 64))
    assert "tiles 56% used" in str(thin.why("tiled", TileConfig(128, 128, 64, num_warps=8)))


def test_why_the_pick():
    verdict = choose(PROBLEM, H200, ZOO, (table(entry()),)).why("tiled")
    assert (verdict.kind, verdict.ratio) == ("pick", 1.0)
    assert verdict.sentence.startswith("it is the pick; the fastest of those tried")


def test_why_not_one_that_is_refused():
    verdict = choose(SPLIT_PROBLEM, H200, VARIANTS).why("gemv")
    assert verdict.kind == "refused"
    assert verdict.sentence == "m is 256 and n is 256; needs one of them at most 4"
    assert verdict.as_dict()["refusal"]["rule"] == "shape"
    tile = choose(SPLIT_PROBLEM, H200, VARIANTS).why("split_k", TileConfig(64, 64, 64, split_k=1000))
    assert "split_k is 1000" in tile.sentence


def test_why_not_one_that_is_excluded():
    found = choose(PROBLEM, H200, ZOO, policy=Policy(exclude=frozenset({"tiled"})))
    assert found.why("tiled").kind == "excluded"
    assert "excluded by the caller" in found.why("tiled").sentence
    wild = choose(replace(PROBLEM, deterministic=True), H200, (variant("wild", deterministic=False), *ZOO))
    assert wild.why("wild").kind == "excluded"
    fixed = choose(replace(PROBLEM, batch_invariant=True), H200, ZOO)
    assert fixed.why("split_k").kind == "excluded"
    assert "batch_invariant" in fixed.why("split_k").sentence


def test_why_not_one_that_nobody_asked_for():
    mine = variant("me.mine", origin="user")
    verdict = choose(PROBLEM, H200, (*ZOO, mine)).why("me.mine")
    assert verdict.kind == "unasked"
    assert "forced, or named by a row of a table" in verdict.sentence
    assert choose(PROBLEM, H200, ZOO).why("aten").kind == "unasked"


def test_why_not_one_that_is_slower_names_the_part_and_the_measurement():
    modelled = choose(PROBLEM, H200, ZOO).why("split_k")
    assert modelled.kind == "slower"
    assert modelled.ratio > 1
    assert modelled.part in choose(PROBLEM, H200, ZOO).estimate.parts
    row = table(entry(runner_ups=(runner_up("split_k", SPLIT, 12.5),)))
    measured = choose(PROBLEM, H200, ZOO, (row,)).why("split_k", SPLIT)
    assert measured.sentence == "legal, and measured at 12.5 us against 10 us"
    assert measured.kind == "slower"


def test_why_not_the_net_is_its_measurement():
    found = choose(PROBLEM, H200, ZOO, (table(entry(torch_us=14.0)),), policy=Policy(prefer="fastest"))
    assert "measured at 14 us against 10 us" in found.why("aten").sentence


def test_why_not_one_that_is_faster_by_the_model():
    slow = TileConfig(64, 64, 64, num_stages=1)
    found = choose(PROBLEM, H200, (variant("tiled", (slow, LARGE)), SPLIT_K, NET), (table(entry(tile=slow)),))
    verdict = found.why("tiled", LARGE)
    assert verdict.kind == "passed over"
    assert "faster by the model alone; the pick was measured fastest" in verdict.sentence
    assert (
        "the caller forced the pick" in forced(PROBLEM, "tiled", TileConfig(64, 64, 64, num_stages=1)).why("tiled", LARGE).sentence
    )


def test_an_unknown_name_has_near_ones():
    with pytest.raises(UnknownVariantError, match="split_k"):
        choose(PROBLEM, H200, ZOO).why("splitk")


def test_verdicts_are_data_and_text():
    verdict = choose(PROBLEM, H200, ZOO).why("split_k")
    assert json.loads(json.dumps(verdict.as_dict(), allow_nan=False))["variant"] == "split_k"
    assert str(verdict) == f"split_k {SPLIT.describe()}: {verdict.sentence}"


@pytest.mark.parametrize(
    ("selection", "command"),
    [
        (choose(SPLIT_PROBLEM, get_arch("a100"), VARIANTS), "minblas tune 256 256 16384 --dtype bf16 --layout nt"),
        (choose(PROBLEM, H200, ZOO, (table(entry()),)), "minblas warmup 1024 1024 1024 --dtype bf16 --layout nt"),
        (choose(PROBLEM, H200, ZOO, (table(entry(source="modelled")),)), "minblas tune 1024 1024 1024 --dtype bf16 --layout nt"),
        (forced(PROBLEM, "tiled", SMALL), "minblas check tiled"),
        (choose(GemmProblem.of(64, 64, 64, batch=3), H200, ZOO), "minblas tune 64 64 64 --dtype bf16 --batch 3"),
        (choose(GemmProblem.of(64, 64, 64, "fp32", precision="tf32"), H200, ZOO), "minblas tune 64 64 64 --dtype tf32"),
        (choose(GemmProblem.of(64, 64, 64, "fp32", precision="bf16x3"), H200, ZOO), "python: minblas.tune([selection.problem])"),
        (choose(GemmProblem.of(64, 64, 64, out_dtype="fp32"), H200, ZOO), "python: minblas.tune([selection.problem])"),
        (choose(GemmProblem.of(64, 64, 64, "fp64"), H200, VARIANTS), "minblas variants"),
        (choose(replace(PROBLEM, batch_invariant=True), H200, ZOO), "minblas warmup 1024 1024 1024 --dtype bf16 --layout nt"),
        (choose(GemmProblem.of(0, 64, 64), H200, ZOO), None),
    ],
)
def test_the_next_command(selection, command):
    assert selection.as_dict()["next"] == command
    assert ("next: " in str(selection)) == (command is not None)


def test_bits_are_promised_with_a_reason():
    split = choose(SPLIT_PROBLEM, H200, VARIANTS)
    assert f"{split.tile.split_k} partial sums of K are added in order" in told(split, "repeats bit for bit")
    assert told(split, "batch-invariant").startswith("no: another M or batch may get a tile that sums in another order")
    invariant = choose(replace(SPLIT_PROBLEM, batch_invariant=True), H200, VARIANTS)
    assert told(invariant, "batch-invariant").startswith("yes: one family and one tile for every M")
    assert "one program sums K front to back" in told(invariant, "repeats bit for bit")


def test_a_recipe_that_raises_does_not_stop_an_explanation():
    def recipe(call, tile):
        raise ZeroDivisionError

    broken = replace(TILED, recipe=recipe)
    broken.__dict__["digest"] = "d-tiled"
    found = choose(PROBLEM, H200, (broken,))
    assert found.as_dict()["workspace_bytes"] == 0
    assert str(found)


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from(["bf16", "fp16", "fp32", "fp64", "int8", "fp8e4m3"]))
    m, n = (draw(st.sampled_from([0, 1, 2, 3, 5, 16, 33, 64, 257, 4096, 20000, 70000])) for _ in range(2))
    k = draw(st.sampled_from([0, 1, 7, 64, 250, 4096, 65536]))
    batch = draw(st.sampled_from([0, 1, 2, 70]))
    precision = draw(st.sampled_from(["ieee", "tf32", "bf16x3"])) if dtype == "fp32" else ""
    asked = {"deterministic": draw(st.booleans()), "batch_invariant": draw(st.booleans())}
    layout = draw(st.sampled_from(["nn", "nt", "tn", "tt"]))
    problem = GemmProblem.of(m, n, k, dtype, layout, batch=batch, precision=precision, **asked)
    if draw(st.booleans()):
        bias = Operand(problem.out.dtype, m, n, (0, 0, 1))
        problem = replace(problem, epilogue=Epilogue("x", "1", problem.out, bias, "gelu"))
    if draw(st.booleans()):
        strided = Operand.of(dtype, problem.a.rows, problem.a.cols, (2 * m * k, 2 * k, 2), 2, batch)
        problem = replace(problem, a=strided)
    return problem


@settings(max_examples=60, deadline=None)
@given(problem=problems(), arch=st.sampled_from(sorted(ARCHS)), prefer=st.sampled_from(["zoo", "fastest"]))
def test_every_legal_problem_is_explained_on_every_device(problem, arch, prefer):
    try:
        found = choose(problem, get_arch(arch), VARIANTS, policy=Policy(prefer=prefer))
    except NoVariantError:
        return
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert list(data) == KEYS
    assert str(found)
    for each in VARIANTS:
        assert found.why(each.name).sentence
