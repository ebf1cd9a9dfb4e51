"""What a product costs beside its own launch and programs: partial sums added up, operands copied first."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from heuristics.pairs import Array
from heuristics.sizes import Size, Sizes, holds, larger, smaller
from heuristics.tile_columns import TileCosts
from heuristics.tile_cost import Setting

_WHOLE: Final = 1.0
NOTHING: Final = 0.0  # what no candidate pays, known by its identity


def some(column: NDArray[Any]) -> bool:
    """Whether a column is other than 0 anywhere."""
    return column.nonzero()[0].size > 0  # np.count_nonzero is a function in Python, and any() another


def second_launch_us(s: Setting, sizes: Sizes, split_k: Array, second: Array, memory: Size, l2: Size) -> Size:
    """A second launch that reads every partial sum, mostly from L2, and writes the result.

    `second` is the time of one that does neither; `memory` and `l2` are the rates of device memory, and of partial sums from L2.
    """
    if not some(second):
        return NOTHING
    elements = sizes.batch * sizes.m * sizes.n
    partial = 4 * elements * split_k
    fast = np.where(partial < s.cache_bytes, l2, memory)
    reach = smaller(_WHOLE, larger(1, elements // 512) / s.arch.sm_count)
    result = elements * (s.out_item + s.extra_item) / memory
    return np.where(second != 0, second + partial / (fast if reach is _WHOLE else fast * reach) + result, 0.0)


def last_arriver_us(s: Setting, sizes: Sizes, t: TileCosts, tiles: Array, reduction: Size) -> Size:
    """The last program of a tile waits for the count, reads every partial tile through its SM's port, and writes the result.

    `reduction` is what others than last arrivers pay.
    """
    if not some(t.arrive):
        return reduction
    rounds = np.ceil(tiles * sizes.batch / s.sms)  # tiles that the busiest SM finishes
    return np.where(t.arrive != 0, t.wait + rounds * t.arrive, reduction)


def copy_us(sizes: Sizes, t: TileCosts) -> Size:
    """A launch ahead that writes operands anew, to lines the copy engine can take."""
    if not holds(sizes.copied_bytes > 0) or not some(t.copies):
        return NOTHING
    copies = (t.copies > 0) & (sizes.copied_bytes > 0)
    return np.where(copies, t.wait + sizes.copied_bytes / np.minimum(t.memory, t.partial), 0.0)
