"""Kinds and forms of problem: what decides which variants of the zoo take a problem, and most tiles, as values to look up by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kernel_zoo.spec.choice import Arch, Refusal, TileConfig
from kernel_zoo.spec.dtypes import INT32_MAX, ITEMSIZE, VECTOR_BYTES
from kernel_zoo.spec.problem import GemmProblem, Layout

FEW: Final = 4  # rows or columns that are streamed past


class Kind(NamedTuple):
    """What a rule declared `ByKind` may look at: types, layouts and alignment of the lines, and whether one side is short.

    No other sizes, strides or epilogue: those tell tiles apart, not variants.
    """

    a: str  # dtypes
    b: str
    out: str
    c: str | None
    bias: str | None
    precision: str
    layout_a: Layout
    layout_b: Layout
    align_a: int  # of the lines, in bytes
    align_b: int
    few: bool  # at most FEW rows or columns

    @classmethod
    def of(cls, problem: GemmProblem) -> Kind | None:
        """A problem's kind; None where there is more to ask: a batch, nothing to multiply, expanded operands, sides past 32 bits.

        The last answer is kept, for a choice asks in several places. Problems are frozen and told by identity.
        """
        global _last
        known, kind = _last  # read and exchanged whole: threads at most work it out again
        if known is not problem:
            kind = cls._of(problem)
            _last = problem, kind
        return kind

    @classmethod
    def _of(cls, problem: GemmProblem) -> Kind | None:
        a, b, epilogue = problem.a, problem.b, problem.epilogue
        (_, a_row, a_col), (_, b_row, b_col) = a.strides, b.strides
        if problem.batch != 1 or not (problem.k and a_row and a_col and b_row and b_col):
            return None
        if max(a.rows, a.cols, b.rows, b.cols) > INT32_MAX:
            return None
        return cls(
            a.dtype, b.dtype, problem.out.dtype, epilogue.c.dtype if epilogue.c is not None else None,
            epilogue.bias.dtype if epilogue.bias is not None else None, problem.precision,
            a.layout, b.layout, a.line_align, b.line_align, problem.m <= FEW or problem.n <= FEW,
        )  # fmt: skip


_last: tuple[GemmProblem | None, Kind | None] = (None, None)


class Form(NamedTuple):
    """What a rule declared `ByForm` may look at: a kind, the activation, and that the result is stored in whole vectors."""

    kind: Kind
    activation: str

    @classmethod
    def of(cls, problem: GemmProblem) -> Form | None:
        """A problem's form. None where the epilogue reads anything, or out's rows do not begin and end at whole vectors."""
        kind, out, epilogue = Kind.of(problem), problem.out, problem.epilogue
        _, row, col = out.strides
        if kind is None or epilogue.c is not None or epilogue.bias is not None or col != 1 or row in (0, 1):
            return None
        if out.line_align < VECTOR_BYTES or out.cols * ITEMSIZE[out.dtype] % VECTOR_BYTES or max(out.rows, out.cols) > INT32_MAX:
            return None
        return cls(kind, epilogue.activation)


class Supports(Protocol):
    """A variant's `supports`."""

    def __call__(self, problem: GemmProblem, arch: Arch, /) -> Refusal | None:
        """None where the variant can take the problem on the device, else the reason."""


@dataclass(frozen=True, slots=True)
class ByKind:
    """A variant's `supports` whose verdict is the same for all problems of one kind on one device; what it says may name sizes.

    Declared with the rule itself, so that a variant that is given another rule makes no claim for it.
    """

    rule: Supports

    def __call__(self, problem: GemmProblem, arch: Arch, /) -> Refusal | None:
        """What the rule says."""
        return self.rule(problem, arch)


class Fits(Protocol):
    """A variant's `fits`."""

    def __call__(self, problem: GemmProblem, tile: TileConfig, arch: Arch, /) -> Refusal | None:
        """None where the tile is legal for the problem on the device, else the reason."""


@dataclass(frozen=True, slots=True)
class ByForm:
    """A variant's `fits` whose verdict on a tile is the same for all problems of one form on one device."""

    rule: Fits

    def __call__(self, problem: GemmProblem, tile: TileConfig, arch: Arch, /) -> Refusal | None:
        """What the rule says."""
        return self.rule(problem, tile, arch)
