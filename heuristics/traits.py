"""What the model and explain have to know of a variant beside its tile: the one place where they tell variants apart by name.

A variant that is not listed, a user's own say, is taken for a plain tiled kernel; its tile's knobs `tma` and `persistent` count for
any variant.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from kernel_zoo.spec import TileConfig


class Traits(NamedTuple):
    """How a variant's kernel goes about its tiles.

    Attributes:
        vector: it streams one operand past a few rows of the other; rows are not tiled.
        tma: operands come through descriptors.
        resident: programs stay, and walk over tiles.
        helpers: warps of a program that compute nothing and are not in the tile's number. A program that has some leads the whole
            SM, so that there is one at a time.
        hands: tiles that a program works on by turns, so that one's ends hide under the other's products.
        copies: operands whose lines are not aligned to 16 bytes are copied first, by a launch of their own.
        fused: where K is split, the last program of a tile to arrive adds up its partial sums; there is no second launch.
        early_us: from capability 9.0 on, products whose roof is at most so long start while the launch before them ends, unless
            the tile's knob `early` decides it.
    """

    vector: bool = False
    tma: bool = False
    resident: bool = False
    helpers: int = 0
    hands: int = 1
    copies: bool = False
    fused: bool = False
    early_us: float = 0.0

    @property
    def sole(self) -> bool:
        """A program has its SM to itself."""
        return self.helpers > 0


_PLAIN: Final = Traits()
_EARLY: Final = 2.5
_EARLY_ALONE: Final = 8.0
TRAITS: Final[dict[str, Traits]] = {
    "persistent": Traits(resident=True),
    "tma": Traits(tma=True, early_us=_EARLY),
    "split_k": Traits(early_us=_EARLY),
    "gemv": Traits(vector=True, early_us=_EARLY),
    # A warp that loads, and three that fill its group.
    "warp_specialised": Traits(tma=True, resident=True, helpers=4, early_us=_EARLY_ALONE),
    "ping_pong": Traits(tma=True, resident=True, helpers=4, hands=2, early_us=_EARLY_ALONE),
    "repack": Traits(tma=True, copies=True, early_us=_EARLY),
    "split_k_fused": Traits(tma=True, fused=True, early_us=_EARLY),
}


@lru_cache(maxsize=1 << 12)
def traits_of(variant: str, tile: TileConfig | None = None) -> Traits:
    """A variant's traits, with what its tile adds to them."""
    known = TRAITS.get(variant, _PLAIN)
    if tile is None or not tile.knobs:
        return known
    knobs = dict(tile.knobs)
    known = known._replace(tma=known.tma or bool(knobs.get("tma")), resident=known.resident or bool(knobs.get("persistent")))
    if known.early_us and "early" in knobs:
        known = known._replace(early_us=math.inf if knobs["early"] else 0.0)
    return known
