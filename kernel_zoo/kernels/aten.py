"""aten: PyTorch's own product, the net under the zoo.

It serves what no Triton variant supports (fp64, integers, fp8, complex) and counts as a fallback in every report. Its numbers
keep the project's contract: alpha, beta, bias and the activation are applied in the accumulator's type and the result is
rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernel_zoo.spec import Arch, ByKind, GemmProblem, Refusal, TileConfig, Variant

if TYPE_CHECKING:
    import torch


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """Everything."""
    return None


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """No tiles: the library chooses."""
    return ()


def launch(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float, beta: float) -> None:
    """out = activation(alpha * a @ b + beta * c + bias), rounded once."""
    import torch

    from kernel_zoo.matrices import TORCH_DTYPES, matrix

    out = matrix(slots["OUT"], problem.out, problem.batch)
    a = matrix(slots["A"], problem.a, problem.batch) if problem.k else None
    b = matrix(slots["B"], problem.b, problem.batch) if problem.k else None
    if a is not None and b is not None and problem.epilogue.plain and out.dtype == a.dtype and _library_keeps_contract(problem, a):
        torch.bmm(a, b, out=out) if problem.batch > 1 else torch.mm(a[0], b[0], out=out[0])
        return
    integer = problem.acc_dtype == "int32"
    work_type = torch.int64 if integer else TORCH_DTYPES[problem.acc_dtype]
    alpha, beta = (int(alpha), int(beta)) if integer else (alpha, beta)
    value = out.new_zeros(out.shape, dtype=work_type)
    if a is not None and b is not None:
        value += _product(problem, a, b, work_type)
        value *= alpha
    epilogue = problem.epilogue
    if epilogue.c is not None:
        value += beta * matrix(slots["C"], epilogue.c, problem.batch).to(work_type)
    if epilogue.bias is not None:
        value += matrix(slots["BIAS"], epilogue.bias, problem.batch).to(work_type)
    out.copy_(_activate(value, epilogue.activation))


def _library_keeps_contract(problem: GemmProblem, a: torch.Tensor) -> bool:
    """Whether the library's own product sums in the accumulator's type, at the precision asked for, and rounds once."""
    import torch

    if problem.acc_dtype == "int32":
        return False
    if not a.is_cuda:
        return a.dtype.itemsize >= 4 and _fp32_exact_enough(problem, a)
    settings = torch.backends.cuda.matmul
    if a.dtype == torch.float16:
        return not settings.allow_fp16_reduced_precision_reduction
    if a.dtype == torch.bfloat16:
        return not settings.allow_bf16_reduced_precision_reduction
    return _fp32_exact_enough(problem, a)


def _fp32_exact_enough(problem: GemmProblem, a: torch.Tensor) -> bool:
    """Whether torch's own fp32 setting is at least as exact as the precision asked for."""
    import torch

    if problem.dtype != "fp32" or problem.precision == "tf32":
        return True
    # Read without raising whichever of torch's two APIs the user has set.
    backend = "cuda" if a.is_cuda else "mkldnn"
    return bool(torch._C._get_fp32_precision_getter(backend, "matmul") in ("ieee", "none"))


def _product(problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, work_type: torch.dtype) -> torch.Tensor:
    """a @ b, summed in the accumulator's type or wider."""
    import torch

    if work_type == torch.int64:
        if a.is_cuda and a.dtype.itemsize <= 2:
            return (a.double() @ b.double()).to(work_type)  # float64 holds these sums exactly, and a GPU has no integer product
        return (a.to("cpu", work_type) @ b.to("cpu", work_type)).to(a.device)
    if a.is_cuda and a.dtype in (torch.float16, torch.bfloat16):
        return torch.bmm(a, b, out_dtype=work_type)
    if not _fp32_exact_enough(problem, a):
        return (a.double() @ b.double()).to(work_type)
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
    supports=ByKind(supports),
    space=space,
    launch=launch,
    reduction=lambda problem, tile: "library",
)
