"""Candidate tiles of the pointer kernels, what an SM holds of a tile, and how a tile sums K."""

from __future__ import annotations

from kernel_zoo.spec import VECTOR_BYTES, Arch, GemmProblem, TileConfig


def tiles(*specs: tuple[int, ...]) -> list[TileConfig]:
    """TileConfigs from (block_m, block_n, block_k, num_stages, num_warps) rows."""
    return [TileConfig(m, n, k, num_stages=s, num_warps=w) for m, n, k, s, w in specs]


def pointer_tiles(problem: GemmProblem) -> list[TileConfig]:
    """Candidate tiles for a main loop through pointers."""
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return tiles(
            (16, 64, 32, 3, 4), (32, 32, 32, 3, 4), (32, 64, 32, 3, 4), (64, 32, 32, 3, 4), (64, 64, 16, 4, 4),
            (64, 64, 32, 3, 4), (64, 128, 16, 3, 4), (128, 64, 16, 3, 4), (128, 64, 16, 3, 8), (128, 128, 16, 3, 8),
        )  # fmt: skip
    if problem.dtype == "fp32":
        return tiles(
            (16, 64, 64, 3, 4), (32, 64, 32, 4, 4), (64, 64, 32, 3, 4), (64, 128, 32, 3, 4), (128, 64, 32, 3, 4),
            (128, 128, 32, 3, 8), (128, 128, 16, 3, 8), (64, 64, 64, 2, 4),
        )  # fmt: skip
    if min(problem.a.line_align, problem.b.line_align) < VECTOR_BYTES:
        # Short accesses: a small block_k, or more warps, so that the addresses fit in registers.
        return tiles(
            (16, 32, 64, 4, 4), (16, 64, 64, 4, 4), (16, 128, 32, 4, 4), (32, 32, 64, 4, 4), (32, 64, 32, 4, 4),
            (64, 32, 32, 4, 4), (64, 16, 32, 4, 4), (64, 64, 32, 4, 4), (64, 64, 64, 3, 8), (64, 128, 32, 4, 8),
            (128, 64, 32, 4, 8), (64, 256, 16, 4, 8), (128, 128, 16, 4, 8), (128, 128, 32, 4, 8), (128, 128, 64, 3, 8),
        )  # fmt: skip
    return tiles(
        (16, 32, 128, 4, 4), (16, 64, 128, 4, 4), (32, 32, 128, 4, 4), (32, 64, 128, 4, 4), (64, 16, 128, 5, 4),
        (64, 32, 128, 5, 4), (64, 64, 64, 4, 4), (64, 64, 128, 3, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4),
        (128, 128, 32, 4, 8), (128, 128, 64, 3, 4), (128, 128, 64, 4, 8), (128, 256, 64, 3, 8), (256, 128, 64, 3, 8),
    )  # fmt: skip


def occupancy(itemsize: int, tile: TileConfig, arch: Arch) -> int:
    """Programs an SM is expected to hold, from shared memory, the accumulator's registers and threads. At least 1, at most 4."""
    shared = (tile.block_m + tile.block_n) * tile.block_k * itemsize * tile.num_stages + 1024
    threads = 32 * tile.num_warps
    registers = threads * min(255, tile.block_m * tile.block_n // threads + 72)
    return max(1, min(4, arch.smem_per_sm // shared, arch.registers_per_sm // registers, arch.threads_per_sm // threads))


def instruction_family(problem: GemmProblem, tile: TileConfig) -> str:
    """Which units form the products: their internal order of summation is part of a result's bits."""
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return f"fma-k{tile.block_k}"
    wgmma = tile.block_m >= 64 and tile.num_warps >= 4
    return f"{'wgmma' if wgmma else 'mma'}-{problem.precision or problem.dtype}-k{tile.block_k}"


def sequential_reduction(problem: GemmProblem, tile: TileConfig) -> str:
    """K summed front to back by one program."""
    return f"sequential {instruction_family(problem, tile)}"
