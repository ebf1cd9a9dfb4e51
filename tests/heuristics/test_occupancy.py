"""The occupancy calculator against NVIDIA's own (cuda_occupancy.h of CUDA 13.0, compiled and run for these inputs)."""

from dataclasses import replace

import pytest

from heuristics.archs import get_arch
from heuristics.occupancy import block_slots, occupancy, of_tile
from kernel_zoo.spec import GemmProblem, Resources, TileConfig

#: Warps a program, registers a thread, bytes of shared memory a program.
CASES = (
    (4, 96, 49152),
    (8, 255, 98304),
    (8, 128, 147456),
    (4, 168, 65536),
    (4, 32, 0),
    (1, 16, 0),
    (2, 24, 1024),
    (4, 40, 30000),
    (8, 64, 0),
    (4, 255, 232448),
    (16, 128, 0),
    (16, 64, 65536),
    (3, 72, 20000),
    (4, 90, 101376),
    (8, 200, 99328),
    (1, 255, 0),
    (4, 128, 8192),
)
#: For each device and case: programs an SM, then the limits by registers, shared memory, threads and block slots.
EXPECTED = {
    "a100": """
        3/5/3/16/32 1/1/1/8/32 1/2/1/8/32 2/3/2/16/32 16/16/164/16/32 32/128/164/64/32 32/42/82/32/32 5/12/5/16/32
        4/4/164/8/32 0/2/0/16/32 1/1/164/4/32 2/2/2/4/32 7/9/7/21/32 1/5/1/16/32 1/1/1/8/32 8/8/164/64/32 4/4/18/16/32
    """,
    "sm_86": """
        2/5/2/12/16 1/1/1/6/16 0/2/0/6/16 1/3/1/12/16 12/16/100/12/16 16/128/100/48/16 16/42/50/24/16 3/12/3/12/16
        4/4/100/6/16 0/2/0/12/16 1/1/100/3/16 1/2/1/3/16 4/9/4/16/16 1/5/1/12/16 1/1/1/6/16 8/8/100/48/16 4/4/11/12/16
    """,
    "rtx4090": """
        2/5/2/12/24 1/1/1/6/24 0/2/0/6/24 1/3/1/12/24 12/16/100/12/24 24/128/100/48/24 24/42/50/24/24 3/12/3/12/24
        4/4/100/6/24 0/2/0/12/24 1/1/100/3/24 1/2/1/3/24 4/9/4/16/24 1/5/1/12/24 1/1/1/6/24 8/8/100/48/24 4/4/11/12/24
    """,
    "h200": """
        4/5/4/16/32 1/1/2/8/32 1/2/1/8/32 3/3/3/16/32 16/16/228/16/32 32/128/228/64/32 32/42/114/32/32 7/12/7/16/32
        4/4/228/8/32 1/2/1/16/32 1/1/228/4/32 2/2/3/4/32 9/9/11/21/32 2/5/2/16/32 1/1/2/8/32 8/8/228/64/32
        4/4/25/16/32
    """,
    "b200": """
        4/5/4/16/32 1/1/2/8/32 1/2/1/8/32 3/3/3/16/32 16/16/228/16/32 32/128/228/64/32 32/42/114/32/32 7/12/7/16/32
        4/4/228/8/32 1/2/1/16/32 1/1/228/4/32 2/2/3/4/32 9/9/11/21/32 2/5/2/16/32 1/1/2/8/32 8/8/228/64/32
        4/4/25/16/32
    """,
    "rtx5090": """
        2/5/2/12/24 1/1/1/6/24 0/2/0/6/24 1/3/1/12/24 12/16/100/12/24 24/128/100/48/24 24/42/50/24/24 3/12/3/12/24
        4/4/100/6/24 0/2/0/12/24 1/1/100/3/24 1/2/1/3/24 4/9/4/16/24 1/5/1/12/24 1/1/1/6/24 8/8/100/48/24 4/4/11/12/24
    """,
}


def device(name):
    return replace(get_arch("rtx4090"), name=name, capability=(8, 6)) if name == "sm_86" else get_arch(name)


@pytest.mark.parametrize("name", EXPECTED)
def test_nvidias_calculator_says_the_same(name):
    expected = [[int(number) for number in cell.split("/")] for cell in EXPECTED[name].split()]
    found = [occupancy(device(name), *case) for case in CASES]
    assert [[held.programs, *held.limits.values()] for held in found] == expected
    assert [held.warps for held in found] == [cells[0] * case[0] for cells, case in zip(expected, CASES, strict=True)]


def test_what_limits_is_named():
    h200 = get_arch("h200")
    assert occupancy(h200, 8, 255, 0).limited_by == ("registers",)
    assert occupancy(h200, 4, 32, 100_000).limited_by == ("shared memory",)
    assert occupancy(h200, 16, 16, 0).limited_by == ("threads",)
    assert occupancy(h200, 1, 16, 0).limited_by == ("block slots",)
    assert occupancy(h200, 8, 128, 100_000).limited_by == ("registers", "shared memory")


def test_what_does_not_fit_at_all():
    h200 = get_arch("h200")
    assert occupancy(h200, 4, 64, h200.smem_per_block + 1).limits["shared memory"] == 0
    assert occupancy(h200, 4, 64, h200.smem_per_block).limits["shared memory"] == 1
    assert occupancy(h200, 4, 256, 0).limits["registers"] == 0
    assert occupancy(h200, 33, 16, 0).limits["threads"] == 0


def test_an_unlisted_capability_has_the_next_older_ones_slots():
    assert block_slots((10, 3)) == 32
    assert block_slots((12, 1)) == 24
    assert block_slots((8, 8)) == 16
    assert block_slots((6, 1)) == 16


def test_a_tile_is_judged_by_its_binary_where_that_is_known():
    problem, tile = GemmProblem.of(512, 512, 512, "bf16", "nt"), TileConfig(64, 64, 64, num_warps=4, num_stages=3)
    guessed = of_tile(problem, get_arch("h200"), "tiled", tile)
    assert (guessed.source, guessed.shared_bytes, guessed.registers) == ("formula", 2 * 64 * 64 * 2 * 3, 64 * 64 // 128 + 64)
    known = of_tile(problem, get_arch("h200"), "tiled", tile, Resources(70_000, 168, 0, ("wgmma",)))
    assert (known.source, known.shared_bytes, known.registers, known.programs) == ("compiled", 70_000, 168, 3)
    assert known.as_dict()["limited_by"] == ["registers", "shared memory"]


def test_a_gemv_stages_nothing_and_sums_in_registers():
    problem, tile = GemmProblem.of(2, 4096, 4096, "bf16", "nt"), TileConfig(1, 4, 1024, 1, 1, 4, 1)
    held = of_tile(problem, get_arch("h200"), "gemv", tile)
    assert held.shared_bytes == 0
    assert held.registers == 4 * 1024 // 128 * 3 + 40
