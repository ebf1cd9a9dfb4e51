"""Test cases: a variant, a tile, a problem with its strides and alignments, scalars; how to draw them and how to run them.

The interpreter suite (small sizes) and the GPU suite (larger ones) draw from the same parameters. Everything is driven by the
catalog: a variant added there is covered without a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kernel_zoo import catalog, interpret
from kernel_zoo.build import Specialisation, specialise
from kernel_zoo.reference import Fill, Verdict, make_slots, verify
from kernel_zoo.spec import Arch, Epilogue, GemmProblem, Operand, TileConfig, Variant, canonical_dtype
from tests.kernel_zoo.pairwise import Covering, Row, cover

H200 = Arch(
    name="h200",
    capability=(9, 0),
    sm_count=132,
    smem_per_block=232448,
    smem_per_sm=233472,
    registers_per_sm=65536,
    threads_per_sm=2048,
    l2_bytes=50 << 20,
    clock_ghz=1.98,
    bandwidth_gbps=4800.0,
    tflops={"bf16": 989.0, "fp16": 989.0, "tf32": 494.0, "fp32": 67.0, "fp64": 67.0},
)
#: One SM with room for one block: resident programs then walk over many tiles even where the problem is small.
TINY = replace(H200, sm_count=1, threads_per_sm=256, smem_per_sm=H200.smem_per_block, registers_per_sm=16384)

BORROWED_CASES = 110
INTERPRETED = tuple(variant for variant in catalog.VARIANTS if variant.recipe is not None and variant.interpretable)


@dataclass(frozen=True)
class Case:
    """One launch to try and what it is fed."""

    variant: Variant
    problem: GemmProblem
    tile: TileConfig | None
    arch: Arch
    alpha: float = 1.0
    beta: float = 0.0
    fill: Fill = "normal"

    def describe(self) -> str:
        """All that is needed to run it again by hand."""
        tile = self.tile.describe() if self.tile else "library"
        return f"{self.variant.name} {tile} {self.problem} alpha={self.alpha} beta={self.beta} {self.fill} sms={self.arch.sm_count}"

    def jobs(self) -> list[tuple[Specialisation, int]]:
        """The binaries it needs on a GPU."""
        if self.tile is None:
            return []
        return [(specialise(call), self.arch.cc) for call in self.variant.plan(self.problem, self.tile, self.arch).calls]

    def run(self, seed: int = 0) -> Verdict:
        """Launch on CPU tensors (interpreted, or the opaque variant's own launch) and judge."""
        slots = make_slots(self.problem, seed=seed, fill=self.fill)
        if self.tile is None:
            assert self.variant.launch is not None
            self.variant.launch(self.problem, slots, self.alpha, self.beta)
        else:
            recipe = self.variant.plan(self.problem, self.tile, self.arch)
            interpret.run(recipe, slots, {"ALPHA": self.alpha, "BETA": self.beta})
        return verify(self.problem, slots, self.alpha, self.beta)


def operand(
    dtype: str,
    rows: int,
    cols: int,
    batch: int = 1,
    *,
    layout: str = "n",
    pad: str = "dense",
    align: str = "16",
    shared: bool = False,
) -> Operand:
    """An operand of any layout ("n", "t", "s": no unit stride).

    Its lines are padded by 0 ("dense"), by 1 element ("odd") or to 16 bytes and then some ("aligned"). `align` is "16" or "item":
    an address aligned to one element only.
    """
    dtype = canonical_dtype(dtype)
    itemsize = Operand.dense(dtype, 1, 1).itemsize
    unit = 2 if layout == "s" else 1
    length, lines = (rows, cols) if layout == "t" else (cols, rows)
    vector = max(16 // itemsize, 1)
    leading = max(unit * length, 1)
    gap = 0
    if pad == "odd":
        leading, gap = leading + 1, 3
    elif pad == "aligned":
        leading, gap = vector * (-(-leading // vector) + 1), vector
    batch_stride = 0 if shared else leading * max(lines, 1) + gap
    strides = (batch_stride, unit, leading) if layout == "t" else (batch_stride, leading, unit)
    return Operand.of(dtype, rows, cols, strides, 16 if align == "16" else min(itemsize, 16), batch)


def bias_operand(kind: str, dtype: str, m: int, n: int, batch: int, align: str = "16") -> Operand | None:
    """A bias as a row ("n"), a column ("m"), a matrix ("mn"), a number ("1") or a row per matrix of the batch ("bn")."""
    if kind == "none":
        return None
    strides = {"n": (0, 0, 1), "m": (0, 1, 0), "mn": (m * (n + 1) + 1, n + 1, 1), "1": (0, 0, 0), "bn": (n, 0, 1)}[kind]
    itemsize = Operand.dense(dtype, 1, 1).itemsize
    return Operand(dtype, m, n, (strides[0] if batch > 1 else 0, *strides[1:]), 16 if align == "16" else itemsize)


Size = Callable[[int], int]

SIZES: dict[str, Size] = {
    "1": lambda t: 1,
    "2": lambda t: 2,
    "3": lambda t: 3,
    "15": lambda t: 15,
    "16": lambda t: 16,
    "17": lambda t: 17,
    "t-1": lambda t: max(t - 1, 1),
    "t": lambda t: t,
    "t+1": lambda t: t + 1,
    "2t+3": lambda t: 2 * t + 3,
}
DEPTHS: dict[str, Size] = {
    "0": lambda t: 0,
    "1": lambda t: 1,
    "2": lambda t: 2,
    "7": lambda t: 7,
    "8": lambda t: 8,
    "15": lambda t: 15,
    "33": lambda t: 33,
    "t": lambda t: t,
    "2t+1": lambda t: 2 * t + 1,
    "4t": lambda t: 4 * t,
}

PARAMETERS: dict[str, Sequence[str]] = {
    "m": tuple(SIZES),
    "n": tuple(SIZES),
    "k": tuple(DEPTHS),
    "dtype": ("fp16", "bf16", "fp32", "tf32"),
    "out_dtype": ("same", "fp32", "fp16"),
    "batch": ("1", "3", "shared a", "shared b", "shared both"),
    "a_layout": ("n", "t", "s"),
    "b_layout": ("n", "t", "s"),
    "out_layout": ("n", "t", "s"),
    "a_pad": ("dense", "odd", "aligned"),
    "b_pad": ("dense", "odd", "aligned"),
    "out_pad": ("dense", "odd", "aligned"),
    "a_align": ("16", "item"),
    "b_align": ("16", "item"),
    "out_align": ("16", "item"),
    "alpha": ("1", "1.2", "0"),
    "beta": ("0", "1", "2"),
    "c_dtype": ("same", "fp32"),
    "c_layout": ("n", "t", "s", "row"),
    "bias": ("none", "n", "m", "mn", "1", "bn"),
    "bias_dtype": ("same", "fp32"),
    "bias_align": ("16", "item"),
    "activation": ("none", "relu", "gelu", "gelu_tanh", "silu", "leaky_relu"),
    "arch": ("h200", "tiny"),
    "fill": ("normal", "integers", "special"),
}


def problem_of(row: Row, m: int, n: int, k: int) -> GemmProblem:
    """The problem a row of PARAMETERS describes."""
    value = {name: str(given) for name, given in row.items()}
    dtype = "fp32" if value["dtype"] not in ("fp16", "bf16") else value["dtype"]
    precision = "" if dtype != "fp32" else "ieee" if value["dtype"] == "fp32" else value["dtype"]
    out_dtype = dtype if value["out_dtype"] == "same" else value["out_dtype"]
    batch = 1 if value["batch"] == "1" else 3
    shares_a, shares_b = value["batch"] in ("shared a", "shared both"), value["batch"] in ("shared b", "shared both")
    if value["alpha"] == "0":
        k = 0
    c = None
    if value["beta"] != "0":
        c_dtype = dtype if value["c_dtype"] == "same" else "fp32"
        c = operand(c_dtype, m, n, batch, layout=value["c_layout"] if value["c_layout"] != "row" else "n", pad="odd", align="item")
        if value["c_layout"] == "row":
            c = replace(c, strides=(0, 0, 1))
    bias = bias_operand(value["bias"], dtype if value["bias_dtype"] == "same" else "fp32", m, n, batch, value["bias_align"])
    alpha_class, beta_class = {"1.2": "x"}.get(value["alpha"], value["alpha"]), {"2": "x"}.get(value["beta"], value["beta"])
    return GemmProblem(
        batch,
        m,
        n,
        k,
        operand(dtype, m, k, batch, layout=value["a_layout"], pad=value["a_pad"], align=value["a_align"], shared=shares_a),
        operand(dtype, k, n, batch, layout=value["b_layout"], pad=value["b_pad"], align=value["b_align"], shared=shares_b),
        operand(out_dtype, m, n, batch, layout=value["out_layout"], pad=value["out_pad"], align=value["out_align"]),
        Epilogue(alpha_class, beta_class, c, bias, value["activation"]),  # type: ignore[arg-type]
        precision,
    )


def collapsed(tile: TileConfig) -> TileConfig:
    """The tile without what the interpreter cannot see."""
    return replace(tile, num_warps=4, num_stages=2)


def takes(
    variant: Variant, m: int, n: int, k: int, dtype: str, layout: str = "nn", precision: str = "", arch: Arch = H200
) -> GemmProblem | None:
    """The problem if the variant takes it, else, if it takes that, one whose lines start anywhere: N and K a little longer."""
    for problem in (
        GemmProblem.of(m, n, k, dtype, layout, precision=precision),
        GemmProblem.of(m, n | 1, k | 1, dtype, layout, precision=precision),
    ):
        if variant.refusal(problem, arch) is None:
            return problem
    return None


_SPREAD = ((1, 512, 1024), (512, 2, 1024), (16, 4096, 4096), (4096, 16, 4096), (96, 128, 8192), (512, 512, 512), (4096, 4096, 4096))


def spread(variant: Variant, arch: Arch = H200) -> list[GemmProblem]:
    """Problems of all kinds that the variant takes."""
    found = [
        takes(variant, *sizes, dtype, layout, precision, arch)
        for dtype, precision in (("bf16", ""), ("fp32", "ieee"), ("fp32", "tf32"))
        for sizes in _SPREAD
        for layout in ("nn", "nt")
    ]
    return [problem for problem in found if problem is not None]


def spaces(variant: Variant, arch: Arch = H200) -> list[TileConfig]:
    """What the variant proposes over a spread of problems, legal there, without repetition."""
    found: dict[TileConfig, None] = {}
    for problem in spread(variant, arch):
        tiles = variant.space(problem, arch)
        found.update(dict.fromkeys(tile for tile in tiles if variant.refusal(problem, arch, tile) is None))
    return list(found)


_SMALL = ((16, 16, 16), (32, 16, 32), (16, 32, 16), (16, 64, 32))


def borrows(variant: Variant) -> bool:
    """Whether the kernel that multiplies is an earlier variant's, whose knobs and epilogues are tried there."""
    earlier = catalog.VARIANTS[: catalog.VARIANTS.index(variant)]
    return bool(variant.kernels) and any(variant.kernels[0] in other.kernels[:1] for other in earlier)


@lru_cache
def small_tiles(variant: Variant) -> tuple[TileConfig, ...]:
    """Small blocks with every combination of knobs and split that the variant proposes, and the smallest proposed blocks."""
    kinds: dict[tuple[object, ...], TileConfig] = {}
    for tile in map(collapsed, spaces(variant)):
        kind = (tile.block_m == 1, tile.split_k > 1, tile.knobs)
        best = kinds.get(kind)
        if best is None or tile.block_m * tile.block_n * tile.block_k < best.block_m * best.block_n * best.block_k:
            kinds[kind] = tile
    found: dict[TileConfig, None] = {}
    for i, tile in enumerate(kinds.values()):
        shapes = _SMALL if len(kinds) <= 2 else (_SMALL[i % 2], _SMALL[2 + i % 2])
        for j, (m, n, k) in enumerate(shapes):
            split = 1 if tile.split_k == 1 else 2 + (i + j) % 2
            small = replace(
                tile, block_m=1 if tile.block_m == 1 else m, block_n=n, block_k=k, split_k=split, group_m=1 if j % 2 else 3
            )
            found[small] = None
    # Narrow blocks make many programs, which the interpreter is slow at; the GPU suite runs those.
    proposed = [tile for tile in kinds.values() if tile.block_n >= 16] or list(kinds.values())
    smallest = min(proposed, key=lambda tile: tile.block_m * tile.block_n * tile.block_k)
    found[replace(smallest, split_k=min(smallest.split_k, 2))] = None
    return tuple(found)


def make_case(
    variant: Variant,
    row: Row,
    archs: Mapping[str, Arch],
    sizes: Mapping[str, Size] = SIZES,
    depths: Mapping[str, Size] = DEPTHS,
    cap: int = 64,
) -> Case | None:
    """The case of a row, or None where the variant refuses it. Sizes follow the tile's blocks up to `cap`."""
    tile = row.get("tile")
    assert tile is None or isinstance(tile, TileConfig)
    swapped = tile is not None and bool(tile.knob("swap"))
    block_m, block_n, block_k = (tile.block_m, tile.block_n, tile.block_k) if tile else (16, 16, 16)
    if swapped:
        block_m, block_n = block_n, block_m
    m, n = sizes[str(row["m"])](min(block_m, cap)), sizes[str(row["n"])](min(block_n, cap))
    problem = problem_of(row, m, n, depths[str(row["k"])](min(block_k, cap)))
    arch = archs[str(row["arch"])]
    if variant.refusal(problem, arch, tile) is not None:
        return None
    fill: Fill = str(row["fill"])  # type: ignore[assignment]
    return Case(variant, problem, tile, arch, float(str(row["alpha"])), float(str(row["beta"])), fill)


@lru_cache
def covering(variant: Variant) -> Covering:
    """Cases in which all pairs of PARAMETERS and small tiles meet, as far as the variant takes them; the best if it borrows."""
    parameters: dict[str, Sequence[object]] = dict(PARAMETERS)
    if variant.recipe is not None:
        parameters["tile"] = small_tiles(variant)
    archs = {"h200": H200, "tiny": TINY}
    limit = BORROWED_CASES if borrows(variant) else None
    return cover(parameters, lambda row: make_case(variant, row, archs), seed=len(variant.name), limit=limit)  # type: ignore[arg-type]
