"""What a binary's needs depend on, as text: the key under which the resource data keep them.

Sizes, group_m, split_k and knobs of the launch are left out: they change when and how often a kernel runs, not what it needs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernel_zoo.spec.choice import TileConfig
from kernel_zoo.spec.dtypes import VECTOR_BYTES, next_pow2
from kernel_zoo.spec.problem import GemmProblem

#: A key's binaries, heaviest first: with everything an epilogue can read, and gelu; with the accumulator only stored; and that with
#: sizes that the tile divides, so that nothing is masked.
FORMS: Final = ("heavy", "plain", "even")
#: Knobs of how a binary is launched: in which order tiles are walked, as group_m says, and when programs may start.
_LAUNCH_KNOBS: Final = ("early", "serpentine")


def is_vectorised(problem: GemmProblem) -> bool:
    """Every line of A and B can be read 16 bytes at a time."""
    return min(problem.a.line_align, problem.b.line_align) >= VECTOR_BYTES


def binary_class(problem: GemmProblem) -> str:
    """What a problem decides of a binary: "16bit nt 16", "fp32.tf32 nn any" (aligned to one element)."""
    dtype = "16bit" if problem.dtype in ("fp16", "bf16") else problem.dtype
    precision = f".{problem.precision}" if problem.precision else ""
    return f"{dtype}{precision} {problem.layout} {VECTOR_BYTES if is_vectorised(problem) else 'any'}"


def tile_key(problem: GemmProblem, tile: TileConfig) -> str:
    """What a tile decides of a binary: "128x256x64 w8 s3 flatten1". Rows that are not tiled are part of it."""
    key = _key(tile)
    return f"{key} rows{next_pow2(min(problem.m, problem.n))}" if tile.block_m == 1 else key


@lru_cache(maxsize=1 << 12)
def _key(tile: TileConfig) -> str:
    knobs = "".join([f" {name}{value}" for name, value in tile.knobs if name not in _LAUNCH_KNOBS]) if tile.knobs else ""
    return f"{tile.block_m}x{tile.block_n}x{tile.block_k} w{tile.num_warps} s{tile.num_stages}{knobs}"


def tails(problem: GemmProblem, tile: TileConfig) -> tuple[bool, bool, bool]:
    """Which of M, N and K, as the kernel has them, the tile does not divide, so that it masks; rows that are not tiled are as N."""
    m, n = problem.m, problem.n
    if tile.knob("swap") or (tile.block_m == 1 and m > n):
        m, n = n, m
    cols = n % tile.block_n != 0
    return (m % tile.block_m != 0 if tile.block_m > 1 else cols, cols, problem.k % tile.block_k != 0)
