"""The rival: what PyTorch itself does with the same operands in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from kernel_zoo.matrices import matrix
from kernel_zoo.spec import GemmProblem

if TYPE_CHECKING:
    import torch

Launch = Callable[[], object]

MATMUL: Final = ("fp16", "bf16", "fp32", "fp64")


def torch_product(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float = 1.0, beta: float = 0.0) -> Launch | None:
    """torch's own product of the slots, bound and ready to launch; None where torch has no single call for the problem.

    16-bit, fp32 and fp64 go to torch.matmul with `out=`, or to torch.addmm and torch.baddbmm where alpha, C or a bias is asked for;
    int8 to torch._int_mm and fp8 to torch._scaled_mm with scales of 1.
    """
    import torch

    if problem.k == 0:
        return None
    a, b, out = (matrix(slots[name], problem.operands[name], problem.batch) for name in ("A", "B", "OUT"))
    if problem.batch == 1:
        a, b, out = a[0], b[0], out[0]
    if problem.dtype in MATMUL and out.dtype == a.dtype:
        return partial(torch.matmul, a, b, out=out) if problem.epilogue.plain else _sum(problem, slots, (a, b, out), alpha, beta)
    if not problem.epilogue.plain:
        return None
    if problem.dtype == "int8" and problem.batch == 1 and problem.m > 16:
        return partial(torch._int_mm, a, b, out=out)
    if problem.dtype.startswith("fp8") and problem.batch == 1 and problem.layout == "nt":
        one = torch.ones((), device=a.device)
        return partial(torch._scaled_mm, a, b, one, one, out_dtype=out.dtype, out=out)
    return None


def _sum(
    problem: GemmProblem,
    slots: Mapping[str, torch.Tensor],
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    alpha: float,
    beta: float,
) -> Launch | None:
    """alpha * a @ b + beta * C, or + bias, as one call."""
    import torch

    epilogue = problem.epilogue
    if epilogue.activation != "none" or (epilogue.c is not None and epilogue.bias is not None):
        return None
    a, b, out = operands
    name, scale = ("C", beta) if epilogue.c is not None else ("BIAS", 1.0)
    addend, operand = out, epilogue.c or epilogue.bias
    if operand is None:
        scale = 0.0  # alpha alone: what out holds is not read
    else:
        addend = matrix(slots[name], operand, problem.batch)
        if addend.dtype != out.dtype:
            return None
        if problem.batch == 1:
            addend = addend[0, 0] if operand.strides[1] == 0 else addend[0]  # a vector reaches the library's own bias epilogue
    return partial(torch.addmm if problem.batch == 1 else torch.baddbmm, addend, a, b, beta=scale, alpha=alpha, out=out)


@contextmanager
def torch_precision(precision: str) -> Iterator[None]:
    """Let torch form fp32 products as the problem asks ("ieee" or "tf32"); put back what was set."""
    import torch

    if precision not in ("ieee", "tf32"):
        yield
        return
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = precision
    try:
        yield
    finally:
        setting.fp32_precision = before
