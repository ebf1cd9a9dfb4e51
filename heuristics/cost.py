"""The cost of one tile on one device: the picture behind the model, and the numbers it needs beside sizes and rates.

A launch is a number of programs over SMs, and the busiest SM decides. Each of its programs fills a pipeline, pays per k block for
what it computes and what it moves, then stores. Device memory bounds the whole; splitting K adds a second pass over partial sums.
Tile quantisation (blocks beyond the matrix still cost), wave quantisation (whole programs per SM) and the overlap of programs that
share an SM follow from that picture. How close a kernel comes to each rate does not: that is in COEFFICIENTS, one row per variant,
which a table file may replace by fitted ones. The built-in ones were fitted to 3,260 times of 38 shapes on one H200; fitted to half
the shapes, the model's first pick runs at 0.97 to 0.98 of the best measured on the other half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from kernel_zoo.spec import ITEMSIZE, VECTOR_BYTES, Arch, Estimate, GemmProblem, TileConfig, cdiv

Fitted = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How a variant's kernel behaves. Times in microseconds; shares are of the device's rate.

    Attributes:
        launch: from the start of a launch to its first instruction, and from its last to the end.
        fill: the first block's way from device memory to the registers.
        step: what a k block costs beyond its traffic and arithmetic (barriers, addresses), for one program alone on an SM.
        compute: share of the peak rate that a steady main loop reaches.
        stream: share of the peak memory bandwidth that a copy reaches.
        latency: of a block on its way from device memory; divided by the blocks in flight it bounds a program's rate.
        overlap: the exponent that joins compute and traffic: 1 adds them, a large one takes the longer.
        store: from the last product to the last byte of a tile, beyond its traffic.
        resident: share of fill and store that remains for a program's second and later tiles (1: nothing overlaps).
        l2: share of 64 bytes a clock and SM that L2 delivers when all SMs ask at once.
        port: share of it that a program alone on its SM draws.
        second: a dependent launch in the same stream, where K is split.
        partial: share of L2's rate at which the second launch reads partial sums.
    """

    launch: float = 1.0
    fill: float = 0.6
    step: float = 0.06
    compute: float = 0.80
    stream: float = 0.90
    latency: float = 0.7
    overlap: float = 2.5
    store: float = 0.4
    resident: float = 1.0
    l2: float = 0.80
    port: float = 0.70
    second: float = 1.2
    partial: float = 0.5


_POINTERS: Final = Coefficients(fill=0.5, step=0.08, compute=0.68, stream=0.82, latency=0.68, store=0.35, l2=1.0, port=0.88)

COEFFICIENTS: Final[dict[str, Coefficients]] = {
    "tiled": _POINTERS,
    "persistent": replace(_POINTERS, resident=0.7),
    "tma": Coefficients(0.77, 0.65, 0.027, 0.90, 0.92, 0.98, 5.0, 0.40, resident=0.9, l2=0.89, port=0.89),
    "split_k": Coefficients(1.0, 0.78, 0.03, 0.64, 0.87, 0.96, 6.0, 0.41, l2=1.05, port=0.86, second=1.38, partial=0.28),
    "gemv": Coefficients(launch=0.7, fill=0.1, step=0.03, compute=0.35, stream=0.88, latency=0.9, store=0.1, second=1.15),
}
_UNKNOWN: Final = Coefficients(step=0.1, compute=0.7, overlap=2.0)

#: cuBLAS's share of the roof by class, measured on one H200; for the net's estimate only.
_NET_SHARE: Final = {
    "large": 0.88, "square": 0.73, "prefill": 0.70, "decode": 0.68, "gemv": 0.62, "split-K": 0.55, "ragged": 0.28, "batched": 0.73,
}  # fmt: skip

_NET_LAUNCH_US: Final = 2.0
_SMEM_CLOCK: Final = 128.0  # bytes a clock and SM
_L2_CLOCK: Final = 64.0  # bytes a clock that one SM's port takes
_CACHE_SHARE: Final = 0.7  # of L2 that a product's operands can count on
_ROOF_EXPONENT: Final = 8.0  # joins the SMs' time and device memory's: both at once cost a little more than the longer
_MMA_SHARE: Final = {9: 0.75, 10: 0.35}  # of the peak that mma.sync reaches where the peak belongs to newer instructions
_ACTIVATION_OPS: Final = {"none": 0, "relu": 1, "leaky_relu": 2, "silu": 8, "gelu_tanh": 12, "gelu": 20}
_EMULATION: Final = {"tf32": ("tf32", 1), "tf32x3": ("tf32", 3), "bf16x3": ("bf16", 3), "bf16x6": ("bf16", 6)}
_ROUNDING_SHARE: Final = 0.5  # a kernel that rounds or splits fp32 operands on the way starves the tensor cores
_TRANSPOSE_SHARE: Final = 0.5  # wgmma wants TF32 operands K-major: another order takes a detour through shared memory
_CONFLICTS: Final = 5.8  # times that an FMA read of a K-major B is repeated for bank conflicts
_ADDRESSES: Final = 48  # that a thread can hold beside its accumulator
_FLATTENED: Final = 0.25  # share of a later tile's ends that a flattened loop over tiles leaves


def rate(problem: GemmProblem, arch: Arch) -> float:
    """The device's peak for the problem's products, in 1e12 operations a second; a slow fallback where it has no such unit."""
    if problem.dtype == "fp32":
        name, parts = _EMULATION.get(problem.precision, ("fp32", 1))
        return arch.tflops.get(name, 0.0) / parts or arch.tflops["fp32"]
    return arch.tflops.get(problem.dtype, 0.0) or arch.tflops["fp32"] / 4


def roof_us(problem: GemmProblem, arch: Arch) -> tuple[float, str]:
    """The least time the device allows, and what sets it: "memory" or "compute"."""
    compute = problem.flops / (rate(problem, arch) * 1e6)
    memory = problem.least_bytes / (arch.bandwidth_gbps * 1e3)
    return (compute, "compute") if compute > memory else (memory, "memory")


def occupancy(itemsize: int, tile: TileConfig, arch: Arch) -> int:
    """Programs that one SM is expected to hold at once, from shared memory, registers and threads."""
    threads = 32 * tile.num_warps
    shared = (tile.block_m + tile.block_n) * tile.block_k * itemsize * tile.num_stages + 1024
    registers = threads * min(255, tile.block_m * tile.block_n // threads + 64)
    return max(1, min(8, arch.smem_per_sm // shared, arch.registers_per_sm // registers, arch.threads_per_sm // threads))


def coefficients(variant: str, fitted: Fitted | None = None) -> Coefficients:
    """A variant's coefficients: those of a table where it has them, else the built-in ones."""
    base = COEFFICIENTS.get(variant, _UNKNOWN)
    own = (fitted or {}).get(variant)
    if not own:
        return base
    return Coefficients(**{field.name: own.get(field.name, getattr(base, field.name)) for field in fields(Coefficients)})


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a tile's sides alone decide: how many tiles there are, and what a k block of one costs."""

    tiles_m: int
    tiles_n: int
    steps: int  # k blocks
    fit: int  # programs an SM holds
    work: float  # a k block's arithmetic and shared memory traffic, in us
    traffic: float  # its bytes from L2
    issue: float  # issuing its loads through pointers, in us


class Scorer:
    """Scores tiles for one problem on one device: what depends on the problem alone is worked out once."""

    def __init__(self, problem: GemmProblem, arch: Arch, fitted: Fitted | None = None) -> None:
        """Args: the problem, the device, and a table's coefficients by variant."""
        self.problem, self.arch, self._fitted = problem, arch, fitted
        self._coefficients: dict[str, Coefficients] = {}
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._item, self._out_item = ITEMSIZE[problem.dtype], ITEMSIZE[problem.out.dtype]
        self._clock = arch.clock_ghz * 1e3  # clocks a microsecond
        self._bandwidth = arch.bandwidth_gbps * 1e3  # bytes a microsecond
        self._rate_sm = rate(problem, arch) * 1e6 / arch.sm_count  # operations a microsecond and SM
        self._fma = problem.dtype in ("fp32", "fp64") and problem.precision not in _EMULATION
        self._rounds = problem.dtype == "fp32" and problem.precision in _EMULATION
        self._port = _L2_CLOCK * self._clock  # bytes a microsecond that one SM can take from L2
        c, bias = problem.epilogue.c, problem.epilogue.bias
        self._extra_item = (ITEMSIZE[c.dtype] if c else 0) + (ITEMSIZE[bias.dtype] if bias else 0)
        self._epilogue_clocks = _ACTIVATION_OPS.get(problem.epilogue.activation, 10) / 128
        self._aligns = (problem.a.line_align, problem.b.line_align)
        self._layouts = (problem.a.layout, problem.b.layout)
        self._least_bytes = float(problem.least_bytes)
        self._cache_bytes = arch.l2_bytes * _CACHE_SHARE
        self._empty = min(problem.batch, problem.m, problem.n) <= 0

    def time_us(self, variant: str, tile: TileConfig | None) -> float:
        """The estimate alone."""
        if self._empty:
            return 0.0
        if tile is None:
            return _NET_LAUNCH_US + self._net_us()
        c = self._coefficients_of(variant)
        if variant == "gemv":
            return self._gemv(tile, c)[0]
        return self._tiles(variant, tile, c)[0]

    def estimate(self, variant: str, tile: TileConfig | None) -> Estimate:
        """The time and what it is made of. An empty problem takes none."""
        if self._empty:
            return Estimate(0.0)
        if tile is None:
            product = self._net_us()
            return Estimate(_NET_LAUNCH_US + product, {"launch": _NET_LAUNCH_US, "product": product})
        c = self._coefficients_of(variant)
        total, *parts = self._gemv(tile, c) if variant == "gemv" else self._tiles(variant, tile, c)
        names = ("main loop", "fill and store", "device memory", "reduction")
        return Estimate(total, {"launch": c.launch, **dict(zip(names, parts, strict=True))})

    def _coefficients_of(self, variant: str) -> Coefficients:
        found = self._coefficients.get(variant)
        if found is None:
            found = self._coefficients[variant] = coefficients(variant, self._fitted)
        return found

    def _net_us(self) -> float:
        """A library's own choice: the roof over the share of it that cuBLAS reaches on average."""
        return roof_us(self.problem, self.arch)[0] / _NET_SHARE[self.problem.shape_class]

    def _tiles(self, variant: str, tile: TileConfig, c: Coefficients) -> tuple[float, float, float, float, float]:
        """Total, main loop, ends, device memory, reduction."""
        knobs = dict(tile.knobs)
        swap, split = bool(knobs.get("swap")), tile.split_k
        tma = variant == "tma" or bool(knobs.get("tma"))
        shape = self._shape(tile, swap, tma, c.compute)
        sms = self.arch.sm_count
        programs = shape.tiles_m * shape.tiles_n * self.problem.batch * split
        per_sm = cdiv(programs, sms)
        together = min(per_sm, shape.fit)
        busy = min(programs, sms)
        steps = cdiv(shape.steps, split)

        alone = self._port * c.port
        port = alone if together == 1 else self._port * c.l2
        moved = max(shape.traffic / min(self._port * sms * c.l2 / busy, port), shape.issue)
        # Loads narrower than 4 bytes cannot be asynchronous: nothing is in flight while a block is computed.
        depth = max(1, tile.num_stages - 1) if tma or min(self._aligns) >= 4 else 1
        wait = (c.latency / depth + c.step) / together
        step = max(wait, (shape.work**c.overlap + moved**c.overlap) ** (1 / c.overlap) + c.step / together)

        elements = tile.block_m * tile.block_n
        stored = elements * (4 if split > 1 else self._out_item + self._extra_item)
        ends = c.fill + c.store + (shape.traffic + 2 * stored) / alone + elements * self._epilogue_clocks / self._clock
        later = c.resident if variant == "persistent" or knobs.get("persistent") else 1.0
        if knobs.get("flatten"):
            later *= _FLATTENED
        if together > 1:
            later *= 0.6  # the neighbour's main loop runs meanwhile
        ends *= 1 + (cdiv(per_sm, together) - 1) * later

        main = per_sm * steps * step
        memory = self._memory_bytes(shape, tile, swap, busy * together) / (self._bandwidth * c.stream)
        reduction = self._reduction_us(split, c) if split > 1 else 0.0
        return c.launch + _join(main, memory) + ends + reduction, main, ends, memory, reduction

    def _gemv(self, tile: TileConfig, c: Coefficients) -> tuple[float, float, float, float, float]:
        """CUDA cores over a stream of the larger matrix; what the resident programs hold in registers is what is in flight."""
        p, arch, split = self.problem, self.arch, tile.split_k
        first = p.m <= p.n
        narrow, wide = (p.m, p.n) if first else (p.n, p.m)
        along_k = self._layouts[1] == "t" if first else self._layouts[0] == "n"
        threads, block = 32 * tile.num_warps, tile.block_n * tile.block_k
        programs = cdiv(wide, tile.block_n) * p.batch * split
        steps = cdiv(cdiv(p.k, tile.block_k), split)
        per_sm = cdiv(programs, arch.sm_count)
        registers = threads * min(255, block // threads * (narrow + 1) + 40)
        fit = max(1, min(32, arch.threads_per_sm // threads, arch.registers_per_sm // registers))
        together = min(per_sm, fit)

        align = min(self._aligns[1 if first else 0], VECTOR_BYTES)
        waste = _sector_waste((tile.block_k if along_k else tile.block_n) * self._item) * (VECTOR_BYTES / align) ** 0.5
        compute = 2 * narrow * block / (arch.tflops["fp32"] * 1e6 / arch.sm_count * c.compute)
        moved = block * self._item * waste / (self._port * c.l2 * arch.sm_count / min(programs, arch.sm_count))
        step = max(compute, moved, (c.latency + c.step) / together)
        tree = 0.05 + 0.01 * narrow * tile.block_n * (tile.num_warps if along_k else 1)
        ends = (c.fill + c.store + tree) * (1 + 0.3 * (cdiv(per_sm, together) - 1))

        main = per_sm * steps * step
        memory = self._least_bytes * waste / (self._bandwidth * c.stream)
        reduction = self._reduction_us(split, c) if split > 1 else 0.0
        return c.launch + _join(main, memory) + ends + reduction, main, ends, memory, reduction

    def _shape(self, tile: TileConfig, swap: bool, tma: bool, compute_share: float) -> _Shape:
        """What a k block of a tile costs; tiles that differ in split or other knobs share the answer."""
        key = (tile.block_m, tile.block_n, tile.block_k, tile.num_warps, tile.num_stages, swap, tma, compute_share)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._new_shape(tile, swap, tma, compute_share)
        return found

    def _new_shape(self, tile: TileConfig, swap: bool, tma: bool, compute_share: float) -> _Shape:
        p, arch = self.problem, self.arch
        bm, bn, bk = tile.block_m, tile.block_n, tile.block_k
        rows, cols = (p.n, p.m) if swap else (p.m, p.n)
        wide = arch.capability[0] in (9, 10) and bm >= 64 and tile.num_warps >= 4 and not self._fma
        compute = 2 * bm * bn * bk / (self._rate_sm * compute_share * self._instruction_share(bm, wide))
        smem = self._smem_bytes(tile, wide) / (_SMEM_CLOCK * self._clock)
        runs = self._runs(bm, bn, bk, swap)
        traffic = (bm * _sector_waste(runs[0]) + bn * _sector_waste(runs[1])) * bk * self._item
        issue = 0.0 if tma else self._issue_us(tile, swap)
        fit = occupancy(self._item, tile, arch)
        return _Shape(cdiv(rows, bm), cdiv(cols, bn), cdiv(p.k, bk), fit, _join(compute, smem, 4.0), traffic, issue)

    def _instruction_share(self, bm: int, wide: bool) -> float:
        """The share of the peak that the instruction for this tile can reach."""
        share = 1.0 if wide or self._fma else _MMA_SHARE.get(self.arch.capability[0], 1.0)
        if self._rounds:
            share *= _ROUNDING_SHARE
        if wide and self.problem.precision == "tf32" and self._layouts != ("n", "t"):
            share *= _TRANSPOSE_SHARE
        return share * min(1.0, bm / 16)

    def _smem_bytes(self, tile: TileConfig, wide: bool) -> float:
        """Shared memory traffic of a k block that holds up its arithmetic: asynchronous writes ahead of wgmma do not."""
        bm, bn, warps = tile.block_m, tile.block_n, tile.num_warps
        column = tile.block_k * self._item
        if wide:
            return (bm + bn * max(1, bm // 64)) * column
        if self._fma:
            side = math.sqrt(bm * bn * 32 * warps)  # a thread's share is a square; the threads' sides, added up
            conflicts = _CONFLICTS if self._layouts[1] == "t" else 1 / 8  # else 8 threads of a warp share a read
            return (bm + bn + side / 8 + side * conflicts) * column
        across = max(1, min(warps, bn // 32))
        return (bm * (1 + across) + bn * (1 + max(1, warps // across))) * column

    def _runs(self, bm: int, bn: int, bk: int, swap: bool) -> tuple[int, int]:
        """Contiguous bytes that a tile reads at a time, on its M side and on its N side."""
        a, b = self._layouts
        along_a = bk if a == "n" else (bn if swap else bm) if a == "t" else 1
        along_b = bk if b == "t" else (bm if swap else bn) if b == "n" else 1
        return (along_b * self._item, along_a * self._item) if swap else (along_a * self._item, along_b * self._item)

    def _issue_us(self, tile: TileConfig, swap: bool) -> float:
        """The time to issue a k block's loads through pointers: narrow ones cost by the element, those under 4 bytes the more."""
        clocks = loads = 0.0
        for side, align in zip((tile.block_n, tile.block_m) if swap else (tile.block_m, tile.block_n), self._aligns, strict=True):
            count = side * tile.block_k * self._item / min(align, VECTOR_BYTES)
            loads += count / (32 * tile.num_warps)
            clocks += count / 32 * (2.0 if align >= 4 else 9.0)
        crowding = max(1.0, loads / _ADDRESSES)  # a thread's addresses beyond its registers are spilled
        return clocks * crowding / self._clock

    def _memory_bytes(self, shape: _Shape, tile: TileConfig, swap: bool, wave: int) -> float:
        """Traffic with device memory: each operand once where L2 holds it, else again for some bands of tiles."""
        p = self.problem
        line = p.k * self._item
        rows, cols = (p.n * line, p.m * line) if swap else (p.m * line, p.n * line)
        across = min(cdiv(wave, min(tile.group_m, shape.tiles_m)), shape.tiles_n)
        down = min(cdiv(wave, across), shape.tiles_m)
        again = 0
        if rows > self._cache_bytes:
            again += (cdiv(shape.tiles_n, across) - 1) * rows
        if cols > self._cache_bytes:
            again += (cdiv(shape.tiles_m, down) - 1) * cols
        return self._least_bytes + 0.25 * again * p.batch  # most of what is asked again is still there

    def _reduction_us(self, split: int, c: Coefficients) -> float:
        """A second launch that reads every partial sum, mostly from L2, and writes the result."""
        elements = self.problem.batch * self.problem.m * self.problem.n
        partial = 4 * elements * split
        fast = self._port * self.arch.sm_count * c.l2 * c.partial if partial < self._cache_bytes else self._bandwidth * c.stream
        reach = min(1.0, max(1, elements // 512) / self.arch.sm_count)
        result = elements * (self._out_item + self._extra_item) / (self._bandwidth * c.stream)
        return c.second + c.store + 0.02 * split + partial / (fast * reach) + result


def _join(a: float, b: float, exponent: float = _ROOF_EXPONENT) -> float:
    """Slightly more than the longer of two times that run at once."""
    longer, shorter = max(a, b), min(a, b)
    if longer <= 0:
        return 0.0
    more: float = (1 + (shorter / longer) ** exponent) ** (1 / exponent)
    return longer * more


def _sector_waste(run_bytes: int) -> float:
    """Bytes fetched over bytes used: short runs waste part of each 32-byte sector and 128-byte line."""
    if run_bytes >= 128:
        return 1.0
    return 1.1 if run_bytes >= 64 else 1.3 if run_bytes >= 32 else 32.0 / max(run_bytes, 1)
