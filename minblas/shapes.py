"""Shapes as users give them, and as problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heuristics.table import problem_key
from kernel_zoo.spec import GemmProblem
from minblas.errors import ArgumentError

Shape = GemmProblem | tuple[int, ...]


def problem_of(shape: Shape, dtype: object = "bf16", layout: str = "nn") -> GemmProblem:
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
    """One problem for each row of a table (fp16 and bf16 share rows), in order. Products without work are left out."""
    found: dict[Any, GemmProblem] = {}
    for problem in problems:
        if min(problem.batch, problem.m, problem.n, problem.k) > 0:
            found.setdefault(problem_key(problem), problem)
    return list(found.values())
