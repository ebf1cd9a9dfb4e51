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


def torch_product(problem: GemmProblem, slots: Mapping[str, torch.Tensor]) -> Launch | None:
    """torch's own product of the slots, bound and ready to launch; None where torch has none for the problem.

    16-bit, fp32 and fp64 go to torch.matmul with `out=`, int8 to torch._int_mm and fp8 to torch._scaled_mm with scales of 1.
    """
    import torch

    if not problem.epilogue.plain or problem.k == 0:
        return None
    a, b, out = (matrix(slots[name], problem.operands[name], problem.batch) for name in ("A", "B", "OUT"))
    if problem.batch == 1:
        a, b, out = a[0], b[0], out[0]
    if problem.dtype in MATMUL and out.dtype == a.dtype:
        return partial(torch.matmul, a, b, out=out)
    if problem.dtype == "int8" and problem.batch == 1 and problem.m > 16:
        return partial(torch._int_mm, a, b, out=out)
    if problem.dtype.startswith("fp8") and problem.batch == 1 and problem.layout == "nt":
        one = torch.ones((), device=a.device)
        return partial(torch._scaled_mm, a, b, one, one, out_dtype=out.dtype, out=out)
    return None


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
