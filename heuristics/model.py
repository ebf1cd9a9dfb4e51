"""The analytical model's answers: estimate a tile, rank the legal ones, shortlist those worth measuring. `cost` has the picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from heuristics.cost import COEFFICIENTS, Coefficients, Fitted, Scorer, rate, roof_us
from kernel_zoo.spec import Arch, Candidate, Estimate, GemmProblem, TileConfig, Variant

Proposal = tuple[float, int, Variant, TileConfig | None]  # time in us, order of mention, variant, tile


def estimate(
    problem: GemmProblem, arch: Arch, variant_name: str, tile: TileConfig | None, fitted: Fitted | None = None
) -> Estimate:
    """The model's time for one variant and tile; `fitted` are coefficients of a table file."""
    return Scorer(problem, arch, fitted).estimate(variant_name, tile)


def ridge(problem: GemmProblem, arch: Arch) -> float:
    """Operations a byte at which the device's arithmetic and memory take equally long."""
    return rate(problem, arch) * 1e3 / arch.bandwidth_gbps


def proposals(scorer: Scorer, variants: Iterable[Variant]) -> list[Proposal]:
    """Every tile that variants supporting the problem propose, best first; tiles are not yet checked.

    Ties go to the variant, then the tile, that was mentioned first.
    """
    problem, arch = scorer.problem, scorer.arch
    found: list[Proposal] = []
    for variant in variants:
        if variant.refusal(problem, arch) is not None:
            continue
        tiles: Sequence[TileConfig | None] = variant.space(problem, arch) if variant.recipe is not None else (None,)
        found += [(scorer.time_us(variant.name, tile), order, variant, tile) for order, tile in enumerate(tiles, len(found))]
    found.sort()  # the order of mention is unique: variants are never compared
    return found


def legal(proposed: Iterable[Proposal], problem: GemmProblem, arch: Arch) -> Iterator[Proposal]:
    """The proposals that stand: the same statement of legality as Variant.refusal, whose first half is already made."""
    return (item for item in proposed if item[3] is None or item[2].fits(problem, item[3], arch) is None)


def rank(problem: GemmProblem, arch: Arch, variants: Iterable[Variant], fitted: Fitted | None = None) -> list[Candidate]:
    """Every legal variant and tile, best first."""
    scorer = Scorer(problem, arch, fitted)
    found = legal(proposals(scorer, variants), problem, arch)
    return [Candidate(variant.name, tile, scorer.estimate(variant.name, tile)) for _, _, variant, tile in found]


def shortlist(
    problem: GemmProblem, arch: Arch, variants: Iterable[Variant], count: int = 16, fitted: Fitted | None = None
) -> list[Candidate]:
    """The candidates worth measuring, best first: the model's favourites, varied.

    A model that is wrong about a family must not hide it from a tuner, so each variant that can serve sends its best two tiles. One
    that cannot tell two knobs apart must not fill the list with them, so block_m x block_n x block_k recurs three times at most.
    """
    ranked = rank(problem, arch, variants, fitted)
    families: dict[str, set[tuple[int, ...]]] = {}
    chosen: set[int] = set()
    for index, candidate in enumerate(ranked):
        sides = families.setdefault(candidate.variant, set())
        if len(sides) < 2 and _sides(candidate) not in sides:
            sides.add(_sides(candidate))
            chosen.add(index)
    if len(chosen) > count:
        chosen = set(sorted(chosen)[:count])
    for limit in (3, len(ranked)):
        seen: dict[tuple[object, ...], int] = {}
        for index, candidate in enumerate(ranked):
            family = (candidate.variant, _sides(candidate))
            if index in chosen or (len(chosen) < count and seen.get(family, 0) < limit):
                chosen.add(index)
                seen[family] = seen.get(family, 0) + 1
    return [ranked[index] for index in sorted(chosen)]


def _sides(candidate: Candidate) -> tuple[int, ...]:
    tile = candidate.tile
    return (tile.block_m, tile.block_n, tile.block_k) if tile is not None else ()


__all__ = [
    "COEFFICIENTS",
    "Coefficients",
    "Scorer",
    "estimate",
    "legal",
    "proposals",
    "rank",
    "rate",
    "ridge",
    "roof_us",
    "shortlist",
]
