"""The cost of tiles on one device: the picture behind the model, over arrays of candidates.

A launch is a number of programs over SMs, and the busiest SM decides. Each of its programs fills a pipeline, pays per k block for
what it computes and what it moves, then stores. Device memory bounds the whole; splitting K adds a second pass over partial sums.
Tile quantisation (blocks beyond the matrix still cost), wave quantisation (whole programs per SM) and the overlap of programs that
share an SM follow from that picture. How close a kernel comes to each rate does not: that is in `coefficients`. What a tile costs
whatever the sizes is in `tile_cost`; here is how many of them the sizes make, and what they add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from heuristics.coefficients import PLAIN, Fitted, in_force
from heuristics.pairs import OPAQUE, PAIRS, TILED, VECTOR, Array, Flags, Rows
from heuristics.roof import NET_LAUNCH_US, library_us
from heuristics.tile_cost import ProblemClass, Setting, TileCosts, join, loop, sector_waste, setting
from kernel_zoo.spec import VECTOR_BYTES, Arch, Estimate, GemmProblem, TileConfig

Size = Any  # a number, or an array of one per candidate

_ROOF_EXPONENT: Final = 8.0  # joins the SMs' time and device memory's: both at once cost a little more than the longer
_REREAD: Final = 0.25  # of what is asked of device memory again; most is still there
_PARTS: Final = ("main loop", "fill and store", "device memory", "reduction")


class Sizes(NamedTuple):
    """The sizes of a problem, or of one problem per candidate, and the bytes moved if each operand is read or written once."""

    batch: Size
    m: Size
    n: Size
    k: Size
    least_bytes: Size

    @classmethod
    def of(cls, problem: GemmProblem) -> Sizes:
        """A problem's."""
        return cls(problem.batch, problem.m, problem.n, problem.k, float(problem.least_bytes))


class Costs(NamedTuple):
    """Microseconds, an element per candidate: the whole, and what it is made of beside the launch."""

    total: Array
    main: Array
    ends: Array
    memory: Array
    reduction: Array


class Scorer:
    """Scores candidates for one problem on one device."""

    def __init__(self, problem: GemmProblem, arch: Arch, fitted: Fitted | None = None) -> None:
        """Args: the problem, the device, and a table's coefficients by variant."""
        self.problem, self.arch = problem, arch
        self._kernels = in_force(fitted)
        self._setting = setting(ProblemClass.of(problem), arch, self._kernels)
        self._empty = problem.empty

    def costs(self, numbers: Sequence[int]) -> Costs:
        """The costs of candidates given by their numbers in `pairs`. An empty problem takes no time."""
        rows = np.array(numbers, np.intp)
        if self._empty or not numbers:
            return Costs(*np.zeros((len(Costs._fields), len(rows))))
        return costs(self._setting, rows, Sizes.of(self.problem), lambda: library_us(self.problem, self.arch))

    def times(self, picks: Sequence[tuple[str, TileConfig | None]]) -> Array:
        """The estimates alone, in microseconds."""
        return self.costs([PAIRS.numbers(variant, (tile,))[0] for variant, tile in picks]).total

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
        return [self._named(variant, tile, *row) for (variant, tile), row in zip(picks, rows, strict=True)]

    def _named(self, variant: str, tile: TileConfig | None, total: float, *parts: float) -> Estimate:
        if self._empty:
            return Estimate(0.0)
        if tile is None:
            return Estimate(total, {"launch": NET_LAUNCH_US, "product": total - NET_LAUNCH_US})
        return Estimate(total, {"launch": self._kernels[variant].launch, **dict(zip(_PARTS, parts, strict=True))})


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
    kinds = PAIRS.kinds(rows)
    if not kinds.any():
        return _tiles(setting, setting.costs(rows), sizes)
    found = np.zeros((len(Costs._fields), len(rows)))
    tiles, vectors, opaque = ((kinds == kind).nonzero()[0] for kind in (TILED, VECTOR, OPAQUE))
    if len(tiles):
        found[:, tiles] = _tiles(setting, setting.costs(rows[tiles]), _at(sizes, tiles))
    if len(vectors):
        found[:, vectors] = _gemv(setting, rows[vectors], _at(sizes, vectors))
    if len(opaque):
        product = _part(library(), opaque)
        found[0, opaque], found[1, opaque] = NET_LAUNCH_US + product, product
    return Costs(*found)


def _at(sizes: Sizes, where: Rows) -> Sizes:
    return Sizes(*(_part(size, where) for size in sizes))


def _part(size: Size, where: Rows) -> Size:
    return size[where] if isinstance(size, np.ndarray) else size


def _tiles(s: Setting, t: TileCosts, sizes: Sizes) -> Costs:
    """Tiled products: any variant but gemv."""
    sms = s.arch.sm_count
    tiles_m, tiles_n = np.ceil(sizes.m / t.side_m), np.ceil(sizes.n / t.side_n)
    steps = np.ceil(sizes.k / t.range_k)
    programs = tiles_m * tiles_n * (sizes.batch * t.split_k)
    per_sm = np.ceil(programs / sms)
    together = np.minimum(per_sm, t.fit)
    busy = np.minimum(programs, sms)

    single = together == 1
    port = np.where(single, t.alone, t.shared)
    moved = np.maximum(t.traffic / np.minimum(t.together / busy, port), t.issue)
    joined = (t.work + moved**t.overlap) ** t.inverse
    step = np.maximum(t.wait / together, joined + t.step / together)

    ends = (t.ends + t.tail * (sizes.k % t.block_k > 0)) * (
        1 + (np.ceil(per_sm / together) - 1) * np.where(single, t.later, t.hidden)
    )
    main = per_sm * steps * step
    memory = _memory_bytes(s, t, sizes, tiles_m, tiles_n, busy * together) / t.memory
    reduction = _reduction_us(s, sizes, t.split_k, t.reduce, t.memory, t.partial)
    total = (t.launch + join(main, memory, _ROOF_EXPONENT) + ends + reduction) * t.factor
    return Costs(total, main, ends, memory, reduction)


def _memory_bytes(s: Setting, t: TileCosts, sizes: Sizes, tiles_m: Array, tiles_n: Array, wave: Array) -> Size:
    """Traffic with device memory: each operand once where L2 holds it, else again for some bands of tiles."""
    line = sizes.k * s.item
    bytes_a, bytes_b = sizes.m * line, sizes.n * line
    large_a, large_b = _any(bytes_a > s.cache_bytes), _any(bytes_b > s.cache_bytes)
    if not large_a and not large_b:
        return sizes.least_bytes
    # Bands of group_m tiles run along the kernel's N, which is the problem's M where the operands are swapped.
    swap = t.swap > 0 if t.swap.any() else None
    banded, along = _swapped(swap, tiles_m, tiles_n)
    across = np.minimum(np.ceil(wave / np.minimum(t.group_m, banded)), along)
    down = np.minimum(np.ceil(wave / across), banded)
    wave_m, wave_n = _swapped(swap, down, across)  # tiles of a wave along the problem's sides
    again: Size = 0.0
    if large_a:
        again += (np.ceil(tiles_n / wave_n) - 1) * (bytes_a * (bytes_a > s.cache_bytes))
    if large_b:
        again += (np.ceil(tiles_m / wave_m) - 1) * (bytes_b * (bytes_b > s.cache_bytes))
    return sizes.least_bytes + _REREAD * sizes.batch * again


def _swapped(swap: Flags | None, first: Array, second: Array) -> tuple[Array, Array]:
    return (first, second) if swap is None else (np.where(swap, second, first), np.where(swap, first, second))


def _any(condition: Any) -> bool:
    return bool(condition.any()) if isinstance(condition, np.ndarray) else bool(condition)


def _reduction_us(s: Setting, sizes: Sizes, split_k: Array, launch: Size, memory: Size, l2: Size) -> Array:
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


def _gemv(s: Setting, rows: Rows, sizes: Sizes) -> Costs:
    """CUDA cores over a stream of the larger matrix; what the resident programs hold in registers is what is in flight."""
    t, c, arch = PAIRS.take(rows), s.kernels[loop(s.kind, "gemv", tma=False, resident=False)], s.arch
    batch, m, n, k, least_bytes = sizes
    first = np.less_equal(m, n)
    narrow, wide = np.minimum(m, n), np.maximum(m, n)
    along_k = np.where(first, s.kind.layouts[1] == "t", s.kind.layouts[0] == "n")
    threads, block = 32 * t.warps, t.block_n * t.block_k
    programs = np.ceil(wide / t.block_n) * batch * t.split_k
    steps = np.ceil(k / (t.block_k * t.split_k))
    per_sm = np.ceil(programs / arch.sm_count)
    registers = threads * np.minimum(255, block // threads * (narrow + 1) + 40)
    held = np.minimum(arch.threads_per_sm // threads, arch.registers_per_sm // registers)
    together = np.minimum(per_sm, np.maximum(1, np.minimum(32, held)))

    align = np.minimum(np.where(first, s.kind.aligns[1], s.kind.aligns[0]), VECTOR_BYTES)
    waste = sector_waste(np.where(along_k, t.block_k, t.block_n) * s.item) * (VECTOR_BYTES / align) ** 0.5
    work, factor = _gemv_factors(s, rows, along_k)
    pitch = np.where(first, s.more(1), s.more(0))
    compute = work * 2 * narrow * block / (arch.tflops["fp32"] * 1e6 / arch.sm_count * c.compute)
    moved = block * s.item * waste * pitch / (s.port * c.l2 * arch.sm_count / np.minimum(programs, arch.sm_count))
    step = np.maximum(np.maximum(compute, moved), (c.latency + c.step) / together)
    tree = 0.05 + 0.01 * narrow * t.block_n * np.where(along_k, t.warps, 1)
    ends = (c.fill + c.store + tree) * (1 + 0.3 * (np.ceil(per_sm / together) - 1))

    main = per_sm * steps * step
    memory_rate, partial_rate = s.rates(c)
    memory = least_bytes * waste / memory_rate
    reduction = _reduction_us(s, sizes, t.split_k, c.second + c.store, memory_rate, partial_rate)
    total = (c.launch + join(main, memory, _ROOF_EXPONENT) + ends + reduction) * factor
    return Costs(total, main, ends, memory, reduction)


def _gemv_factors(s: Setting, rows: Rows, along_k: Array) -> tuple[Array, Array]:
    """A table's corrections; a tile that runs along K and one that runs across it are different loops."""
    name = loop(s.kind, "gemv", tma=False, resident=False)
    ways = [s.kernels.corrections(f"{name} {way}") for way in ("across", "along")]
    flags = np.broadcast_to(along_k, rows.shape).astype(int).tolist()
    found = [ways[flag].get(PAIRS.tiles[number], PLAIN) for number, flag in zip(rows.tolist(), flags, strict=True)]
    work, total = np.array(found).T
    return work, total


__all__ = ["Costs", "Fitted", "Scorer", "Sizes", "costs", "times_us"]
