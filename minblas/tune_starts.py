"""Candidates that differ in when their programs may start: before the launch ahead of them on the stream has ended, or after.

Which is faster is clear for short products and for long ones (`Variant.early_us`); between them it is the shape's own affair, by a
tenth at most either way. So the tuner tries the most promising candidates both ways there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from heuristics.roof import roof_us
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas.tune_trial import Pick

_UNSURE_US: Final = (0.8, 40.0)


def other_starts(problem: GemmProblem, arch: Arch, picks: Iterable[Pick], variants: Mapping[str, Variant]) -> list[Pick]:
    """Each pick with the other start, where either may be the faster one; none for launches that never start early."""
    if not _UNSURE_US[0] <= roof_us(problem, arch)[0] <= _UNSURE_US[1]:
        return []
    found = []
    for pick in picks:
        variant = variants.get(pick.variant)
        if variant is not None and variant.early_us > 0 and pick.tile is not None:
            early = variant.plan(problem, pick.tile, arch).calls[0].dependent
            found.append(Pick(pick.variant, _starting(pick.tile, not early)))
    return [pick for pick in found if variants[pick.variant].refusal(problem, arch, pick.tile) is None]


def _starting(tile: TileConfig, early: bool) -> TileConfig:
    knobs = {**dict(tile.knobs), "early": int(early)}
    return replace(tile, knobs=tuple(sorted(knobs.items())))
