"""minblas.gemm and torch.matmul as a user calls them, bound to the same operands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from kernel_zoo.matrices import matrix
from kernel_zoo.spec import GemmProblem
from minblas.rival import MATMUL, Launch

if TYPE_CHECKING:
    import torch


def eager_torch(problem: GemmProblem, slots: Mapping[str, torch.Tensor]) -> Launch | None:
    """torch.matmul as a user calls it, the result allocated by torch."""
    import torch

    if problem.dtype not in MATMUL or problem.k == 0:
        return None
    a, b = operands(problem, slots)
    return partial(torch.matmul, a, b)


def eager_minblas(problem: GemmProblem, slots: Mapping[str, torch.Tensor]) -> Launch:
    """minblas.gemm as a user calls it, the result allocated by minblas."""
    import minblas

    a, b = operands(problem, slots)
    return partial(minblas.gemm, a, b, precision=problem.precision or None)


def operands(problem: GemmProblem, slots: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as a caller holds them: 2-D unless there is a batch."""
    a, b = (matrix(slots[name], problem.operands[name], problem.batch) for name in ("A", "B"))
    return (a[0], b[0]) if problem.batch == 1 else (a, b)
