"""The order in which the warp-specialised kernels walk a result's tiles: bands of tile rows, there and back where asked."""

from dataclasses import replace
from itertools import pairwise, product

import pytest

from kernel_zoo.kernels import _gluon, ping_pong, warp_specialised
from kernel_zoo.spec import GemmProblem, TileConfig
from tests.kernel_zoo.cases import H200

SIZES = list(product((1, 3, 8, 20), (1, 5, 7)))
TILES = (
    (warp_specialised.VARIANT, TileConfig(128, 256, 64, num_stages=4, num_warps=8)),
    (ping_pong.VARIANT, TileConfig(128, 128, 64, num_stages=6, num_warps=8)),
)
SERPENTINE = (("serpentine", 1),)


def walk(tiles_m, tiles_n, group):
    return [_gluon.grouped_tile.fn(i, tiles_m, tiles_n, group) for i in range(tiles_m * tiles_n)]


@pytest.mark.parametrize("group", [1, 2, 4, 8, 64])
@pytest.mark.parametrize(("tiles_m", "tiles_n"), SIZES)
def test_there_and_back_every_tile_is_met_once(tiles_m, tiles_n, group):
    assert sorted(walk(tiles_m, tiles_n, -group)) == list(product(range(tiles_m), range(tiles_n)))


@pytest.mark.parametrize("group", [1, 2, 4, 8, 64])
@pytest.mark.parametrize(("tiles_m", "tiles_n"), SIZES)
def test_every_second_band_is_walked_back(tiles_m, tiles_n, group):
    """Columns from right to left; the tiles of a column of a band keep their order, and so do the bands."""
    forth, back = walk(tiles_m, tiles_n, group), walk(tiles_m, tiles_n, -group)
    turned = [(row, tiles_n - 1 - col if row // group % 2 else col) for row, col in forth]
    assert back == turned
    bands = [row // group for row, _ in back]
    assert bands == sorted(bands)


def test_a_band_begins_with_the_columns_that_the_one_before_it_ended_with():
    tiles = walk(9, 5, -2)
    crossings = [(before, after) for before, after in pairwise(tiles) if before[0] // 2 != after[0] // 2]
    assert len(crossings) == 4
    assert all(before[1] == after[1] for before, after in crossings)


@pytest.mark.parametrize(("variant", "tile"), TILES, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize(("m", "group", "rows"), [(4096, 8, 8), (4096, 4, 4), (300, 8, 3), (1, 8, 1)])
def test_the_kernel_is_told_by_a_sign(variant, tile, m, group, rows):
    """Negative where second bands are walked back. A band has no more rows than the result has."""
    problem = GemmProblem.of(m, 4096, 512, "bf16", "nt")
    given = []
    for knobs in ((), SERPENTINE, (("serpentine", 0),)):
        walked = replace(tile, group_m=group, knobs=knobs)
        assert variant.refusal(problem, H200, walked) is None
        (call,) = variant.plan(problem, walked, H200).calls
        given.append(call.args[call.kernel.arg_names.index("group_m")])
    assert given == [rows, -rows, rows]


@pytest.mark.parametrize(("variant", "tile"), TILES, ids=lambda value: getattr(value, "name", ""))
def test_sums_do_not_depend_on_the_walk(variant, tile):
    problem = GemmProblem.of(4096, 4096, 512, "bf16", "nt")
    walked = replace(tile, group_m=4, knobs=SERPENTINE)
    assert variant.reduction(problem, walked) == variant.reduction(problem, tile)
