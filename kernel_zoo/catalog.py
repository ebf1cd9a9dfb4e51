"""The zoo: every variant the project ships, in the order in which a tie is broken. A new kernel is one file and one line here."""

from __future__ import annotations

from typing import Final

from kernel_zoo.kernels import (
    aten,
    gemv,
    persistent,
    ping_pong,
    repack,
    split_k,
    split_k_fused,
    tiled,
    tma,
    warp_specialised,
)
from kernel_zoo.spec import Variant

VARIANTS: Final[tuple[Variant, ...]] = (
    warp_specialised.VARIANT,
    ping_pong.VARIANT,
    tma.VARIANT,
    persistent.VARIANT,
    tiled.VARIANT,
    split_k_fused.VARIANT,
    split_k.VARIANT,
    gemv.VARIANT,
    repack.VARIANT,
    aten.VARIANT,
)


def get(name: str) -> Variant:
    """The shipped variant of that name.

    Raises:
        KeyError: there is none.
    """
    return {variant.name: variant for variant in VARIANTS}[name]
