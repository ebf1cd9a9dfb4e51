"""Shapes as users give them, and as problems."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from heuristics.table import problem_key
from kernel_zoo.spec import GemmProblem
from minblas.errors import ArgumentError

Shape = GemmProblem | tuple[int | range, ...]


def steps(sizes: range) -> list[int]:
    """Sizes that stand for a whole range: its ends, and between them 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    No size is farther than 0.3 octaves from one of them, so each finds a row to go by. A range with a step of its own is taken as
    it is.
    """
    if sizes.step != 1 or len(sizes) < 2:
        return list(sizes)
    ladder = {1 << power for power in range(sizes[-1].bit_length())}
    ladder |= {3 * size // 2 for size in ladder if size > 1}
    return sorted({sizes[0], sizes[-1], *(size for size in ladder if size in sizes)})


def problems_of(shapes: Iterable[Shape], dtype: object = "bf16", layout: str = "nn") -> Iterator[GemmProblem]:
    """Every shape as a problem; a size that is a range stands for its `steps`.

    Raises:
        ArgumentError: as `problem_of`.
    """
    for shape in shapes:
        if isinstance(shape, GemmProblem):
            yield shape
            continue
        given = shape if isinstance(shape, Iterable) else (shape,)
        for sizes in itertools.product(*(steps(size) if isinstance(size, range) else (size,) for size in given)):
            yield problem_of(sizes, dtype, layout)


def problem_of(shape: GemmProblem | tuple[int, ...], dtype: object = "bf16", layout: str = "nn") -> GemmProblem:
    """(m, n, k) or (batch, m, n, k) as a problem over contiguous matrices; "tf32" is fp32 with TF32 precision.

    Raises:
        ArgumentError: it is neither a GemmProblem nor three or four whole numbers, or the dtype or layout is not known.
    """
    if isinstance(shape, GemmProblem):
        return shape
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
    if len(sizes) not in (3, 4) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ArgumentError(f"a shape is {shape!r}", "(m, n, k), (batch, m, n, k) or a GemmProblem", "pass a list of those")
    batch, m, n, k = (1, *sizes) if len(sizes) == 3 else sizes
    precision = "tf32" if dtype == "tf32" else ""
    try:
        return GemmProblem.of(m, n, k, "fp32" if precision else str(dtype), layout, batch=batch, precision=precision)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def unique(problems: Iterable[GemmProblem]) -> list[GemmProblem]:
    """One problem for each row of a table (fp16 and bf16 share rows), in order. Products without work are left out.

    A problem that wants repeatable kernels only stands for its row where no other does: its winner would serve them all.
    """
    found: dict[Any, GemmProblem] = {}
    for problem in problems:
        if problem.k > 0 and not problem.empty:
            key = problem_key(problem)
            if key not in found or (found[key].deterministic and not problem.deterministic):
                found[key] = problem
    return list(found.values())
