"""What a tile costs whatever the sizes: a k block's arithmetic and traffic, a program's two ends, how many programs an SM holds.

That follows from the class of the problem (types, layouts, alignment, epilogue), the device and the variants' coefficients, so it
is worked out once for each of those and every pair of `pairs`, as columns. `cost` then asks how many of them the sizes make.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from heuristics.coefficients import PITCHES, Coefficients, Kernels
from heuristics.pairs import PAIRS, Array, Columns, Flags, Rows
from heuristics.roof import EMULATION, peak
from heuristics.tile_columns import WIDTH, StreamCosts, TileCosts, by_field
from kernel_zoo.spec import ITEMSIZE, VECTOR_BYTES, Arch, GemmProblem

_SMEM_CLOCK: Final = 128.0  # bytes a clock and SM
_L2_CLOCK: Final = 64.0  # bytes a clock that one SM's port takes
_CACHE_SHARE: Final = 0.7  # of L2 that a product's operands can count on
_MMA_SHARE: Final = {9: 0.75, 10: 0.35}  # of the peak that mma.sync reaches where the peak belongs to newer instructions
_ACTIVATION_OPS: Final = {"none": 0, "relu": 1, "leaky_relu": 2, "silu": 8, "gelu_tanh": 12, "gelu": 20}
_ROUNDING_SHARE: Final = 0.5  # a kernel that rounds or splits fp32 operands on the way starves the tensor cores
_TRANSPOSE_SHARE: Final = 0.5  # wgmma wants TF32 operands K-major: another order takes a detour through shared memory
_CONFLICTS: Final = 5.8  # times that an FMA read of a K-major B is repeated for bank conflicts
_ADDRESSES: Final = 48  # that a thread can hold beside its accumulator
_NEIGHBOUR: Final = 0.6  # share of a later tile's ends that a neighbour's main loop leaves
_VISIT: Final = 0.1  # of a partial tile in L2, beside its bytes
STARTED: Final = 0.2  # of a launch, where it begins early
_FLATTENED: Final = 0.25  # share of a later tile's ends that a flattened loop over tiles leaves


class ProblemClass(NamedTuple):
    """All of a problem but its sizes."""

    dtype: str
    precision: str
    layouts: tuple[str, str]  # of A and B
    aligns: tuple[int, int]  # of their lines, in bytes
    out: str
    c: str | None
    bias: str | None
    activation: str

    @classmethod
    def of(cls, problem: GemmProblem) -> ProblemClass:
        """The class of a problem."""
        a, b, epilogue = problem.a, problem.b, problem.epilogue
        return cls(
            a.dtype, problem.precision, (a.layout, b.layout), (a.line_align, b.line_align), problem.out.dtype,
            epilogue.c.dtype if epilogue.c else None, epilogue.bias.dtype if epilogue.bias else None, epilogue.activation,
        )  # fmt: skip


def loop(kind: ProblemClass, variant: str, *, tma: bool, resident: bool) -> str:
    """How a variant reads its operands, which is what its coefficients depend on."""
    if kind.dtype == "fp32":
        return f"{variant} {kind.precision}"
    if tma:
        return f"{variant} resident" if resident else variant
    narrowest = min(kind.aligns)
    return variant if narrowest >= VECTOR_BYTES else f"{variant} {'4-byte' if narrowest >= 4 else '2-byte'}"


class Setting:
    """A class of problems on a device, with coefficients: its rates, and the costs of every pair.

    Attributes:
        item, out_item, extra_item: bytes of an element of A, of the result, and of what the epilogue reads beside it.
        fma: products are formed on CUDA cores.
        bandwidth: of device memory; port: of L2, per SM. In bytes a microsecond.
        cache_bytes: operands up to this size stay in L2.
        sms: the device's, as an array: numpy is quicker with those than with numbers.
        more: by how much lines of a pitch multiply their traffic, by `cost.pitch`.
    """

    def __init__(self, kind: ProblemClass, arch: Arch, kernels: Kernels) -> None:
        self.kind, self.arch, self.kernels = kind, arch, kernels
        self.item, self.out_item = ITEMSIZE[kind.dtype], ITEMSIZE[kind.out]
        self.extra_item = sum(ITEMSIZE[dtype] for dtype in (kind.c, kind.bias) if dtype)
        self.fma = kind.dtype in ("fp32", "fp64") and kind.precision not in EMULATION
        self.clock = arch.clock_ghz * 1e3  # clocks a microsecond
        self.bandwidth = arch.bandwidth_gbps * 1e3
        self.port = _L2_CLOCK * self.clock
        self.cache_bytes = arch.l2_bytes * _CACHE_SHARE
        self.sms = np.array(float(arch.sm_count))
        self.more = np.array([1.0, *(1.0 + kernels.pitches[name] for name in PITCHES), 1.0])
        self.vector = kernels[loop(kind, "gemv", tma=False, resident=False)]
        self._costs = np.empty((0, WIDTH))
        self._streams = {side: np.empty((len(StreamCosts._fields), 0)) for side in (True, False)}

    def costs(self, numbers: Rows) -> TileCosts:
        """The costs of those pairs; where one is new here, of all that were numbered meanwhile, which takes no longer."""
        known = self._costs  # read once: another thread may work out the same
        first = len(known)
        if first < len(PAIRS) and len(numbers) and numbers[numbers.argmax()] >= first:  # max() takes three times as long
            there_are = len(PAIRS)
            new = np.vstack(self._work_out(PAIRS.columns(first, there_are), PAIRS.tiles[first:there_are])).T
            known = self._costs = np.concatenate([known, new])
        return by_field(np.ascontiguousarray(known.take(numbers, axis=0).T))

    def streams(self, narrow_m: bool, numbers: Rows) -> StreamCosts:
        """The costs of those pairs as gemvs, which stream B where M is the narrow side, else A."""
        known = self._streams[narrow_m]
        first = known.shape[1]
        if first < len(PAIRS) and len(numbers) and numbers[numbers.argmax()] >= first:  # max() takes three times as long
            there_are = len(PAIRS)
            new = np.stack(self._stream_out(PAIRS.columns(first, there_are), PAIRS.tiles[first:there_are], narrow_m))
            known = self._streams[narrow_m] = np.concatenate([known, new], axis=1)
        return StreamCosts(*known.take(numbers, axis=1))

    def _stream_out(self, t: Columns, tiles: Sequence[str], narrow_m: bool) -> StreamCosts:
        layout, align = self.kind.layouts[narrow_m], min(self.kind.aligns[narrow_m], VECTOR_BYTES)
        along = layout == "t" if narrow_m else layout == "n"
        name = loop(self.kind, "gemv", tma=False, resident=False)
        way = f"{name} {'along' if along else 'across'}"
        corrections, other = self.kernels.corrections(way), self.kernels.other(way)
        work, factor, _ = np.array([corrections.get(tile, other) for tile in tiles]).T
        threads, block = 32 * t.warps, t.block_n * t.block_k
        waste = sector_waste((t.block_k if along else t.block_n) * self.item) * (VECTOR_BYTES / align) ** 0.5
        rate = self.arch.tflops["fp32"] * 1e6 / self.arch.sm_count * self.vector.compute
        return StreamCosts(
            t.block_n, t.block_k * t.split_k, t.split_k, threads, block // threads,
            np.minimum(32, self.arch.threads_per_sm // threads), 2 * work * block / rate,
            block * self.item * waste / (self.port * self.vector.l2 * self.arch.sm_count), waste,
            0.01 * t.block_n * (t.warps if along else 1), _second(t, self.vector), self._early(t), factor,
        )  # fmt: skip

    def _early(self, t: Columns) -> Array:
        """Launches start early from capability 9.0 on."""
        return t.early if self.arch.capability >= (9, 0) else np.zeros_like(t.early)

    def _work_out(self, t: Columns, tiles: Sequence[str]) -> TileCosts:
        """The costs of any pairs, by column; `tiles` as a table corrects them."""
        loops, of_loop = self._loops(t)
        corrected = [(self.kernels.corrections(one), self.kernels.other(one)) for one in loops]
        found = ((*corrected[i], tile) for i, tile in zip(of_loop.tolist(), tiles, strict=True))
        factors = np.array([known.get(tile, other) for known, other, tile in found])
        make: Any = Coefficients  # of columns, for once
        c = make(*(np.array([getattr(self.kernels[one], name) for one in loops])[of_loop] for name in Coefficients.__slots__))
        elements = t.block_m * t.block_n
        wide = (self.arch.capability[0] in (9, 10) and not self.fma) & (t.block_m >= 64) & (t.warps >= 4)  # wgmma and its successor

        peak_sm = peak(self.kind.dtype, self.kind.precision, self.arch) * 1e6 / self.arch.sm_count
        compute = 2 * elements * t.block_k / (peak_sm * c.compute * self._instruction_share(t, wide))
        work = join(compute, self._shared_bytes(t, wide) / (_SMEM_CLOCK * self.clock), 4.0) * factors[:, 0]
        runs_m, runs_n = self._runs(t)
        column = t.block_k * self.item
        swap, traffic_m, traffic_n = (
            t.swap > 0,
            t.block_m * sector_waste(runs_m) * column,
            t.block_n * sector_waste(runs_n) * column,
        )
        # Loads narrower than 4 bytes cannot be asynchronous: nothing is in flight while a block is computed.
        depth = np.where((t.tma > 0) | (min(self.kind.aligns) >= 4), np.maximum(1, t.stages - 1), 1)
        alone, shared = self.port * c.port, self.port * c.l2

        stored = elements * np.where(t.split_k > 1, 4, self.out_item + self.extra_item)
        epilogue = elements * (_ACTIVATION_OPS.get(self.kind.activation, 10) / 128) / self.clock
        ends = (c.fill + c.store + 2 * stored / alone + epilogue) * factors[:, 2]
        later = np.where(t.resident > 0, c.resident, 1.0) * np.where(t.flatten > 0, _FLATTENED, 1.0)
        fit = np.where(t.sole > 0, 1, _programs_per_sm(t, self.item, self.arch))
        visit = _VISIT + 4 * elements / (alone * c.partial)
        result = elements * (self.out_item + self.extra_item) / alone + epilogue
        traffic_a, traffic_b = np.where(swap, traffic_n, traffic_m), np.where(swap, traffic_m, traffic_n)
        return TileCosts(
            np.stack((*_sides(t), t.block_k * t.split_k, t.block_k)), np.stack((c.latency / depth + c.step, c.step)),
            np.stack((alone, later)), np.stack((shared, later * _NEIGHBOUR)),
            t.group_m, t.split_k, t.swap, fit, work**c.overlap,
            traffic_a, traffic_b, traffic_a + traffic_b, self._issue_us(t) * c.issue,
            shared * self.arch.sm_count, ends, ends + (traffic_a + traffic_b) / alone,
            *self.rates(c), c.launch, c.launch * STARTED, c.overlap, 1 / c.overlap, c.second + c.store,
            np.where(t.fused > 0, 0.0, _second(t, c)), np.where((t.fused > 0) & (t.split_k > 1), t.split_k * visit + result, 0.0),
            np.where(t.tma > 0, 0.0, c.tail), np.where(t.hands > 1, t.hands, 0.0), t.copies, self._early(t), factors[:, 1],
        )  # fmt: skip

    def _loops(self, t: Columns) -> tuple[list[str], Rows]:
        """The loops of the pairs, and each pair's place among them."""
        ways, place = np.unique((4 * t.variant + 2 * t.tma + t.resident).astype(int), return_inverse=True)
        return [loop(self.kind, PAIRS.names[way // 4], tma=way & 2 > 0, resident=way & 1 > 0) for way in ways.tolist()], place

    def rates(self, c: Any) -> tuple[Any, Any]:
        """What device memory delivers to a kernel, and L2 to the launch that adds up partial sums."""
        return self.bandwidth * c.stream, self.port * self.arch.sm_count * c.l2 * c.partial

    def _instruction_share(self, t: Columns, wide: Flags) -> Array:
        """The share of the peak that the instruction for a tile can reach."""
        kind = self.kind
        transposes = kind.precision == "tf32" and kind.layouts != ("n", "t")
        share = np.where(
            wide, _TRANSPOSE_SHARE if transposes else 1.0, 1.0 if self.fma else _MMA_SHARE.get(self.arch.capability[0], 1.0)
        )
        if kind.dtype == "fp32" and kind.precision in EMULATION:
            share = share * _ROUNDING_SHARE
        return share * np.minimum(1.0, t.block_m / 16)

    def _shared_bytes(self, t: Columns, wide: Flags) -> Array:
        """Shared memory traffic of a k block that holds up its arithmetic: asynchronous writes ahead of wgmma do not."""
        column = t.block_k * self.item
        if self.fma:
            side = np.sqrt(t.block_m * t.block_n * 32 * t.warps)  # a thread's share is a square; the threads' sides, added up
            conflicts = _CONFLICTS if self.kind.layouts[1] == "t" else 1 / 8  # else 8 threads of a warp share a read
            return (t.block_m + t.block_n + side / 8 + side * conflicts) * column
        across = np.maximum(1, np.minimum(t.warps, t.block_n // 32))
        mma = t.block_m * (1 + across) + t.block_n * (1 + np.maximum(1, t.warps // across))
        return np.where(wide, t.block_m + t.block_n * np.maximum(1, t.block_m // 64), mma) * column

    def _runs(self, t: Columns) -> tuple[Array, Array]:
        """Contiguous bytes that a tile reads at a time, on its M side and on its N side."""
        a, b = self.kind.layouts
        # A copy of what has no unit stride lies along K.
        (side_a, side_b), one = _sides(t), np.where(t.copies > 0, t.block_k, 1.0)
        along_a = t.block_k if a == "n" else side_a if a == "t" else one
        along_b = t.block_k if b == "t" else side_b if b == "n" else one
        swap = t.swap > 0
        return np.where(swap, along_b, along_a) * self.item, np.where(swap, along_a, along_b) * self.item

    def _issue_us(self, t: Columns) -> Array:
        """The time to issue a k block's loads through pointers: narrow ones cost by the element, those under 4 bytes the more."""
        clocks, loads = np.zeros_like(t.block_m), np.zeros_like(t.block_m)
        for side, align in zip(_sides(t), self.kind.aligns, strict=True):
            count = side * t.block_k * self.item / min(align, VECTOR_BYTES)
            loads = loads + count / (32 * t.warps)
            clocks = clocks + count / 32 * (2.0 if align >= 4 else 9.0)
        crowding = np.maximum(1.0, loads / _ADDRESSES)  # a thread's addresses beyond its registers are spilled
        return np.where(t.tma > 0, 0.0, clocks * crowding / self.clock)


def _second(t: Columns, c: Any) -> Array:
    """A second launch for partial sums, as far as it does not depend on their size."""
    return np.where(t.split_k > 1, c.second + c.store + 0.02 * t.split_k, 0.0)


def _sides(t: Columns) -> tuple[Array, Array]:
    """Rows of A and columns of B that a tile covers."""
    return np.where(t.swap > 0, t.block_n, t.block_m), np.where(t.swap > 0, t.block_m, t.block_n)


@lru_cache(maxsize=256)  # 16-bit operands alone have 128 pairs of layouts and alignments
def setting(kind: ProblemClass, arch: Arch, kernels: Kernels) -> Setting:
    """The one of that class, device and coefficients."""
    return Setting(kind, arch, kernels)


def _programs_per_sm(t: Columns, item: int, arch: Arch) -> Array:
    """Programs that one SM is expected to hold at once, from shared memory, registers and threads."""
    threads = 32 * t.warps
    shared = (t.block_m + t.block_n) * t.block_k * item * t.stages + 1024
    registers = threads * np.minimum(255, t.block_m * t.block_n // threads + 64)
    by_memory = np.minimum(arch.smem_per_sm // shared, arch.registers_per_sm // registers)
    return np.maximum(1, np.minimum(8, np.minimum(by_memory, arch.threads_per_sm // threads)))


def join(a: Any, b: Any, exponent: float) -> Any:
    """Slightly more than the longer of two times that run at once; not both are 0."""
    longer, shorter = np.maximum(a, b), np.minimum(a, b)
    return longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent)


def sector_waste(run_bytes: Any) -> Any:
    """Bytes fetched over bytes used: short runs waste part of each 32-byte sector and 128-byte line."""
    short = np.where(run_bytes >= 32, 1.3, 32.0 / np.maximum(run_bytes, 1))
    return np.where(run_bytes >= 128, 1.0, np.where(run_bytes >= 64, 1.1, short))
