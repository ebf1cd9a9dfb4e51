"""The cases of a check: each is there for a way in which GEMM kernels are known to fail. Data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from kernel_zoo.spec import (
    ACTIVATIONS,
    FP32_PRECISIONS,
    ITEMSIZE,
    Arch,
    Epilogue,
    GemmProblem,
    Operand,
    TileConfig,
    Variant,
    default_out_dtype,
)
from minblas.buffers import scalars

Fill = Literal["normal", "integers", "special", "large"]

LAYOUTS: Final = ("nn", "nt", "tn", "tt", "sn", "ns")
FORMS: Final = ("any", "deep", "deeper", "row", "column")  # what special kernels are made for: a long K, a few rows, a few columns
_DEPTHS: Final = {"deep": 256, "deeper": 1024}
_NOMINAL: Final = (64, 64, 32)
TYPES: Final = tuple((dtype, "") for dtype in ITEMSIZE if dtype != "fp32") + tuple(
    ("fp32", precision) for precision in FP32_PRECISIONS
)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem, what its operands are filled with, and what it is there to find."""

    intent: str
    problem: GemmProblem
    fill: Fill = "normal"

    @property
    def scalars(self) -> tuple[float, float]:
        """Values of alpha and beta."""
        return scalars(self.problem)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Problems of one type."""

    dtype: str
    precision: str
    layout: str
    form: str = "any"

    def __call__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        layout: str = "",
        batch: int = 1,
        pad: int = 0,
        shared: str = "",
        narrow: bool = False,
        epilogue: str = "",
    ) -> GemmProblem:
        """A problem.

        Args:
            m: rows of the result.
            n: its columns.
            k: what is summed over.
            batch: matrices.
            layout: of A and B; the maker's by default.
            pad: elements between lines.
            shared: operands ("a", "b") that have one matrix for the whole batch.
            narrow: addresses aligned to one element only.
            epilogue: see `_epilogue`.
        """
        layout = layout or self.layout
        m, n, k = self._formed(m, n, k)
        out = default_out_dtype(self.dtype)
        align = ITEMSIZE[self.dtype] if narrow else 16
        a = _stored(self.dtype, m, k, layout[0], pad, align, 1 if "a" in shared else batch)
        b = _stored(self.dtype, k, n, layout[1], pad, align, 1 if "b" in shared else batch)
        result = _stored(out, m, n, "n", pad, ITEMSIZE[out] if narrow else 16, batch)
        return GemmProblem(batch, m, n, k, a, b, result, _epilogue(epilogue, result, batch), self.precision)

    def _formed(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Sizes brought into the form that the variant takes, with the same tails."""
        if self.form in _DEPTHS and k:
            return m, n, k + _DEPTHS[self.form]
        return (1 + (m - 1) % 4 if self.form == "row" else m), (1 + (n - 1) % 4 if self.form == "column" else n), k


def _stored(dtype: str, rows: int, cols: int, letter: str, pad: int, align: int, batch: int) -> Operand:
    lines, length = (cols, rows) if letter == "t" else (rows, cols)
    step = 2 if letter == "s" else 1
    leading = max(length, 1) * step + pad
    strides = (lines * leading, step, leading) if letter == "t" else (lines * leading, leading, step)
    return Operand.of(dtype, rows, cols, strides, min(align, 16), batch)


def _epilogue(words: str, out: Operand, batch: int) -> Epilogue:
    """From words: "alpha", "c", "beta" (C scaled), "c-row" (broadcast), "c-fp32", "bias-n", "bias-m", or an activation."""
    given = words.split()
    c = bias = None
    if {"c", "beta", "c-row", "c-fp32"} & set(given):
        c = replace(out, dtype="fp32" if "c-fp32" in given else out.dtype, align=16)
        c = replace(c, strides=(0, 0, 1)) if "c-row" in given else c
    if "bias-n" in given or "bias-m" in given:
        bias = Operand(out.dtype, out.rows, out.cols, (0, 0, 1) if "bias-n" in given else (0, 1, 0))
    activation = next((word for word in given if word in ACTIVATIONS), "none")
    beta: Literal["0", "1", "x"] = "0" if c is None else "x" if "beta" in given else "1"
    return Epilogue("x" if "alpha" in given else "1", beta, c, bias, activation)


def cases(variant: Variant, arch: Arch, *, quick: bool = False, interpreted: bool = False) -> list[Case]:
    """The cases of a variant: all of them in the first type it takes, the telling ones in its other types.

    Args:
        variant: what is to be checked.
        arch: the device it is checked for.
        quick: the telling ones only.
        interpreted: one precision of fp32 is enough, since an interpreter computes all of them alike.
    """
    makers: list[_Maker] = []
    for dtype, precision in TYPES:
        known = interpreted and any(maker.dtype == dtype for maker in makers)
        if not known and (maker := _maker(variant, arch, dtype, precision)) is not None:
            makers.append(maker)
    if not makers:  # whatever it refuses here, it says why
        makers = [_Maker("bf16", "", "nn")]
    found: list[Case] = []
    for index, maker in enumerate(makers):
        tile = _tile(variant, maker, arch)
        groups = (_telling,) if index or quick else (_telling, _shapes, _memory, _epilogues)
        found += [case for group in groups for case in group(maker, tile)]
    # What Inf and NaN give in complex arithmetic depends on how a product is put together; no kernel is right or wrong about it.
    return [case for case in found if case.fill != "special" or not case.problem.dtype.startswith("complex")]


def _maker(variant: Variant, arch: Arch, dtype: str, precision: str) -> _Maker | None:
    """Problems in a type, in the first form and layout that the variant takes with some tile, if any."""
    for form in FORMS:
        for layout in LAYOUTS:
            maker = _Maker(dtype, precision, layout, form)
            if variant.refusal(maker(*_NOMINAL), arch) is None and (variant.recipe is None or _legal(variant, maker, arch)):
                return maker
    return None


def _legal(variant: Variant, maker: _Maker, arch: Arch) -> list[TileConfig]:
    problem = maker(*_NOMINAL)
    return [tile for tile in variant.space(problem, arch) if variant.refusal(problem, arch, tile) is None]


def _tile(variant: Variant, maker: _Maker, arch: Arch) -> TileConfig:
    """The smallest legal tile, around whose sides sizes are chosen."""
    smallest = min(
        _legal(variant, maker, arch), key=lambda tile: tile.block_m * tile.block_n * tile.block_k, default=TileConfig(32, 32, 32)
    )
    return replace(smallest, block_m=max(smallest.block_m, 8), block_n=max(smallest.block_n, 8), block_k=max(smallest.block_k, 8))


def _telling(make: _Maker, tile: TileConfig) -> Iterator[Case]:
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    yield Case("whole tiles", make(2 * m, n, 2 * k))
    yield Case("tails in aligned steps", make(m + 16, n + 16, k + 16))
    yield Case("odd tails", make(m + 1, 2 * n - 1, 2 * k + 1))
    yield Case("Inf and NaN", make(m + 16, n + 16, k + 16), "special")
    yield Case("K under one block", make(m, n, k // 2))
    yield Case("lines with gaps", make(m + 16, n + 16, 2 * k, pad=16))
    yield Case("alpha, beta and C", make(m + 16, n + 16, k + 16, epilogue="alpha beta"))
    yield Case("a batch", make(m, n + 16, k + 16, batch=3))


def _shapes(make: _Maker, tile: TileConfig) -> Iterator[Case]:
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    for sizes in (
        (1, 1, 1),
        (3, 5, 7),
        (1, n, k),
        (m, 1, k),
        (17, n + 8, 1),
        (m - 1, n - 1, k - 1),
        (15, 16, 17),
        (5 * m, 3 * n, k),
    ):
        yield Case("an odd shape" if any(size % 8 for size in sizes) else "many tiles", make(*sizes))
    yield Case("a long K", make(16, 16, 20 * k + 8))
    yield Case("nothing to multiply", make(m, n, 0))
    yield Case("sums that are exact", make(m + 8, n + 8, 3 * k), "integers")
    yield Case("Inf and NaN beside odd tails", make(m + 3, n + 5, k + 7), "special")


def _memory(make: _Maker, tile: TileConfig) -> Iterator[Case]:
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    for layout in LAYOUTS:
        yield Case(f"layout {layout}", make(m + 16, n + 32, k + 16, layout=layout))
        yield Case(f"layout {layout}, odd", make(m + 7, n + 9, k + 3, layout=layout))
        yield Case(f"layout {layout}, gaps", make(m + 16, n + 16, k + 16, layout=layout, pad=16))
    yield Case("addresses aligned to one element", make(m + 16, n + 16, k + 16, narrow=True))
    yield Case("gaps of odd length", make(m + 16, n + 16, k + 16, pad=3))
    yield Case("a batch of odd matrices", make(7, n + 1, k + 3, batch=3))
    yield Case("a batch that shares B", make(m, n, k + 16, batch=3, shared="b"))
    yield Case("a batch that shares A", make(m, n, k + 16, batch=3, shared="a"))


def _epilogues(make: _Maker, tile: TileConfig) -> Iterator[Case]:
    m, n, k = tile.block_m + 16, tile.block_n + 16, tile.block_k + 16
    for words in (
        "alpha",
        "c",
        "beta",
        "alpha beta c-row",
        "beta c-fp32",
        "bias-n",
        "bias-m",
        "alpha beta bias-n",
        *ACTIVATIONS[1:],
    ):
        yield Case(words, make(m, n, k, epilogue=words))
    yield Case("NaN in what is added", make(m, n, k, epilogue="beta bias-n"), "special")
    yield Case("relu keeps NaN", make(m, n, k, epilogue="relu"), "special")
    yield Case("alpha, beta and C of odd size", make(m + 1, n + 3, k + 5, epilogue="alpha beta"))
    yield Case("a batch with C", make(m, n, k, batch=2, epilogue="alpha beta"))
    yield Case("nothing to multiply, C", make(m, n, 0, epilogue="beta"))
