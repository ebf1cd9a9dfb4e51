"""What the author of a kernel declares about it, and the refusals that follow from that.

Every sentence of a registered variant's refusals is written here, from the declarations alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kernel_zoo.spec import (
    FP32_PRECISIONS,
    VECTOR_BYTES,
    Arch,
    GemmProblem,
    Operand,
    Refusal,
    TileConfig,
    canonical_dtype,
    default_out_dtype,
)
from minblas.errors import ArgumentError, suggestion

EPILOGUES: Final = {
    "none": "out = a @ b only (alpha 1, no c, no bias, no activation)",
    "alpha_beta": "alpha * a @ b + beta * c only (no bias, no activation)",
    "full": "anything",
}
LAYOUTS: Final = tuple(a + b for a in "nts" for b in "nts")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a kernel's author says it can do; the refusals are derived from it.

    Attributes:
        types: (dtype, precision) pairs; precision is "" for all but fp32.
        capability: the least compute capability.
        alignment: bytes to which every line of A, B and out must be aligned.
    """

    types: tuple[tuple[str, str], ...]
    layouts: tuple[str, ...]
    epilogue: str
    candidates: tuple[TileConfig, ...]
    capability: tuple[int, int]
    alignment: int
    batch: bool
    wide: bool

    def supports(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        """The first declaration that the problem or the device does not meet."""
        rules = (self._device, self._dtype, self._sizes, self._layout, self._alignment, self._epilogue)
        return next((refusal for rule in rules if (refusal := rule(problem, arch)) is not None), None)

    def fits(self, problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
        """Only declared tiles were ever checked."""
        if tile in self.candidates:
            return None
        known = ", ".join(candidate.describe() for candidate in self.candidates)
        return Refusal("tile", f"the tile is {tile.describe()}", f"one of the declared candidates: {known}")

    def space(self, problem: GemmProblem, arch: Arch) -> Sequence[TileConfig]:
        """The declared candidates."""
        return self.candidates

    def _device(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        if arch.capability >= self.capability:
            return None
        return Refusal(
            "capability", f"{arch.name} has compute capability {_dotted(arch.capability)}", f"{_dotted(self.capability)} or newer"
        )

    def _dtype(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        needed = " or ".join(precision or dtype for dtype, precision in self.types)
        if problem.b.dtype != problem.dtype:
            return Refusal("dtype", f"a is {problem.dtype} and b is {problem.b.dtype}", f"both {needed}")
        if problem.dtype not in {dtype for dtype, _ in self.types}:
            return Refusal("dtype", f"inputs are {problem.dtype}", needed)
        if (problem.dtype, problem.precision) not in self.types:
            return Refusal("precision", f"precision is {problem.precision!r}", " or ".join(p for _, p in self.types if p))
        out = default_out_dtype(problem.dtype)
        if problem.out.dtype != out:
            return Refusal("dtype", f"out is {problem.out.dtype} and inputs are {problem.dtype}", f"{out} output")
        return None

    def _layout(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        if problem.layout not in self.layouts:
            return Refusal("layout", f"the layout is {problem.layout}", " or ".join(self.layouts))
        if problem.out.layout != "n":
            return Refusal("layout", f"out has strides {problem.out.strides[1:]}", "rows that are contiguous")
        return None

    def _sizes(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        if problem.batch != 1 and not self.batch:
            return Refusal("batch", f"the batch is {problem.batch}", "1: it was registered without batch=True")
        if problem.k == 0:
            return Refusal("empty", "k is 0 or alpha is 0: nothing is multiplied", "a product to compute")
        if problem.needs_int64() and not self.wide:
            return Refusal(
                "size", "an operand is reached by offsets past 2^31 - 1", "32-bit offsets: it was registered without wide=True"
            )
        return None

    def _alignment(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        for name, operand in (("a", problem.a), ("b", problem.b), ("out", problem.out)):
            if operand.line_align < self.alignment:
                where = f"(leading dimension {operand.leading}, {operand.dtype})"
                given = f"{name}'s lines start at multiples of {operand.line_align} bytes {where}"
                return Refusal("alignment", given, f"multiples of {self.alignment} bytes")
        return None

    def _epilogue(self, problem: GemmProblem, arch: Arch) -> Refusal | None:
        epilogue = problem.epilogue
        extra = epilogue.bias is not None or epilogue.activation != "none"
        if epilogue.plain or self.epilogue == "full" or (self.epilogue == "alpha_beta" and not extra):
            return None
        parts = {
            f"alpha {epilogue.alpha.replace('x', 'other than 1')}": epilogue.alpha != "1",
            "c": epilogue.c is not None,
            "bias": epilogue.bias is not None,
            epilogue.activation: epilogue.activation != "none",
        }
        given = ", ".join(name for name, present in parts.items() if present)
        return Refusal("epilogue", f"the epilogue has {given}", EPILOGUES[self.epilogue])


def declare(
    name: str,
    dtypes: Sequence[object],
    layouts: Sequence[str],
    epilogue: str,
    candidates: Sequence[TileConfig],
    capability: tuple[int, int] | int | str,
    alignment: int,
    batch: bool,
    wide: bool,
    *,
    opaque: bool,
) -> Declared:
    """The declarations, checked."""
    if not dtypes or isinstance(dtypes, str):
        raise ArgumentError(f"{name}: dtypes is {dtypes!r}", 'a list of types, e.g. ["fp16"]')
    bad = layouts if isinstance(layouts, str) or not layouts else [layout for layout in layouts if layout not in LAYOUTS]
    if bad:
        raise ArgumentError(f"{name}: layouts is {layouts!r}", f"a list of {', '.join(LAYOUTS)}")
    if epilogue not in EPILOGUES:
        raise ArgumentError(f"{name}: epilogue is {epilogue!r}", " or ".join(map(repr, EPILOGUES)), suggestion(epilogue, EPILOGUES))
    if opaque == bool(candidates):
        needed = "none: a launch chooses its tile by itself" if opaque else "at least one TileConfig"
        raise ArgumentError(f"{name}: {len(candidates)} candidates", needed)
    for candidate in candidates:
        if not isinstance(candidate, TileConfig):
            raise ArgumentError(
                f"{name}: a candidate is {candidate!r}", "a minblas.TileConfig", "for example TileConfig(64, 64, 32)"
            )
    if alignment not in (1, 2, 4, 8, VECTOR_BYTES):
        raise ArgumentError(f"{name}: alignment is {alignment}", "1, 2, 4, 8 or 16 bytes")
    return Declared(
        tuple(_type(dtype) for dtype in dtypes),
        tuple(layouts),
        epilogue,
        tuple(candidates),
        _capability(name, capability),
        alignment,
        batch,
        wide,
    )


def _type(dtype: object) -> tuple[str, str]:
    if dtype in FP32_PRECISIONS:
        return "fp32", str(dtype)
    try:
        known = canonical_dtype(dtype)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    return known, "ieee" if known == "fp32" else ""


def _capability(name: str, given: tuple[int, int] | int | str) -> tuple[int, int]:
    if isinstance(given, tuple) and len(given) == 2:
        return given
    text = str(given).removeprefix("sm_")
    if not text.isdecimal() or int(text) < 10:
        raise ArgumentError(f"{name}: capability is {given!r}", 'for example (9, 0), 90 or "sm_90"')
    return int(text) // 10, int(text) % 10


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def sample_problem(declared: Declared, size: int = 64) -> GemmProblem:
    """A small problem that meets the declarations."""
    dtype, precision = declared.types[0]
    a, b = (
        Operand.of(dtype, size, size, {"n": (0, size, 1), "t": (0, 1, size), "s": (0, 2 * size, 2)}[letter])
        for letter in declared.layouts[0]
    )
    out = Operand.dense(default_out_dtype(dtype), size, size)
    return GemmProblem(1, size, size, size, a, b, out, precision=precision)
