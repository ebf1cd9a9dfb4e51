"""aten: PyTorch's own product, the net under the zoo.

It serves what no Triton variant supports (fp64, integers, fp8, complex) and counts as a fallback in every report. Its numbers
keep the project's contract: alpha, beta, bias and the activation are applied in the accumulator's type and the result is
rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernel_zoo.spec import Arch, GemmProblem, Refusal, TileConfig, Variant

if TYPE_CHECKING:
    import torch


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """Everything."""
    return None


def space(problem: GemmProblem, arch: Arch) -> list[TileConfig]:
    """No tiles: the library chooses."""
    return []


def launch(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float, beta: float) -> None:
    """out = activation(alpha * a @ b + beta * c + bias), rounded once."""
    import torch

    from kernel_zoo.matrices import TORCH_DTYPES, matrix

    out = matrix(slots["OUT"], problem.out, problem.batch)
    a = matrix(slots["A"], problem.a, problem.batch) if problem.k else None
    b = matrix(slots["B"], problem.b, problem.batch) if problem.k else None
    if a is not None and b is not None and problem.epilogue.plain and a.dtype == b.dtype == out.dtype and _sums_wide(a):
        # The library accumulates in the accumulator's type and rounds once by itself.
        torch.bmm(a, b, out=out) if problem.batch > 1 else torch.mm(a[0], b[0], out=out[0])
        return
    integer = not (out.dtype.is_floating_point or out.dtype.is_complex)
    # float64 holds every sum of integer products exactly, so that a fractional alpha is rounded once, at the end.
    work_type = torch.float64 if integer else TORCH_DTYPES[problem.acc_dtype]
    value = out.new_zeros(out.shape, dtype=work_type)
    if a is not None and b is not None:
        value += _product(a, b, work_type)
        value *= alpha
    epilogue = problem.epilogue
    if epilogue.c is not None:
        value += beta * matrix(slots["C"], epilogue.c, problem.batch).to(work_type)
    if epilogue.bias is not None:
        value += matrix(slots["BIAS"], epilogue.bias, problem.batch).to(work_type)
    value = _activate(value, epilogue.activation)
    out.copy_(value.round().to(torch.int64) if integer else value)


def _sums_wide(a: torch.Tensor) -> bool:
    """Whether the library sums this type as the contract says: 16-bit on a CPU it does not always, integers it wraps."""
    return (a.is_cuda or a.dtype.itemsize >= 4) and (a.dtype.is_floating_point or a.dtype.is_complex)


def _product(a: torch.Tensor, b: torch.Tensor, work_type: torch.dtype) -> torch.Tensor:
    """a @ b, summed in the accumulator's type or wider."""
    import torch

    if a.is_cuda and a.dtype in (torch.float16, torch.bfloat16):
        return torch.bmm(a, b, out_dtype=work_type)
    return a.to(work_type) @ b.to(work_type)


def _activate(value: torch.Tensor, activation: str) -> torch.Tensor:
    import torch
    from torch.nn import functional

    match activation:
        case "relu":
            return functional.relu(value)
        case "gelu":
            return 0.5 * value * (1.0 + torch.erf(value * 0.7071067811865476))  # functional.gelu(inf) is NaN on some CPUs
        case "gelu_tanh":
            return functional.gelu(value, approximate="tanh")
        case "silu":
            return functional.silu(value)
        case "leaky_relu":
            return functional.leaky_relu(value)
    return value


VARIANT = Variant(
    name="aten",
    summary="PyTorch's own product (cuBLAS on a GPU): the net under the zoo",
    supports=supports,
    space=space,
    launch=launch,
    reduction=lambda problem, tile: "library",
)
