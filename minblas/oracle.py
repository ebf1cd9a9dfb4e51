"""Is a candidate right on this problem? The reference is computed once per problem, each candidate only compared.

Where the device can afford it, every element is held against float64. Of larger products whole rows and columns are (the first, the
last and random ones, of as many matrices of a batch), and the rest against torch's product within twice the bound: two right
results cannot differ by more.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

import torch

from kernel_zoo.kernels.aten import launch as torch_product
from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.reference import GUARD_BYTE, PRODUCT_ERROR, Slots, error_bound, make_slots, poison, reference64
from kernel_zoo.spec import Arch, Epilogue, GemmProblem, Operand
from minblas.buffers import scalars

_LINES: Final = 32  # rows, and columns, that are held against float64 in a large product
_MATRICES: Final = 16  # of a batch, whose rows and columns are held against float64 in a large product
_EXACT_US: Final = 20_000.0  # what a full float64 reference may cost
_EXACT_BYTES: Final = 4 << 30  # and what its operands may take in float64; a few copies of them are alive at once
_GUARDED_BYTES: Final = 1 << 30
_MARGIN: Final = 1 << 20


def isolated(slots: Slots) -> Slots:
    """The same operands amid a larger guarded buffer: a kernel that runs past its output meets guard bytes, not the heap."""
    size = slots.buffer.numel()
    buffer = torch.full((size + 2 * _MARGIN,), GUARD_BYTE, dtype=torch.uint8, device=slots.buffer.device)
    buffer[_MARGIN : _MARGIN + size].copy_(slots.buffer)
    moved = Slots()
    for name, tensor in slots.items():
        start = _MARGIN + tensor.storage_offset() * tensor.element_size()
        moved[name] = buffer[start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)
    moved.buffer, moved.inputs = buffer, slots.inputs
    return moved


def exact_affordable(problem: GemmProblem, arch: Arch) -> bool:
    """Whether float64 references of the whole product (it takes two products) are cheap on the device, in time and in memory."""
    rate = arch.tflops.get("fp64") or 0.5
    elements = problem.batch * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
    return 2 * problem.flops / (rate * 1e6) <= _EXACT_US and 8 * elements <= _EXACT_BYTES


@dataclass(frozen=True, slots=True)
class _Check:
    """A part of OUT (some matrices, rows and columns; None is all) and what it may hold."""

    matrices: torch.Tensor | None
    rows: torch.Tensor | None
    cols: torch.Tensor | None
    expected: torch.Tensor
    bound: torch.Tensor
    against: str


class Oracle:
    """Fresh operands for one problem, and the verdict on what a kernel made of them.

    Attributes:
        slots: the operands; OUT is poisoned before each trial.
        alpha, beta: values of the problem's scalar classes.
    """

    def __init__(self, problem: GemmProblem, device: torch.device | str, *, exact: bool = True, seed: int | None = None) -> None:
        self.problem = problem
        self.alpha, self.beta = scalars(problem)
        self.slots = make_slots(problem, device, seed)
        small = self.slots.buffer.numel() <= _GUARDED_BYTES
        if small:
            self.slots = isolated(self.slots)
        self._before = self.slots.buffer.clone() if small else None
        self._checks = [self._whole()] if exact else [*self._lines(seed), self._torch()]

    def reset(self) -> None:
        """Poison OUT."""
        poison(self.problem, self.slots)

    def verdict(self) -> str:
        """What is wrong with OUT, in words; empty where nothing is. Leaves OUT poisoned."""
        out = matrix(self.slots["OUT"], self.problem.out, self.problem.batch)
        faults = [fault for check in self._checks if (fault := _compare(out, check))]
        self.reset()
        if self._before is not None and not torch.equal(self.slots.buffer, self._before):
            faults.append("memory outside the output was written")
            self.slots.buffer.copy_(self._before)
        return "; ".join(faults)

    def _whole(self) -> _Check:
        expected = reference64(self.problem, self.slots, self.alpha, self.beta)
        return _Check(None, None, None, expected, error_bound(self.problem, self.slots, self.alpha, self.beta, expected), "float64")

    def _lines(self, seed: int | None) -> list[_Check]:
        """Rows and columns in float64: the oracle's own formulas on a problem that has only those."""
        problem, chooser = self.problem, random.Random(seed)
        device = self.slots["OUT"].device
        rows = torch.tensor(_choose(problem.m, _LINES, chooser), device=device)
        cols = torch.tensor(_choose(problem.n, _LINES, chooser), device=device)
        matrices = torch.tensor(_choose(problem.batch, _MATRICES, chooser), device=device) if problem.batch > _MATRICES else None
        checks = []
        for r, c in ((rows, None), (None, cols)):
            part, slots = self._part(matrices, r, c)
            expected = reference64(part, slots, self.alpha, self.beta)
            checks.append(_Check(matrices, r, c, expected, error_bound(part, slots, self.alpha, self.beta, expected), "float64"))
        return checks

    def _part(
        self, matrices: torch.Tensor | None, rows: torch.Tensor | None, cols: torch.Tensor | None
    ) -> tuple[GemmProblem, dict[str, torch.Tensor]]:
        """The problem restricted to some matrices, rows or columns of its output, over gathered copies."""
        problem = self.problem
        batch = problem.batch if matrices is None else len(matrices)
        cut = {"A": (rows, None), "B": (None, cols), "C": (rows, cols), "BIAS": (rows, cols), "OUT": (rows, cols)}
        operands: dict[str, Operand] = {}
        slots: dict[str, torch.Tensor] = {}
        for name, operand in problem.operands.items():
            if matrices is None and (cut[name] == (None, None) or (name in ("A", "B") and not problem.k)):
                operands[name], slots[name] = operand, self.slots[name]
                continue
            gathered = _take(matrix(self.slots[name], operand, problem.batch), matrices, *cut[name]).contiguous()
            operands[name] = Operand.dense(operand.dtype, gathered.shape[1], gathered.shape[2], batch=batch)
            slots[name] = gathered
        epilogue: Epilogue = replace(problem.epilogue, c=operands.get("C"), bias=operands.get("BIAS"))
        out = operands["OUT"]
        return replace(
            problem, batch=batch, m=out.rows, n=out.cols, a=operands["A"], b=operands["B"], out=out, epilogue=epilogue
        ), slots

    def _torch(self) -> _Check:
        """Everything, against torch's own product."""
        problem = self.problem
        target = torch.empty_like(self.slots["OUT"])
        torch_product(problem, {**self.slots, "OUT": target}, self.alpha, self.beta)
        expected = matrix(target, problem.out, problem.batch)
        magnitude = expected.float().abs() if problem.epilogue.bias is not None or problem.epilogue.c is not None else None
        product = _magnitude(self.slots, problem) * abs(self.alpha)
        unit = torch.finfo(TORCH_DTYPES[problem.acc_dtype]).eps / 2
        bound = product * (4.04 * math.sqrt(problem.k + 16) * unit + 2 * PRODUCT_ERROR.get(problem.precision, 0.0))
        if magnitude is not None:  # C and bias cannot be larger than result and product together
            bound += (magnitude + product) * (32 * unit)
        bound += expected.float().abs() * (2 * torch.finfo(TORCH_DTYPES[problem.out.dtype]).eps)
        return _Check(None, None, None, expected, bound, "torch")


def _magnitude(slots: Slots, problem: GemmProblem) -> torch.Tensor:
    """|A| |B| in fp32, through bf16 (whose range is fp32's) where the inputs are narrow."""
    a, b = (matrix(slots[name], problem.operands[name], problem.batch).abs() for name in ("A", "B"))
    if a.element_size() <= 2 and a.is_cuda:
        return torch.bmm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    return a.float() @ b.float()


def _choose(size: int, count: int, chooser: random.Random) -> list[int]:
    """The first, the last and random ones, about `count` in all."""
    if size <= count:
        return list(range(size))
    return sorted({0, size - 1, *chooser.sample(range(size), count - 2)})


def _take(whole: torch.Tensor, matrices: torch.Tensor | None, rows: torch.Tensor | None, cols: torch.Tensor | None) -> torch.Tensor:
    if matrices is not None:
        whole = whole.index_select(0, matrices)
    if rows is not None:
        whole = whole.index_select(1, rows)
    return whole if cols is None else whole.index_select(2, cols)


def _compare(out: torch.Tensor, check: _Check) -> str:
    wide = torch.promote_types(check.expected.dtype, torch.float32)
    got, expected = _take(out, check.matrices, check.rows, check.cols).to(wide), check.expected.to(wide)
    error = (got - expected).abs()
    right = (error <= check.bound) | (got == expected) | (got.isnan() & expected.isnan())
    if bool(right.all()):
        return ""
    wrong = ~right
    batch, row, col = (int(i) for i in wrong.nonzero()[0])
    values = f"{got[batch, row, col].item():.6g} instead of {expected[batch, row, col].item():.6g}"
    batch = int(check.matrices[batch]) if check.matrices is not None else batch
    row = int(check.rows[row]) if check.rows is not None else row
    col = int(check.cols[col]) if check.cols is not None else col
    count = f"{int(wrong.sum())} of {wrong.numel()} elements differ from {check.against}"
    return f"{count}, first at {(batch, row, col)}: {values}"


__all__ = ["Oracle", "exact_affordable", "isolated"]
