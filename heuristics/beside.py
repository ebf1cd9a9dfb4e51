"""What a product costs beside its own launch and programs: partial sums added up, operands copied first."""

from __future__ import annotations

import numpy as np

from heuristics.pairs import Array
from heuristics.sizes import Size, Sizes, holds
from heuristics.tile_cost import Setting, TileCosts


def second_launch_us(s: Setting, sizes: Sizes, split_k: Array, launch: Size, memory: Size, l2: Size) -> Array:
    """A second launch that reads every partial sum, mostly from L2, and writes the result.

    `launch` is the time of one that does nothing; `memory` and `l2` are the rates of device memory, and of partial sums from L2.
    """
    if split_k.max() <= 1:
        return np.zeros_like(split_k)
    elements = sizes.batch * sizes.m * sizes.n
    partial = 4 * elements * split_k
    fast = np.where(partial < s.cache_bytes, l2, memory)
    reach = np.minimum(1.0, np.maximum(1, elements // 512) / s.arch.sm_count)
    result = elements * (s.out_item + s.extra_item) / memory
    return np.where(split_k > 1, launch + 0.02 * split_k + partial / (fast * reach) + result, 0.0)


def last_arriver_us(s: Setting, sizes: Sizes, t: TileCosts, tiles: Array) -> Array:
    """The last program of a tile waits for the count, reads every partial tile through its SM's port, and writes the result."""
    rounds = np.ceil(tiles * sizes.batch / s.arch.sm_count)  # tiles that the busiest SM finishes
    return np.where(t.split_k > 1, t.reduce + rounds * (t.split_k * t.visit + t.result), 0.0)


def copy_us(sizes: Sizes, t: TileCosts) -> Array:
    """A launch ahead that writes operands anew, to lines the copy engine can take."""
    if not t.copies.any() or not holds(sizes.copied_bytes > 0):
        return np.zeros_like(t.copies)
    copies = (t.copies > 0) & (sizes.copied_bytes > 0)
    return np.where(copies, t.reduce + sizes.copied_bytes / np.minimum(t.memory, t.partial), 0.0)
