"""The cost of tiles on one device: the picture behind the model, over arrays of candidates.

A launch is a number of programs over SMs, and the busiest SM decides. Each of its programs fills a pipeline, pays per k block for
what it computes and what it moves, then stores. Device memory bounds the whole; splitting K adds a second pass over partial sums.
Tile quantisation (blocks beyond the matrix still cost), wave quantisation (whole programs per SM) and the overlap of programs that
share an SM follow from that picture. How close a kernel comes to each rate does not: that is in `coefficients`. What a tile costs
whatever the sizes is in `tile_cost`; here is how many of them the sizes make, and what they add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from heuristics.beside import NOTHING, copy_us, last_arriver_us, second_launch_us, some
from heuristics.coefficients import Fitted, in_force
from heuristics.pairs import OPAQUE, PAIRS, TILED, VECTOR, Array, Flags, Rows
from heuristics.roof import NET_LAUNCH_US, library_us
from heuristics.sizes import PLAIN_PITCH, Size, Sizes, holds, larger
from heuristics.tile_columns import StreamCosts, TileCosts
from heuristics.tile_cost import STARTED, ProblemClass, Setting, join, setting
from kernel_zoo.spec import Arch, Estimate, GemmProblem, TileConfig

_ROOF_EXPONENT: Final = 8.0  # joins the SMs' time and device memory's: both at once cost a little more than the longer
_REREAD: Final = 0.25  # of what is asked of device memory again; most is still there
_ONE: Final = np.array(1.0)  # numpy is quicker with arrays than with numbers
_PARTS: Final = ("launch", "main loop", "fill and store", "device memory", "reduction", "copy")


class Costs(NamedTuple):
    """Microseconds, an element per candidate: the whole, and what it is made of."""

    total: Array
    launch: Array
    main: Array
    ends: Array
    memory: Array
    reduction: Size
    copy: Size


class Scorer:
    """Scores candidates for one problem on one device."""

    def __init__(self, problem: GemmProblem, arch: Arch, fitted: Fitted | None = None) -> None:
        """Args: the problem, the device, and a table's coefficients by variant."""
        self.problem, self.arch = problem, arch
        self._kernels = in_force(fitted)
        self._setting = setting(ProblemClass.of(problem), arch, self._kernels)
        self._empty = problem.empty

    def costs(self, numbers: Sequence[int] | Rows) -> Costs:
        """The costs of candidates given by their numbers in `pairs`. An empty problem takes no time."""
        rows = np.asarray(numbers, np.intp)
        if self._empty or not len(rows):
            return Costs(*np.zeros((len(Costs._fields), len(rows))))
        return costs(self._setting, rows, Sizes.of(self.problem), lambda: library_us(self.problem, self.arch))

    def totals(self, numbers: Sequence[int] | Rows) -> Array:
        """The same without what they are made of."""
        rows = np.asarray(numbers, np.intp)
        if self._empty or not len(rows):
            return np.zeros(len(rows))
        return totals(self._setting, rows, Sizes.of(self.problem), lambda: library_us(self.problem, self.arch))

    def times(self, picks: Sequence[tuple[str, TileConfig | None]]) -> Array:
        """The estimates alone, in microseconds."""
        return self.totals([PAIRS.numbers(variant, (tile,))[0] for variant, tile in picks])

    def time_us(self, variant: str, tile: TileConfig | None) -> float:
        """One estimate alone."""
        return float(self.times([(variant, tile)])[0])

    def estimate(self, variant: str, tile: TileConfig | None) -> Estimate:
        """A time and what it is made of. An empty problem takes none."""
        return self.estimates([(variant, tile)])[0]

    def estimates(self, picks: Sequence[tuple[str, TileConfig | None]]) -> list[Estimate]:
        """Times and what they are made of."""
        found = self.costs([PAIRS.numbers(variant, (tile,))[0] for variant, tile in picks])
        rows = zip(*(column.tolist() for column in found), strict=True)
        return [self._named(tile, *row) for (_, tile), row in zip(picks, rows, strict=True)]

    def _named(self, tile: TileConfig | None, total: float, *parts: float) -> Estimate:
        if self._empty:
            return Estimate(0.0)
        if tile is None:
            return Estimate(total, {"launch": NET_LAUNCH_US, "product": total - NET_LAUNCH_US})
        made = dict(zip(_PARTS, parts, strict=True))
        if not made["copy"]:
            del made["copy"]
        return Estimate(total, made)


def times_us(
    problem: GemmProblem, arch: Arch, picks: Sequence[tuple[str, TileConfig | None]], fitted: Fitted | None = None
) -> Array:
    """The model's times of variants and tiles for one problem, in microseconds: what a fit compares with measured ones."""
    return Scorer(problem, arch, fitted).times(picks)


@np.errstate(all="ignore")  # coefficients of a file can be such that a time is no number: it is ranked last
def costs(setting: Setting, rows: Rows, sizes: Sizes, library: Callable[[], Size]) -> Costs:
    """The costs of pairs at given sizes, which are a problem's or one problem's per candidate, all of the setting's class.

    `library` gives a library's own times for such products; it is asked where a pair has no tile.
    """
    found = np.empty((len(Costs._fields), len(rows)))
    for where, part in _by_kind(setting, rows, sizes, library):
        _put(found, where, part)
    return Costs(*found)


def _put(found: Array, where: Any, part: Costs) -> None:
    for row, column in zip(found, part, strict=True):
        row[where] = column


@np.errstate(all="ignore")
def totals(setting: Setting, rows: Rows, sizes: Sizes, library: Callable[[], Size]) -> Array:
    """`costs(...).total`, which is all that a choice needs."""
    if not some(PAIRS.kinds(rows)):  # all are TILED
        return _tiles_of(setting, rows, sizes).total
    found = np.empty(len(rows))
    for where, part in _by_kind(setting, rows, sizes, library):
        found[where] = part.total
    return found


def _by_kind(setting: Setting, rows: Rows, sizes: Sizes, library: Callable[[], Size]) -> Iterator[tuple[Any, Costs]]:
    """The candidates of each kind, and their costs."""
    kinds = PAIRS.kinds(rows)
    if not some(kinds):  # all are TILED
        yield slice(None), _tiles_of(setting, rows, sizes)
        return
    for kind, cost in ((TILED, _tiles_of), (VECTOR, _vectors_of)):
        where = (kinds == kind).nonzero()[0]
        if len(where):
            yield where, cost(setting, rows[where], _at(sizes, where))
    where = (kinds == OPAQUE).nonzero()[0]
    if len(where):
        product, none = _part(library(), where), np.zeros(len(where))
        yield where, Costs(NET_LAUNCH_US + product + none, NET_LAUNCH_US + none, product + none, none, none, none, none)


def _tiles_of(setting: Setting, rows: Rows, sizes: Sizes) -> Costs:
    return _tiles(setting, setting.costs(rows), sizes)


def _vectors_of(setting: Setting, rows: Rows, sizes: Sizes) -> Costs:
    """A gemv streams B where M is the narrow side, else A: candidates of one problem agree in that."""
    narrow_m = np.less_equal(sizes.m, sizes.n)
    if not isinstance(sizes.m, np.ndarray):
        return _gemv(setting, setting.streams(bool(narrow_m), rows), sizes, bool(narrow_m))
    found = np.empty((len(Costs._fields), len(rows)))
    for side in (True, False):
        where = (narrow_m == side).nonzero()[0]
        if len(where):
            _put(found, where, _gemv(setting, setting.streams(side, rows[where]), _at(sizes, where), side))
    return Costs(*found)


def _at(sizes: Sizes, where: Rows) -> Sizes:
    return Sizes(*(size[where] for size in sizes)) if isinstance(sizes.m, np.ndarray) else sizes


def _part(size: Size, where: Rows) -> Size:
    return size[where] if isinstance(size, np.ndarray) else size


def _tiles(s: Setting, t: TileCosts, sizes: Sizes) -> Costs:
    """Tiled products: any variant but gemv."""
    tiles_m, tiles_n, steps, blocks = np.ceil(np.array((sizes.m, sizes.n, sizes.k, sizes.k), float).reshape(4, -1) / t.spans)
    tiles = tiles_m * tiles_n
    programs = tiles * (sizes.batch * t.split_k)
    per_sm = np.ceil(programs / s.sms)
    together = np.minimum(per_sm, t.fit)
    busy = np.minimum(programs, s.sms)

    port, later = np.where(together == _ONE, t.alone, t.shared)
    traffic, filled = _traffic(s, t, sizes)
    moved = np.maximum(traffic / np.minimum(t.together / busy, port), t.issue)
    joined = (t.work + moved**t.overlap) ** t.inverse
    wait, beside = t.waits / together
    step = np.maximum(wait, joined + beside)

    ends_once = filled + t.tail * (blocks * t.spans[3] > sizes.k)
    ends = ends_once * (_ONE + (np.ceil(per_sm / together) - _ONE) * later)
    main = per_sm * steps * step
    if some(t.hands):  # ends hide under the other tile's products, as far as those last
        hidden = np.ceil(per_sm / t.hands) * (steps * step + ends_once) - main
        ends = np.where(t.hands != 0, np.maximum(ends, hidden), ends)
    memory = _memory_bytes(s, t, sizes, tiles_m, tiles_n, busy * together) / t.memory
    reduction = second_launch_us(s, sizes, t.split_k, t.second, t.memory, t.partial)
    reduction = last_arriver_us(s, sizes, t, tiles, reduction)
    copy = copy_us(sizes, t)
    launch = _launch_us(s, sizes, t.launch, t.begun, t.early)
    total = launch + join(main, memory, _ROOF_EXPONENT) + ends
    for more in (reduction, copy):
        total = total if more is NOTHING else total + more
    return Costs(total * t.factor, launch, main, ends, memory, reduction, copy)


def _launch_us(s: Setting, sizes: Sizes, launch: Size, begun: Size, early: Array) -> Size:
    """A launch; what is left of it where it begins while the one before it ends."""
    products = sizes.batch * sizes.m * sizes.n * sizes.k * s.item / (s.arch.tflops["bf16"] * 1e6)
    roof = larger(products, sizes.least_bytes / s.bandwidth)
    return np.where(roof <= early, begun, launch)


def _traffic(s: Setting, t: TileCosts, sizes: Sizes) -> tuple[Array, Array]:
    """Bytes of a k block from L2; a program's ends with their way."""
    if sizes.pitch_a is sizes.pitch_b is PLAIN_PITCH:
        return t.traffic, t.filled
    more_a, more_b = _more(s, sizes.pitch_a), _more(s, sizes.pitch_b)
    if not isinstance(more_a, np.ndarray) and more_a == more_b == 1.0:
        return t.traffic, t.filled
    traffic = t.traffic_a * more_a + t.traffic_b * more_b
    return traffic, t.ends + traffic / t.alone[0]


def _more(s: Setting, number: Size) -> Size:
    """By how much a pitch, given by its number, multiplies the traffic of the lines."""
    return s.more.take(number.astype(np.intp)) if isinstance(number, np.ndarray) else s.more[number]


def _memory_bytes(s: Setting, t: TileCosts, sizes: Sizes, tiles_m: Array, tiles_n: Array, wave: Array) -> Size:
    """Traffic with device memory: each operand once where L2 holds it, else again for some bands of tiles."""
    line = sizes.k * s.item
    bytes_a, bytes_b = sizes.m * line, sizes.n * line
    large_a, large_b = holds(bytes_a > s.cache_bytes), holds(bytes_b > s.cache_bytes)
    if not large_a and not large_b:
        return sizes.least_bytes
    # Bands of group_m tiles run along the kernel's N, which is the problem's M where the operands are swapped.
    swap = t.swap > 0 if some(t.swap) else None
    banded, along = _swapped(swap, tiles_m, tiles_n)
    across = np.minimum(np.ceil(wave / np.minimum(t.group_m, banded)), along)
    down = np.minimum(np.ceil(wave / across), banded)
    wave_m, wave_n = _swapped(swap, down, across)  # tiles of a wave along the problem's sides
    again: Size = 0.0
    if large_a:
        again = (np.ceil(tiles_n / wave_n) - _ONE) * (bytes_a * (bytes_a > s.cache_bytes))
    if large_b:
        again = again + (np.ceil(tiles_m / wave_m) - _ONE) * (bytes_b * (bytes_b > s.cache_bytes))
    return sizes.least_bytes + _REREAD * sizes.batch * again


def _swapped(swap: Flags | None, first: Array, second: Array) -> tuple[Array, Array]:
    return (first, second) if swap is None else (np.where(swap, second, first), np.where(swap, first, second))


def _gemv(s: Setting, t: StreamCosts, sizes: Sizes, narrow_m: bool) -> Costs:
    """CUDA cores over a stream of the larger matrix; what the resident programs hold in registers is what is in flight."""
    c, arch = s.vector, s.arch
    narrow, wide = (sizes.m, sizes.n) if narrow_m else (sizes.n, sizes.m)
    programs = np.ceil(wide / t.block_n) * (sizes.batch * t.split_k)
    per_sm = np.ceil(programs / s.sms)
    registers = t.threads * np.minimum(255, t.each * (narrow + 1) + 40)
    together = np.minimum(per_sm, np.maximum(1, np.minimum(t.held, arch.registers_per_sm // registers)))

    moved = t.traffic * _more(s, sizes.pitch_b if narrow_m else sizes.pitch_a) * np.minimum(programs, s.sms)
    step = np.maximum(np.maximum(t.work * narrow, moved), (c.latency + c.step) / together)
    ends = (c.fill + c.store + 0.05 + t.tree * narrow) * (1 + 0.3 * (np.ceil(per_sm / together) - 1))
    main = per_sm * np.ceil(sizes.k / t.range_k) * step
    memory_rate, partial_rate = s.rates(c)
    memory = t.waste * (sizes.least_bytes / memory_rate)
    reduction = second_launch_us(s, sizes, t.split_k, t.second, memory_rate, partial_rate)
    launch = _launch_us(s, sizes, c.launch, c.launch * STARTED, t.early)
    total = (launch + join(main, memory, _ROOF_EXPONENT) + ends + reduction) * t.factor
    return Costs(total, launch, main, ends, memory, reduction, NOTHING)


__all__ = ["Costs", "Fitted", "Scorer", "Sizes", "costs", "times_us", "totals"]
