"""The warp-specialised kernels as launches and as machine code: legality, shared memory, what a binary depends on."""

import re
from dataclasses import replace

import pytest

from kernel_zoo import build
from kernel_zoo.kernels import ping_pong, warp_specialised
from kernel_zoo.kernels.warp_specialised import OVERHEAD_BYTES, PIECE_ROWS, piece_columns, staging
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
        (GemmProblem.of(64, 64, 64, batch=2), "batch"),
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
    problem = heavy(problem) if reads else problem
    columns = piece_columns(made, tile.block_n, problem.out, problem.epilogue.c, problem.epilogue.bias)
    assert made.first_n % columns == 0
    assert (tile.block_n - made.first_n) % columns == 0
    buffers, total = staging(made, tile, 2, problem.out.itemsize, columns, H200.smem_per_block)
    pieces = tile.block_m // made.parts // PIECE_ROWS * (tile.block_n // columns)
    assert pieces % buffers == 0
    ring = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k * 2
    assert total == ring + made.consumers * buffers * PIECE_ROWS * columns * problem.out.itemsize + OVERHEAD_BYTES
    assert total <= H200.smem_per_block


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


@pytest.mark.parametrize(("sides", "roomy"), [((128, 256, 64, 4), True), ((256, 192, 64, 3), False)])
def test_large_accumulators_leave_room_for_short_epilogues_only(sides, roomy):
    tile = TileConfig(*sides[:3], num_stages=sides[3], num_warps=8)
    gelu = replace(PROBLEM, epilogue=Epilogue(activation="gelu"))
    for problem in (heavy(PROBLEM), gelu, GemmProblem.of(1000, 1001, 520, "bf16", "nt")):
        refusal = warp_specialised.VARIANT.refusal(problem, H200, tile)
        assert (refusal is None) is roomy
    assert warp_specialised.VARIANT.refusal(PROBLEM, H200, tile) is None


def test_wide_offsets_only_where_something_goes_through_pointers():
    tile = TileConfig(128, 256, 64, num_stages=4, num_warps=8)
    large = GemmProblem.of(1 << 17, 1 << 15, 64)
    assert not warp_specialised.VARIANT.plan(large, tile, H200).calls[0].constants["WIDE"]
    assert warp_specialised.VARIANT.plan(heavy(large), tile, H200).calls[0].constants["WIDE"]


#: Compiled below: a tile of each kind of program (one accumulator or two, three consumers), and one with all that an epilogue can
#: have. The compile gate has every packaged row's.
COMPILED = [
    (warp_specialised.VARIANT, warp_specialised.FAMILY, (128, 256, 64), False),
    (warp_specialised.VARIANT, warp_specialised.FAMILY, (256, 192, 64), False),
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
    columns = piece_columns(made, tile.block_n, problem.out, problem.epilogue.c, problem.epilogue.bias)
    total = staging(made, tile, 2, 2, columns, H200.smem_per_block)[1]
    assert total - OVERHEAD_BYTES < found.shared_bytes <= total
    sass = build.disassemble(compiled.asm["cubin"])
    assert "USETMAXREG" in sass
    depth = 2 if tile.block_n != made.first_n else 1
    assert re.search(rf"WARPGROUP\.DEPBAR\.LE gsb0, 0x{depth}\b", sass), "products of the next block do not run on"
    assert_follows_the_launch_before(compiled.asm["ptx"])
