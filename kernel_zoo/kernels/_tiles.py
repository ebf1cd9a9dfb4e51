"""Candidate tiles of the pointer kernels, what an SM holds of a tile, and how a tile sums K.

Spaces repeat: here and in the kernels' files they are made once for each thing they depend on, for a choice asks in the call path.
"""

from __future__ import annotations

from functools import cache

from kernel_zoo.kernels._rules import last_answer
from kernel_zoo.spec import VECTOR_BYTES, Arch, GemmProblem, TileConfig


def tiles(*specs: tuple[int, ...]) -> tuple[TileConfig, ...]:
    """TileConfigs from (block_m, block_n, block_k, num_stages, num_warps) rows."""
    return tuple(TileConfig(m, n, k, num_stages=s, num_warps=w) for m, n, k, s, w in specs)


PointerKind = tuple[bool, bool, bool]


@last_answer
def pointer_kind(problem: GemmProblem) -> PointerKind:
    """What pointer tiles depend on: fp32 inputs, FMA units, lines that are not aligned to 16 bytes."""
    short = min(problem.a.line_align, problem.b.line_align) < VECTOR_BYTES
    return (problem.dtype == "fp32", problem.precision == "ieee", short)


def pointer_tiles(problem: GemmProblem, least: int = 1) -> tuple[TileConfig, ...]:
    """Candidate tiles for a main loop through pointers, with no side of the result under `least`."""
    return pointer_tiles_of(pointer_kind(problem), least)


@cache
def pointer_tiles_of(kind: PointerKind, least: int = 1) -> tuple[TileConfig, ...]:
    """Those of a kind of problem."""
    return tuple(tile for tile in _pointer_tiles(*kind) if min(tile.block_m, tile.block_n) >= least)


def _pointer_tiles(fp32: bool, ieee: bool, short: bool) -> tuple[TileConfig, ...]:
    if fp32 and ieee:
        return tiles(
            (16, 64, 32, 3, 4), (32, 32, 32, 3, 4), (32, 64, 32, 3, 4), (64, 32, 32, 3, 4), (64, 64, 16, 4, 4),
            (64, 64, 32, 3, 4), (64, 128, 16, 3, 4), (128, 64, 16, 3, 4), (128, 64, 16, 3, 8), (128, 128, 16, 3, 8),
        )  # fmt: skip
    if fp32:
        return tiles(
            (16, 64, 64, 3, 4), (32, 64, 32, 4, 4), (64, 64, 32, 3, 4), (64, 128, 32, 3, 4), (128, 64, 32, 3, 4),
            (128, 128, 32, 3, 8), (128, 128, 16, 3, 8), (64, 64, 64, 2, 4),
        )  # fmt: skip
    if short:
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
