"""The sizes of problems as the model sees them: those of one, or an array of one per candidate."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from kernel_zoo.spec import VECTOR_BYTES, GemmProblem, Operand

Size = Any  # a number, or an array of one per candidate


PLAIN_PITCH: Final = 0
_PITCHES: Final = {64: 1, 32: 2, 16: 3}


class Sizes(NamedTuple):
    """The sizes of a problem, or of one problem per candidate; what moves if each operand is read or written once; the pitches.

    Pitches are those of A's and B's lines, as `pitch` numbers them. `copied_bytes` move where those of A and B that the copy engine
    cannot take are copied.
    """

    batch: Size
    m: Size
    n: Size
    k: Size
    least_bytes: Size
    pitch_a: Size
    pitch_b: Size
    copied_bytes: Size

    @classmethod
    def of(cls, problem: GemmProblem) -> Sizes:
        """A problem's."""
        a, b, copied = problem.a, problem.b, 0.0
        if a.line_align < VECTOR_BYTES or b.line_align < VECTOR_BYTES:
            copied = 2.0 * sum(_bytes(operand, problem.batch) for operand in (a, b) if operand.line_align < VECTOR_BYTES)
        return cls(problem.batch, problem.m, problem.n, problem.k, float(problem.least_bytes), pitch(a), pitch(b), copied)


def _bytes(operand: Operand, batch: int) -> int:
    """Of an operand; one that serves the whole batch is there once."""
    return operand.rows * operand.cols * operand.itemsize * (batch if operand.strides[0] else 1)


def pitch(operand: Operand) -> int:
    """What the distance between an operand's lines is a multiple of: 0 is 128 bytes, 1 is 64, 2 is 32, 3 is 16, 4 is less."""
    distance = operand.leading * operand.itemsize
    return _PITCHES.get(distance & -distance & 0xFF, 4) if distance % 128 else PLAIN_PITCH


def larger(one: Size, other: Size) -> Size:
    """The larger of two sizes; of plain numbers without numpy, which takes its time over those."""
    return np.maximum(one, other) if isinstance(one, np.ndarray) or isinstance(other, np.ndarray) else max(one, other)


def smaller(one: Size, other: Size) -> Size:
    """The smaller of two sizes."""
    return np.minimum(one, other) if isinstance(one, np.ndarray) or isinstance(other, np.ndarray) else min(one, other)


def holds(condition: Any) -> bool:
    """Of the sizes, or of some of them."""
    return bool(condition.any()) if isinstance(condition, np.ndarray) else bool(condition)
