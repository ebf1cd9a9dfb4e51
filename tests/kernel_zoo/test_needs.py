"""The key of the resource data: what it tells apart, and what it does not."""

from dataclasses import replace

import pytest

from kernel_zoo.spec import GemmProblem, Operand, TileConfig, binary_class, is_vectorised, tails, tile_key

TILE = TileConfig(128, 256, 64, num_warps=8, knobs=(("flatten", 1), ("persistent", 1)))
PROBLEM = GemmProblem.of(1024, 1024, 1024, "bf16", "nt")
ROW = TileConfig(1, 64, 64)


def test_what_is_compiled_the_same_has_one_key():
    assert binary_class(PROBLEM) == binary_class(GemmProblem.of(128, 4096, 64, "fp16", "nt", batch=3)) == "16bit nt 16"
    assert tile_key(PROBLEM, TILE) == "128x256x64 w8 s3 flatten1 persistent1"
    assert tile_key(PROBLEM, replace(TILE, group_m=1, split_k=4)) == tile_key(PROBLEM, TILE)
    there_and_back = replace(TILE, knobs=(*TILE.knobs, ("serpentine", 1)))
    assert tile_key(PROBLEM, there_and_back) == tile_key(PROBLEM, TILE)
    assert tile_key(PROBLEM, replace(TILE, knobs=(("serpentine", 1),))) == tile_key(PROBLEM, replace(TILE, knobs=()))


def test_what_is_compiled_otherwise_has_another():
    problems = [
        PROBLEM,
        GemmProblem.of(1024, 1024, 1024, "bf16", "nn"),
        GemmProblem.of(1024, 1024, 1023, "bf16", "nt"),
        GemmProblem.of(1024, 1024, 1024, "fp32", "nt"),
        GemmProblem.of(1024, 1024, 1024, "fp32", "nt", precision="tf32"),
    ]
    assert len({binary_class(problem) for problem in problems}) == len(problems)
    changes = ({"block_m": 64}, {"block_k": 32}, {"num_warps": 4}, {"num_stages": 4}, {"knobs": (("flatten", 1),)})
    tiles = [TILE, *(replace(TILE, **change) for change in changes)]
    assert len({tile_key(PROBLEM, tile) for tile in tiles}) == len(tiles)


@pytest.mark.parametrize(("m", "n", "rows"), [(1, 4096, 1), (2, 4096, 2), (3, 4096, 4), (4096, 4, 4), (4096, 1, 1)])
def test_rows_that_are_not_tiled_are_part_of_the_key(m, n, rows):
    assert tile_key(GemmProblem.of(m, n, 4096), ROW) == f"1x64x64 w4 s3 rows{rows}"


def test_one_short_operand_makes_a_problem_short():
    a, b = Operand.dense("bf16", 64, 64), Operand.of("bf16", 64, 64, (0, 65, 1))
    assert is_vectorised(replace(PROBLEM, m=64, n=64, k=64, a=a, b=a))
    assert not is_vectorised(replace(PROBLEM, m=64, n=64, k=64, a=a, b=b))


@pytest.mark.parametrize(
    ("sizes", "tile", "masked"),
    [
        ((256, 512, 128), TILE, ""),
        ((256, 512, 96), TILE, "k"),
        ((512, 128, 64), TILE, "n"),
        ((100, 100, 100), TILE, "mnk"),
        ((128, 512, 64), replace(TILE, knobs=(("swap", 1),)), "n"),
        ((256, 128, 64), replace(TILE, knobs=(("swap", 1),)), ""),
        ((3, 640, 64), ROW, ""),
        ((640, 3, 64), ROW, ""),
        ((3, 650, 64), ROW, "mn"),
        ((3, 650, 65), ROW, "mnk"),
    ],
)
def test_tails_are_those_of_the_kernels_own_sides(sizes, tile, masked):
    assert tails(GemmProblem.of(*sizes), tile) == tuple(side in masked for side in "mnk")
