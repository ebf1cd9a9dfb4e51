"""The analytical model: how long a variant takes with a tile, in microseconds, from sizes and a device's rates alone.

A launch is a number of programs over SMs. The busiest SM decides: each of its programs fills a pipeline, then pays per k block the
slowest of what it moves and computes, then stores. Device memory bounds the whole. Split K adds a second pass over the partial sums.
Tile quantisation (blocks beyond the matrix still cost), wave quantisation (whole programs per SM) and the overlap of programs that
share an SM follow from that picture. What a picture cannot give, how close a kernel comes to each rate, is in COEFFICIENTS: one row
per variant, so that a fit to measurements can replace them from a table file.

The numbers below are set by hand from published and own measurements on H100 and H200 class GPUs; ranking candidates is their purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from kernel_zoo.spec import ITEMSIZE, VECTOR_BYTES, Arch, Candidate, Estimate, GemmProblem, TileConfig, Variant, cdiv

NET: Final = "aten"  # the variant that is no kernel of the zoo


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
    """

    launch: float = 1.3
    fill: float = 0.8
    step: float = 0.06
    compute: float = 0.80
    stream: float = 0.90
    latency: float = 0.75
    overlap: float = 2.5
    store: float = 0.6
    resident: float = 1.0


COEFFICIENTS: Final[dict[str, Coefficients]] = {
    "tiled": Coefficients(step=0.09, compute=0.74, overlap=2.0),
    "persistent": Coefficients(step=0.10, compute=0.74, overlap=2.0, resident=0.7),
    "tma": Coefficients(fill=0.9, step=0.05, compute=0.82, overlap=3.0, resident=0.75),
    "split_k": Coefficients(fill=0.9, step=0.06, compute=0.80, overlap=2.5),
    "gemv": Coefficients(launch=1.1, fill=0.6, step=0.03, compute=0.35, stream=0.92, latency=0.8, overlap=4.0, store=0.3),
}
_UNKNOWN: Final = Coefficients(step=0.1, compute=0.7, overlap=2.0)

#: cuBLAS's share of the roof by class, measured on one H200; for the net's estimate only.
_NET_SHARE: Final = {
    "large": 0.88, "square": 0.73, "prefill": 0.70, "decode": 0.68, "gemv": 0.62, "split-K": 0.55, "ragged": 0.28, "batched": 0.73,
}  # fmt: skip

_LAUNCH_US: Final = 2.0  # what a launch costs beside the roof
_SECOND_LAUNCH_US: Final = 1.4  # a dependent launch in the same stream
_SMEM_BYTES_PER_CLOCK: Final = 128.0
_L2_BYTES_PER_CLOCK_SM: Final = 64.0
_L2_SHARE: Final = 0.73  # of 64 bytes a clock and SM, when all SMs ask at once
_L2_SHARE_ALONE: Final = 0.6  # what one SM's own port gives a streaming program
_CACHE_SHARE: Final = 0.7  # of L2 that a product's operands can count on
_MMA_SHARE: Final = {9: 0.62, 10: 0.35}  # of the peak that mma.sync reaches where the peak belongs to newer instructions
_ACTIVATION_OPS: Final = {"none": 0, "relu": 1, "leaky_relu": 2, "silu": 8, "gelu_tanh": 12, "gelu": 20}
_EMULATION: Final = {"tf32x3": ("tf32", 3.0), "bf16x3": ("bf16", 3.0), "bf16x6": ("bf16", 6.0), "tf32": ("tf32", 1.0)}
_ROUNDING_SHARE: Final = 0.55  # a kernel that rounds or splits fp32 operands on the way loses the tensor core's own feed


def rate(problem: GemmProblem, arch: Arch) -> float:
    """The device's peak for the problem's products, in 1e12 operations a second."""
    if problem.dtype == "fp32":
        name, parts = _EMULATION.get(problem.precision, ("fp32", 1.0))
        return arch.tflops.get(name, 0.0) / parts or arch.tflops["fp32"]
    return arch.tflops.get(problem.dtype, 0.0) or arch.tflops["fp32"] / 4


def ridge(problem: GemmProblem, arch: Arch) -> float:
    """Operations a byte at which the device's arithmetic and memory take equally long."""
    return rate(problem, arch) * 1e3 / arch.bandwidth_gbps


def roof_us(problem: GemmProblem, arch: Arch) -> tuple[float, str]:
    """The least time the device allows, and what sets it: "memory" or "compute"."""
    compute = problem.flops / (rate(problem, arch) * 1e6)
    memory = problem.least_bytes / (arch.bandwidth_gbps * 1e3)
    return (compute, "compute") if compute > memory else (memory, "memory")


def coefficients(variant: str, fitted: Mapping[str, Mapping[str, float]] | None = None) -> Coefficients:
    """A variant's coefficients: the fitted ones of a table where it has them, else the built-in."""
    base = COEFFICIENTS.get(variant, _UNKNOWN)
    own = (fitted or {}).get(variant)
    if not own:
        return base
    return Coefficients(**{field.name: own.get(field.name, getattr(base, field.name)) for field in fields(Coefficients)})


class Scorer:
    """Scores tiles for one problem on one device: what depends on the problem alone is worked out once."""

    __slots__ = (
        "_align_a", "_align_b", "_bandwidth", "_clock", "_extra_bytes", "_fitted", "_fma", "_idle", "_item", "_known", "_l2", "_l2_sm",
        "_layout", "_ops", "_out_item", "_rate_sm", "_rounds", "arch", "problem",
    )  # fmt: skip

    def __init__(self, problem: GemmProblem, arch: Arch, fitted: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Args: the problem, the device, and coefficients of a table file by variant."""
        self.problem, self.arch, self._fitted = problem, arch, fitted
        self._known: dict[str, Coefficients] = {}
        self._item, self._out_item = ITEMSIZE[problem.dtype], ITEMSIZE[problem.out.dtype]
        self._clock = arch.clock_ghz * 1e3  # clocks a microsecond
        self._bandwidth = arch.bandwidth_gbps * 1e3  # bytes a microsecond
        self._rate_sm = rate(problem, arch) * 1e6 / arch.sm_count  # operations a microsecond and SM
        self._fma = problem.dtype in ("fp32", "fp64") and problem.precision not in _EMULATION
        self._rounds = problem.dtype == "fp32" and problem.precision in _EMULATION
        self._l2_sm = _L2_BYTES_PER_CLOCK_SM * self._clock
        self._l2 = self._l2_sm * arch.sm_count * _L2_SHARE
        epilogue = problem.epilogue
        self._extra_bytes = (ITEMSIZE[epilogue.c.dtype] if epilogue.c else 0) + (
            ITEMSIZE[epilogue.bias.dtype] if epilogue.bias else 0
        )
        self._ops = _ACTIVATION_OPS.get(epilogue.activation, 10)
        self._align_a, self._align_b = problem.a.line_align, problem.b.line_align
        self._layout = (problem.a.layout, problem.b.layout)
        self._idle = min(problem.batch, problem.m, problem.n) <= 0

    def coefficients(self, variant: str) -> Coefficients:
        """The variant's coefficients, looked up once."""
        found = self._known.get(variant)
        if found is None:
            found = self._known[variant] = coefficients(variant, self._fitted)
        return found

    def time_us(self, variant: str, tile: TileConfig | None) -> float:
        """The estimate alone."""
        return self.estimate(variant, tile).time_us

    def estimate(self, variant: str, tile: TileConfig | None) -> Estimate:
        """The time and its parts. An empty problem takes none."""
        if self._idle:
            return Estimate(0.0)
        if tile is None:
            return self._net()
        if variant == "gemv":
            return self._gemv(tile, self.coefficients(variant))
        return self._tiles(variant, tile, self.coefficients(variant))

    def _net(self) -> Estimate:
        """A library's own choice: the roof over the share of it that cuBLAS reaches on average."""
        floor, _ = roof_us(self.problem, self.arch)
        share = _NET_SHARE[self.problem.shape_class]
        return Estimate(_LAUNCH_US + floor / share, {"launch": _LAUNCH_US, "product": floor / share})

    def _tiles(self, variant: str, tile: TileConfig, c: Coefficients) -> Estimate:
        p, arch = self.problem, self.arch
        knobs = dict(tile.knobs) if tile.knobs else {}
        swap = bool(knobs.get("swap"))
        rows, cols = (p.n, p.m) if swap else (p.m, p.n)
        bm, bn, bk, split, warps = tile.block_m, tile.block_n, tile.block_k, tile.split_k, tile.num_warps
        tma = variant == "tma" or bool(knobs.get("tma"))
        tiles_m, tiles_n = cdiv(rows, bm), cdiv(cols, bn)
        tiles = tiles_m * tiles_n * p.batch
        programs = tiles * split
        steps = cdiv(cdiv(p.k, bk), split)
        sms = arch.sm_count
        per_sm = cdiv(programs, sms)
        fit = self.occupancy(tile)
        together = per_sm if per_sm < fit else fit
        busy = programs if programs < sms else sms

        # One k block of one program, on an SM shared by `together` of them.
        block_bytes = (bm + bn) * bk * self._item
        wide = arch.cc >= 90 and arch.capability[0] != 12 and bm >= 64 and warps >= 4 and not self._fma
        compute = 2 * bm * bn * bk / (self._rate_sm * c.compute * self._instruction_share(bm, wide))
        smem = self._smem_bytes(bm, bn, bk, warps, wide) / (_SMEM_BYTES_PER_CLOCK * self._clock)
        sectors = self._sector_waste(bm, bn, bk, swap)
        port = self._l2_sm * (_L2_SHARE_ALONE if together == 1 else _L2_SHARE)
        share = self._l2 / busy
        l2 = block_bytes * sectors / (share if share < port else port)
        issue = 0.0 if tma else self._issue_us(bm, bn, bk, swap)
        depth = tile.num_stages - 1 if tile.num_stages > 1 and issue < 1.0 else 1
        wait = (c.latency / depth + c.step) / together
        work = compute if compute > smem else smem
        moved = l2 if l2 > issue else issue
        joined = (work**c.overlap + moved**c.overlap) ** (1 / c.overlap) + c.step / together
        step = joined if joined > wait else wait

        # A program's ends, and how many times the SM goes through them.
        tile_out = bm * bn * ((4 if split > 1 else self._out_item) + (0 if split > 1 else self._extra_bytes))
        ends = c.fill + c.store + tile_out / (port * 0.5) + bm * bn * self._ops / (128 * self._clock)
        rounds = -(-per_sm // together)
        later = c.resident if variant == "persistent" or knobs.get("persistent") else 1.0
        if knobs.get("flatten"):
            later *= 0.9
        if together > 1:
            later *= 0.6
        ends_total = ends * (1 + (rounds - 1) * later)
        main = per_sm * steps * step
        dram = self._dram_bytes(tiles_m, tiles_n, tile, swap, busy * fit) / (self._bandwidth * c.stream)
        body = main + ends_total
        bound = dram + c.fill + 0.3 * ends
        reduction = self._reduction_us(split, c) if split > 1 else 0.0
        total = c.launch + (body if body > bound else bound) + reduction
        parts = {
            "launch": c.launch, "main loop": main, "fill and store": ends_total, "device memory": dram, "reduction": reduction,
            "compute": per_sm * steps * compute, "L2": per_sm * steps * l2, "shared memory": per_sm * steps * smem,
        }  # fmt: skip
        return Estimate(total, parts)

    def _gemv(self, tile: TileConfig, c: Coefficients) -> Estimate:
        """CUDA cores over a stream of the larger matrix; what a program holds in registers is what it has in flight."""
        p, arch = self.problem, self.arch
        narrow, wide = (p.m, p.n) if p.m <= p.n else (p.n, p.m)
        align = self._align_b if p.m <= p.n else self._align_a
        contiguous_k = (self._layout[1] == "t") if p.m <= p.n else (self._layout[0] == "n")
        warps, split = tile.num_warps, tile.split_k
        programs = cdiv(wide, tile.block_n) * p.batch * split
        steps = cdiv(cdiv(p.k, tile.block_k), split)
        per_sm = cdiv(programs, arch.sm_count)
        values = tile.block_n * tile.block_k / (32 * warps)  # a thread's sums, and its weights
        registers = min(255.0, values * (narrow + 1) + 40)
        fit = max(1, min(32, int(arch.threads_per_sm // (32 * warps)), int(arch.registers_per_sm // (registers * 32 * warps))))
        together = min(per_sm, fit)
        block_bytes = tile.block_n * tile.block_k * self._item
        run = tile.block_k if contiguous_k else tile.block_n  # contiguous elements a program reads at a time
        sectors = max(1.0, 64.0 / (run * self._item)) * (VECTOR_BYTES / min(align, VECTOR_BYTES)) ** 0.5
        rate_sm = self.arch.tflops["fp32"] * 1e6 / arch.sm_count * c.compute
        compute = 2 * narrow * tile.block_n * tile.block_k / rate_sm
        busy = min(programs, arch.sm_count)
        traffic = block_bytes * sectors / min(self._l2 / busy, self._l2_sm * _L2_SHARE)
        step = max(compute, traffic, (c.latency + c.step) / together)
        rounds = -(-per_sm // together)
        reduce_tree = 0.1 + 0.02 * narrow * tile.block_n
        ends = c.fill + c.store + reduce_tree * (1 if together == 1 else 0.5)
        main = per_sm * steps * step
        dram = p.least_bytes * sectors / (self._bandwidth * c.stream)
        reduction = self._reduction_us(split, c) if split > 1 else 0.0
        total = c.launch + max(main + ends * rounds, dram + ends) + reduction
        parts = {
            "launch": c.launch,
            "main loop": main,
            "fill and store": ends * rounds,
            "device memory": dram,
            "reduction": reduction,
        }
        return Estimate(total, parts)

    def occupancy(self, tile: TileConfig) -> int:
        """Programs that one SM is expected to hold at once, from shared memory, registers and threads."""
        arch, threads = self.arch, 32 * tile.num_warps
        shared = (tile.block_m + tile.block_n) * tile.block_k * self._item * tile.num_stages + 1024
        registers = threads * min(255, tile.block_m * tile.block_n // threads + 64)
        return max(1, min(8, arch.smem_per_sm // shared, arch.registers_per_sm // registers, arch.threads_per_sm // threads))

    def _instruction_share(self, bm: int, wide: bool) -> float:
        """The share of the peak that the instruction for this tile can reach."""
        share = 1.0 if wide or self._fma else _MMA_SHARE.get(self.arch.capability[0], 1.0)
        if self._rounds:
            share *= _ROUNDING_SHARE
        return share if bm >= 16 else share * bm / 16

    def _smem_bytes(self, bm: int, bn: int, bk: int, warps: int, wide: bool) -> float:
        """Shared memory traffic of a k block: written once, read once per group of threads that shares it."""
        written = (bm + bn) * bk * self._item
        if wide:
            return written + (bm + bn * max(1, bm // 64)) * bk * self._item
        if self._fma:
            side = (bm * bn / (32 * warps)) ** 0.5  # a thread's square of the tile; 8 threads of a warp share each read
            return written + 2 * side * 32 * warps * bk * self._item / 8
        across = max(1, min(warps, bn // 32))
        down = max(1, warps // across)
        return written + (bm * across + bn * down) * bk * self._item

    def _issue_us(self, bm: int, bn: int, bk: int, swap: bool) -> float:
        """The time to issue a k block's loads through pointers; narrow ones cost by the element and cannot be asynchronous."""
        total = 0.0
        aligns = (self._align_b, self._align_a) if swap else (self._align_a, self._align_b)
        for side, align in zip((bm, bn), aligns, strict=True):
            clocks = side * bk * self._item / (align if align < VECTOR_BYTES else VECTOR_BYTES) / 32
            total += clocks * (2.0 if align >= 4 else 9.0)
        return total / self._clock

    def _sector_waste(self, bm: int, bn: int, bk: int, swap: bool) -> float:
        """Bytes fetched over bytes used: short runs along the contiguous dimension waste part of each 32-byte sector and line."""
        a, b = self._layout
        if swap:
            a, b = ("n" if b == "t" else "t" if b == "n" else b), ("n" if a == "t" else "t" if a == "n" else a)
        runs = (bk if a == "n" else bm if a == "t" else 1, bk if b == "t" else bn if b == "n" else 1)
        waste = 0.0
        for run, weight in zip(runs, (bm, bn), strict=True):
            size = run * self._item
            waste += weight * (1.0 if size >= 128 else 1.1 if size >= 64 else 1.3 if size >= 32 else 32.0 / size)
        return waste / (bm + bn)

    def _dram_bytes(self, tiles_m: int, tiles_n: int, tile: TileConfig, swap: bool, wave: int) -> float:
        """Traffic with device memory: each operand once where L2 holds what a wave shares, else once per band of tiles."""
        p = self.problem
        least = p.least_bytes + (self._extra_bytes * p.batch * p.m * p.n if self._extra_bytes else 0)
        operands = (p.m + p.n) * p.k * self._item
        if operands <= self.arch.l2_bytes * _CACHE_SHARE:
            return float(least)
        rows, cols = (p.n, p.m) if swap else (p.m, p.n)
        down = min(tile.group_m, tiles_m)
        across = min(cdiv(wave, down), tiles_n)
        again_rows = cdiv(tiles_n, across)  # bands in which the rows' operand is read anew
        again_cols = cdiv(tiles_m, down)
        cached = 0.5 if again_cols > 1 or again_rows > 1 else 0.0  # about half of what is asked again is still in L2
        extra = (again_rows - 1) * rows + (again_cols - 1) * cols
        return least + (1 - cached) * extra * p.k * self._item * p.batch * 0.5

    def _reduction_us(self, split: int, c: Coefficients) -> float:
        """A second launch that reads every partial sum, mostly from L2, and writes the result."""
        p = self.problem
        elements = p.batch * p.m * p.n
        partial = elements * split * 4
        fast = self._l2 * 0.5 if partial < self.arch.l2_bytes * _CACHE_SHARE else self._bandwidth * c.stream
        programs = max(1, elements // 512)
        reach = min(1.0, programs / self.arch.sm_count)
        traffic = partial / (fast * reach) + elements * (self._out_item + self._extra_bytes) / (self._bandwidth * c.stream)
        return _SECOND_LAUNCH_US + c.store + 0.02 * split + traffic


def estimate(
    problem: GemmProblem,
    arch: Arch,
    variant_name: str,
    tile: TileConfig | None,
    fitted: Mapping[str, Mapping[str, float]] | None = None,
) -> Estimate:
    """The model's time for one variant and tile."""
    return Scorer(problem, arch, fitted).estimate(variant_name, tile)


def proposals(scorer: Scorer, variants: Iterable[Variant]) -> list[tuple[float, int, Variant, TileConfig | None]]:
    """Every tile that variants supporting the problem propose, scored, best first; tiles are not yet checked for legality.

    Ties go to the variant, then the tile, that comes first.
    """
    problem, arch = scorer.problem, scorer.arch
    found: list[tuple[float, int, Variant, TileConfig | None]] = []
    for variant in variants:
        if variant.refusal(problem, arch) is not None:
            continue
        tiles: Sequence[TileConfig | None] = variant.space(problem, arch) if variant.recipe is not None else (None,)
        for tile in tiles:
            found.append((scorer.time_us(variant.name, tile), len(found), variant, tile))
    found.sort(key=lambda item: item[:2])
    return found


def rank(
    problem: GemmProblem,
    arch: Arch,
    variants: Iterable[Variant],
    fitted: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Candidate]:
    """Every legal variant and tile, best first."""
    scorer = Scorer(problem, arch, fitted)
    return [
        Candidate(variant.name, tile, scorer.estimate(variant.name, tile))
        for _, _, variant, tile in proposals(scorer, variants)
        if tile is None or variant.fits(problem, tile, arch) is None
    ]


def shortlist(
    problem: GemmProblem,
    arch: Arch,
    variants: Iterable[Variant],
    count: int = 16,
    fitted: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Candidate]:
    """The candidates worth measuring: the model's best, with at least two of every variant that can serve, best first.

    A model that is wrong about a family as a whole must not hide it from a tuner.
    """
    ranked = rank(problem, arch, variants, fitted)
    seen: dict[str, int] = {}
    kept: list[int] = []
    for index, candidate in enumerate(ranked):
        seen[candidate.variant] = seen.get(candidate.variant, 0) + 1
        if seen[candidate.variant] <= 2:
            kept.append(index)
    chosen = set(kept[:count])
    for index in range(len(ranked)):
        if len(chosen) >= count:
            break
        chosen.add(index)
    return [ranked[index] for index in sorted(chosen)]
