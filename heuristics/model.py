"""The analytical model's answers: estimate a tile, rank the legal ones, shortlist those worth measuring. `cost` has the picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

from heuristics.coefficients import COEFFICIENTS, Coefficients, Fitted
from heuristics.cost import Scorer, times_us
from heuristics.pairs import PAIRS, Array, Rows
from heuristics.roof import rate, ridge, roof_us
from kernel_zoo.spec import Arch, Candidate, Estimate, GemmProblem, Refusal, TileConfig, Variant

_EQUAL: Final = 1.005  # estimates this close are equal: what the kernels need beside time decides
_MOST_EQUAL: Final = 8  # candidates that are compared so
_NO_TILE: Final = (None,)
PER_VARIANT: Final = 2  # candidates that each variant sends to a tuner, whatever the model thinks of it


class Judge(Protocol):
    """Who may serve a problem on a device: a Legality, or one with the caller's policy."""

    @property
    def problem(self) -> GemmProblem:
        """What is to be served."""

    @property
    def arch(self) -> Arch:
        """Where."""

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Why the variant (with the tile) may not serve."""


def estimate(
    problem: GemmProblem, arch: Arch, variant_name: str, tile: TileConfig | None, fitted: Fitted | None = None
) -> Estimate:
    """The model's time for one variant and tile; `fitted` are coefficients of a table file."""
    return Scorer(problem, arch, fitted).estimate(variant_name, tile)


def legal(
    may: Judge, variants: Iterable[Variant], fitted: Fitted | None = None
) -> Iterator[tuple[float, Variant, TileConfig | None]]:
    """(time in us, variant, tile) of every legal candidate, best first; a tile's legality is asked when its turn comes.

    Ties go to the least scratch memory, then to the tile that moves the fewest bytes for its products, then to the variant and the
    tile mentioned first.
    """
    return best_of(may, {variant.name: variant for variant in variants if may.refusal(variant) is None}, fitted)


def best_of(
    may: Judge, able: Mapping[str, Variant], fitted: Fitted | None = None
) -> Iterator[tuple[float, Variant, TileConfig | None]]:
    """The same of variants that are known to take the problem, by name."""
    numbers = proposals(may, able.values())
    times = Scorer(may.problem, may.arch, fitted).totals(numbers)
    for index in best_first(times, numbers):
        name, tile = PAIRS.pairs[numbers[index]]
        if tile is None or may.refusal(able[name], tile) is None:
            yield float(times[index]), able[name], tile


def proposals(may: Judge, able: Iterable[Variant]) -> Rows:
    """What variants that take the problem propose: numbers in `pairs`. Tiles are not checked."""
    spaces = [(v.name, v.space(may.problem, may.arch) if v.recipe is not None else _NO_TILE) for v in able]
    return PAIRS.joined(spaces)


def best_first(times_us: Array, numbers: Sequence[int] | Rows) -> Iterator[int]:
    """Indices by time, ties broken. Those behind the best and its equals are put in order when they are asked for."""
    start = 0
    if len(times_us):
        least = times_us.item(times_us.argmin())
        equal = (times_us <= _EQUAL * least).nonzero()[0].tolist()  # none where a time is no number: argmin finds that
        if len(equal) <= _MOST_EQUAL:
            start = len(equal)
            yield from _ties_broken(equal, numbers)
    order, times = times_us.argsort(kind="stable").tolist(), times_us.tolist()
    while start < len(order):
        stop, limit = start + 1, _EQUAL * times[order[start]]
        while stop < len(order) and stop < start + _MOST_EQUAL and times[order[stop]] <= limit:
            stop += 1
        yield from _ties_broken(order[start:stop], numbers)
        start = stop


def _ties_broken(equal: list[int], numbers: Sequence[int] | Rows) -> list[int]:
    """Indices of candidates that take equally long, by what else they need, then in order."""
    return equal if len(equal) == 1 else sorted(equal, key=lambda index: (*_needs(int(numbers[index])), index))


@lru_cache(maxsize=1 << 12)
def _needs(number: int) -> tuple[int, float]:
    """Partial sums kept in scratch memory, in results, and bytes moved per product, both the less the better."""
    tile = PAIRS.pairs[number][1]
    if tile is None:
        return (0, 0.0)
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    return (tile.split_k if tile.split_k > 1 else 0, (m * k + n * k + m * n) / (m * n * k))


def rank(may: Judge, variants: Iterable[Variant], fitted: Fitted | None = None) -> list[Candidate]:
    """Every legal variant and tile, best first."""
    found = [(variant.name, tile) for _, variant, tile in legal(may, variants, fitted)]
    estimates = Scorer(may.problem, may.arch, fitted).estimates(found)
    return [Candidate(name, tile, estimate) for (name, tile), estimate in zip(found, estimates, strict=True)]


def shortlist(
    may: Judge, variants: Iterable[Variant], count: int = 16, fitted: Fitted | None = None, per_variant: int = PER_VARIANT
) -> list[Candidate]:
    """The candidates worth measuring, best first: the model's favourites, varied.

    Half of the list is the model's own ranking: the order among its first few is what it knows least of. A model that is wrong
    about a family must not hide it from a tuner, so each variant that can serve sends its best tiles, `per_variant` of them, of as
    many block shapes as there are; a second one of each only as far as there is room. One that cannot tell two knobs apart must
    not fill the list with them, so block_m x block_n x block_k recurs three times at most. The list is as long as `count`, or,
    where more than PER_VARIANT of a variant are asked for, as long as that takes.
    """
    ranked = rank(may, variants, fitted)
    sent = _of_each(ranked, per_variant)
    varied = _varied(ranked)
    if per_variant > PER_VARIANT:
        count, wanted = max(count, len(sent)), [*sorted(sent), *varied]
    else:
        wanted = [*varied[: count // 2], *sorted(_of_each(ranked, 1)), *sorted(sent), *varied]
    chosen = list(dict.fromkeys((*wanted, *range(len(ranked)))))[:count]
    return [ranked[index] for index in sorted(chosen)]


def _varied(ranked: Sequence[Candidate], limit: int = 3) -> list[int]:
    """The ranking with so many of a variant's block shape at most."""
    seen: dict[tuple[object, ...], int] = {}
    found = []
    for index, candidate in enumerate(ranked):
        family = (candidate.variant, _sides(candidate))
        seen[family] = seen.get(family, 0) + 1
        if seen[family] <= limit:
            found.append(index)
    return found


def _of_each(ranked: Sequence[Candidate], per_variant: int) -> set[int]:
    """The best of each variant, one of every block shape before a second of any; where PER_VARIANT suffice, no second of any."""
    chosen: set[int] = set()
    sent: dict[str, list[tuple[int, ...]]] = {}
    rounds = (1,) if per_variant <= PER_VARIANT else (1, 2, len(ranked))
    for most in rounds:
        for index, candidate in enumerate(ranked):
            sides = sent.setdefault(candidate.variant, [])
            if index not in chosen and len(sides) < per_variant and sides.count(_sides(candidate)) < most:
                sides.append(_sides(candidate))
                chosen.add(index)
    return chosen


def _sides(candidate: Candidate) -> tuple[int, ...]:
    tile = candidate.tile
    return (tile.block_m, tile.block_n, tile.block_k) if tile is not None else ()


__all__ = [
    "COEFFICIENTS",
    "PER_VARIANT",
    "Coefficients",
    "Judge",
    "Scorer",
    "estimate",
    "legal",
    "rank",
    "rate",
    "ridge",
    "roof_us",
    "shortlist",
    "times_us",
]
