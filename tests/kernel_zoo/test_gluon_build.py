"""The warp-specialised kernels as launches and as machine code: legality, shared memory, what a binary depends on."""

import re
from dataclasses import replace

import pytest

from kernel_zoo import build
from kernel_zoo.kernels import ping_pong, warp_specialised
from kernel_zoo.kernels._partitions import OVERHEAD_BYTES, PIECE_ROWS, Staging
from kernel_zoo.spec import Descriptor, Epilogue, GemmProblem, Operand, TileConfig
from tests.kernel_zoo.cases import H200
from tests.kernel_zoo.dependence import assert_follows_the_launch_before

FAMILIES = ((warp_specialised.VARIANT, warp_specialised.FAMILY), (ping_pong.VARIANT, ping_pong.FAMILY))
TILES = [
    (variant, made, TileConfig(*sides, num_stages=stages, num_warps=4 * made.consumers))
    for variant, family in FAMILIES
    for sides, made in family.items()
    for stages in made.stages
]
NAMES = [f"{variant.name}-{tile.describe()}" for variant, _, tile in TILES]
VARIANTS = pytest.mark.parametrize("variant", [variant for variant, _ in FAMILIES], ids=lambda variant: variant.name)
PROBLEM = GemmProblem.of(1000, 1000, 520, "bf16", "nt")


def heavy(problem):
    read = Operand.dense(problem.out.dtype, problem.m, problem.n)
    return replace(problem, epilogue=Epilogue("x", "x", read, read, "gelu"))


def specialisation(variant, problem, tile):
    (call,) = variant.plan(problem, tile, H200).calls
    return build.specialise(call)


@VARIANTS
@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        (GemmProblem.of(64, 64, 64, "fp32", "nt", precision="tf32"), "dtype"),
        (GemmProblem.of(64, 60, 64, batch=2, layout="nt"), "batch"),
        (replace(GemmProblem.of(64, 64, 64, batch=2), a=Operand("bf16", 64, 64, (64 * 64 + 8, 64, 1))), "batch"),
        (replace(GemmProblem.of(64, 64, 64, batch=1 << 10), b=Operand("bf16", 64, 64, (1 << 28, 64, 1))), "size"),
        (GemmProblem.of(64, 64, 0), "empty"),
        (GemmProblem.of(64, 64, 63, layout="nt"), "alignment"),
        (replace(PROBLEM, a=Operand.of("bf16", 1000, 520, (0, 1040, 2))), "strides"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(variant, problem, rule):
    assert variant.refusal(problem, H200).rule == rule


@VARIANTS
@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_other_devices_are_refused(variant, capability):
    refusal = variant.refusal(PROBLEM, replace(H200, capability=capability))
    assert refusal.rule == "capability"
    assert "9.0" in refusal.needed


@VARIANTS
@pytest.mark.parametrize(
    "change", [{"block_n": 64}, {"num_stages": 2}, {"num_warps": 4}, {"split_k": 2}, {"knobs": (("x", 1),)}, {"group_m": 0}]
)
def test_only_tiles_of_the_family_fit(variant, change):
    tile = variant.space(PROBLEM, H200)[0]
    assert variant.refusal(PROBLEM, H200, tile) is None
    assert variant.refusal(PROBLEM, H200, replace(tile, **change)).rule == "tile"


def laid_out(problem, variant, tile):
    """The plan's arguments by name."""
    (call,) = variant.plan(problem, tile, H200).calls
    return dict(zip(call.kernel.arg_names, call.args, strict=False)), call


@VARIANTS
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_batch_lies_under_one_descriptor(variant, layout):
    """Its extent ends with the last matrix, and a matrix begins as many lines on as the operand's strides say."""
    problem = GemmProblem.of(256, 200, 128, "bf16", layout, batch=7)
    padded = Operand("bf16", 256, 200, (300 * 208, 208, 1))
    args, _call = laid_out(replace(problem, out=padded), variant, variant.space(problem, H200)[0])
    assert (args["a_lines"], args["b_lines"], args["out_lines"]) == (
        256 if layout[0] == "n" else 128,
        128 if layout[1] == "n" else 200,
        300,
    )
    assert args["A"].shape == ((7 * 256, 128) if layout[0] == "n" else (7 * 128, 256))
    assert args["B"].shape == ((7 * 128, 200) if layout[1] == "n" else (7 * 200, 128))
    assert args["OUT"].shape == (6 * 300 + 256, 200)
    assert args["batch"] == 7
    shared, _ = laid_out(
        replace(problem, b=replace(problem.b, strides=(0, *problem.b.strides[1:]))), variant, variant.space(problem, H200)[0]
    )
    assert shared["b_lines"] == 0
    assert shared["B"].shape == ((128, 200) if layout[1] == "n" else (200, 128))


@VARIANTS
@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"m": 250}, False),  # a block of rows reaches into the next matrix, and would be stored there
        ({"n": 248}, True),  # columns end where the descriptor does
        ({"k": 200}, True),  # K does too, in both operands
        ({"k": 200, "layout": "nn"}, False),  # B's rows go on with the next matrix's
        ({"k": 200, "layout": "tt"}, False),
        ({"m": 250, "batch": 1}, True),
        ({"k": 200, "layout": "nn", "batch": 1}, True),
    ],
    ids=str,
)
def test_no_block_of_a_batch_gets_into_its_neighbour(variant, change, fits):
    sizes = {"m": 256, "n": 256, "k": 256, "dtype": "bf16", "layout": "nt", "batch": 3} | change
    problem = GemmProblem.of(**sizes)
    tile = next(tile for tile in variant.space(problem, H200) if tile.block_m in (64, 128) and tile.block_n in (128, 256))
    refusal = variant.refusal(problem, H200, tile)
    assert (refusal is None) is fits
    if refusal is not None:
        assert refusal.rule == "batch"
        assert f"along {'M' if 'm' in change else 'K'} = " in refusal.given


@VARIANTS
def test_a_transposed_result_turns_the_rules_of_a_batch(variant):
    tile = replace(next(t for t in variant.space(PROBLEM, H200) if t.block_n in (128, 256)), knobs=(("swap", 1),))
    assert variant.refusal(GemmProblem.of(512, 200, 256, "bf16", "nt", batch=3), H200, tile) is None
    refusal = variant.refusal(GemmProblem.of(520, 256, 256, "bf16", "nt", batch=3), H200, tile)
    assert refusal.rule == "batch"
    assert "along M = 520" in refusal.given


@VARIANTS
def test_swap_computes_the_transposed_result(variant):
    """A narrow M lies along the tile's columns: B's columns are the kernel's rows; the result is stored by columns."""
    problem = GemmProblem.of(257, 5120, 1280, "bf16", "nt")
    tile = replace(variant.space(problem, H200)[0], knobs=(("swap", 1),))
    assert variant.refusal(problem, H200, tile) is None
    args, call = laid_out(problem, variant, tile)
    assert (args["M"], args["N"], args["A"].view.slot, args["B"].view.slot) == (5120, 257, "B", "A")
    assert args["OUT"].shape == (257, 5120)
    assert args["OUT"].block[1] == PIECE_ROWS
    assert (call.constants["A_TRANSPOSED"], call.constants["B_TRANSPOSED"], call.constants["OUT_TRANSPOSED"]) == (False, True, True)
    pointers = variant.refusal(GemmProblem.of(257, 5121, 1280, "bf16", "nt"), H200, tile)
    assert "cannot be stored through pointers" in pointers.given


@VARIANTS
def test_swap_is_proposed_where_it_takes_fewer_waves_or_tiles(variant):
    def turned(*sizes):
        return {(t.block_m, t.block_n) for t in variant.space(GemmProblem.of(*sizes), H200) if t.knob("swap")}

    def tiles(m, n, block_m, block_n):
        return -(-m // block_m) * -(-n // block_n)

    assert not turned(16384, 16384, 4096)
    assert not turned(64, 64, 4096)
    for m, n in ((257, 5120), (1500, 1024), (729, 1152), (96, 6144)):
        for block_m, block_n in turned(m, n, 2048):
            plain, other = tiles(m, n, block_m, block_n), tiles(n, m, block_m, block_n)
            assert -(-other // 132) < -(-plain // 132) or other <= 0.8 * plain
    assert any(turned(m, n, 2048) for m, n in ((257, 5120), (576, 4096), (1500, 1024)))


@VARIANTS
@pytest.mark.parametrize(("asked", "early"), [((), None), ((("early", 0),), False), ((("early", 1),), True)])
def test_a_tile_may_say_when_its_programs_start(variant, asked, early):
    """Without a word a short product's may start early, a long one's do not."""
    for size, short in ((512, True), (8192, False)):
        problem = GemmProblem.of(size, size, size, "bf16", "nt")
        tile = replace(variant.space(problem, H200)[0], knobs=asked)
        assert variant.refusal(problem, H200, tile) is None
        (call,) = variant.plan(problem, tile, H200).calls
        assert call.dependent is call.constants["DEPENDENT"] is (short if early is None else early)


@VARIANTS
def test_other_walks_are_tried_where_there_are_many_tiles(variant):
    few, many = variant.space(PROBLEM, H200), variant.space(GemmProblem.of(16384, 16384, 512), H200)
    assert {(tile.group_m, tile.knobs) for tile in few} == {(8, ())}
    assert {(tile.group_m, tile.knobs) for tile in many} == {(8, ()), (8, (("serpentine", 1),)), (4, ())}
    assert set(few) < set(many)


@pytest.mark.parametrize(("variant", "made", "tile"), TILES, ids=NAMES)
@pytest.mark.parametrize("out", ["bf16", "fp32"])
@pytest.mark.parametrize("reads", [False, True], ids=["plain", "heavy"])
def test_staging_buffers_come_round_with_every_tile_and_fit(variant, made, tile, out, reads):
    problem = GemmProblem.of(1000, 1000, 520, "bf16", "nt", out_dtype=out)
    found = Staging.of(made, tile, 2, problem.out, 2 if reads else 0, H200.smem_per_block)
    rest = tile.block_n - made.first_n
    down = tile.block_m // made.parts // PIECE_ROWS
    apart = 0 < found.rest_columns < found.columns
    assert made.first_n % found.columns == 0
    assert found.rest_columns == 0 if rest == 0 else rest % found.rest_columns == 0
    assert rest == found.rest_columns or not apart  # one piece of 64 rows has one buffer
    pieces = down * ((made.first_n if apart else tile.block_n) // found.columns)
    assert pieces % found.buffers == 0
    assert found.buffers % found.group == 0
    assert found.group == pieces or found.buffers in (1, 2 * found.group) or found.group == 1
    ring = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k * 2
    columns = found.buffers * found.columns + (down * rest if apart else 0)
    assert found.total_bytes == ring + made.consumers * columns * PIECE_ROWS * problem.out.itemsize + OVERHEAD_BYTES
    if tile.num_stages == made.stages[-1]:
        assert found.total_bytes <= H200.smem_per_block
    refusal = variant.refusal(problem, H200, tile)
    too_large = refusal is not None and refusal.rule == "shared memory"
    assert too_large is (found.total_bytes > H200.smem_per_block) or (refusal is not None and refusal.rule == "registers")


@pytest.mark.parametrize(("variant", "made", "tile"), TILES, ids=NAMES)
def test_one_binary_serves_all_sizes_and_walks_of_long_products_and_one_those_of_short_ones(variant, made, tile):
    sizes = [(8, 8, 8), (1000, 1000, 520), (1, 8, 64), (4096, 14336, 4096), (tile.block_m, tile.block_n, tile.block_k)]
    found = {
        specialisation(variant, GemmProblem.of(m, n, k, "bf16", "nt"), replace(tile, group_m=group, knobs=knobs))
        for m, n, k in sizes
        for group, knobs in ((1, ()), (8, ()), (16, ()), (8, (("serpentine", 1),)))
    }
    # The largest does not start while the launch before it ends.
    assert [sum(spec.dependent is early for spec in found) for early in (False, True)] == [1, 1]


def test_as_many_programs_as_there_are_tiles_and_at_most_one_an_sm():
    tile = TileConfig(128, 256, 64, num_stages=4, num_warps=8)
    grids = [warp_specialised.VARIANT.plan(GemmProblem.of(m, 256, 64), tile, H200).calls[0].grid for m in (1, 129, 1 << 20)]
    assert grids == [(1,), (2,), (132,)]


def test_a_result_whose_rows_end_inside_16_bytes_is_stored_through_pointers():
    tile = TileConfig(128, 256, 64, num_stages=4, num_warps=8)
    for n, through_tma in ((1000, True), (1001, False), (1004, False)):
        (call,) = warp_specialised.VARIANT.plan(GemmProblem.of(64, n, 64, layout="nt"), tile, H200).calls
        assert call.constants["OUT_TMA"] is through_tma
        assert isinstance(call.args[3], Descriptor) is through_tma


@pytest.mark.parametrize(
    ("variant", "sides", "roomy"),
    [(warp_specialised.VARIANT, (128, 256, 64, 4), True), (ping_pong.VARIANT, (128, 192, 64, 5), False)],
    ids=lambda value: getattr(value, "name", None),
)
def test_large_accumulators_leave_room_for_short_epilogues_only(variant, sides, roomy):
    tile = TileConfig(*sides[:3], num_stages=sides[3], num_warps=8)
    gelu = replace(PROBLEM, epilogue=Epilogue(activation="gelu"))
    for problem in (heavy(PROBLEM), gelu, GemmProblem.of(1000, 1001, 520, "bf16", "nt")):
        refusal = variant.refusal(problem, H200, tile)
        assert (refusal is None) is roomy
    assert variant.refusal(PROBLEM, H200, tile) is None


def test_wide_offsets_only_where_something_goes_through_pointers():
    tile = TileConfig(128, 256, 64, num_stages=4, num_warps=8)
    large = GemmProblem.of(1 << 17, 1 << 15, 64)
    assert not warp_specialised.VARIANT.plan(large, tile, H200).calls[0].constants["WIDE"]
    assert warp_specialised.VARIANT.plan(heavy(large), tile, H200).calls[0].constants["WIDE"]


#: Compiled below: a tile of each kind of program (one accumulator or two, three consumers), and one with all that an epilogue can
#: have. The compile gate has every packaged row's.
COMPILED = [
    (warp_specialised.VARIANT, warp_specialised.FAMILY, (128, 256, 64), False),
    (warp_specialised.VARIANT, warp_specialised.FAMILY, (128, 144, 64), False),
    (warp_specialised.VARIANT, warp_specialised.FAMILY, (192, 128, 64), False),
    (warp_specialised.VARIANT, warp_specialised.FAMILY, (128, 192, 64), True),
    (ping_pong.VARIANT, ping_pong.FAMILY, (64, 256, 64), False),
    (ping_pong.VARIANT, ping_pong.FAMILY, (128, 160, 64), False),
    (ping_pong.VARIANT, ping_pong.FAMILY, (64, 192, 64), True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "family", "sides", "reads"),
    COMPILED,
    ids=[f"{variant.name}-{'x'.join(map(str, sides))}{'-heavy' * reads}" for variant, _, sides, reads in COMPILED],
)
def test_a_tile_becomes_the_machine_code_it_promises(variant, family, sides, reads):
    made = family[sides]
    tile = TileConfig(*sides, num_stages=made.stages[0], num_warps=4 * made.consumers)
    problem = heavy(PROBLEM) if reads else PROBLEM
    compiled = build.compile_binary(specialisation(variant, problem, tile), 90)
    found = build.resources(compiled)
    assert found.spills == 0
    assert {"wgmma", "tma"} <= set(found.instructions)
    total = Staging.of(made, tile, 2, problem.out, 2 if reads else 0, H200.smem_per_block).total_bytes
    assert total - OVERHEAD_BYTES < found.shared_bytes <= total
    sass = build.disassemble(compiled.asm["cubin"])
    assert "USETMAXREG" in sass
    depth = 2 if tile.block_n != made.first_n else 1
    assert re.search(rf"WARPGROUP\.DEPBAR\.LE gsb0, 0x{depth}\b", sass), "products of the next block do not run on"
    assert_follows_the_launch_before(compiled.asm["ptx"])
