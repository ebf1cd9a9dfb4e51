"""The oracle: the result in float64, and the error a right kernel may make.

Every test, check and tuning trial judges a kernel through `verify`, on the guarded operands of `guarded.py`. Nothing here
is specific to a kernel; the bound is derived from K, the types and the magnitudes at hand, so there is no tolerance to set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from kernel_zoo.guarded import GUARD_BYTE, Fill, Slots, make_slots, poison, slot_matrix, touched, unwritten
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import GemmProblem

#: Largest relative error of one product caused by rounding its fp32 inputs, before anything is summed.
#: tf32: a and b each keep 11 significant bits, rounded to nearest: 2^-11 each.
#: bf16 keeps 8 bits: a part leaves 2^-8 of what it stands for. bf16x3: a = hi + lo leaves 2^-16 of each input, and lo * lo (2^-16)
#: is dropped. bf16x6: three parts leave 2^-24 of each input, and the two cross terms of 2^-24 are dropped. tf32x3: the low part is
#: cut to 11 bits (2^-21 of each input) and lo * lo (2^-22) is dropped.
PRODUCT_ERROR: Final[dict[str, float]] = {
    "tf32": 2 * 2**-11,
    "bf16x3": 3 * 2**-16,
    "bf16x6": 4 * 2**-24,
    "tf32x3": 2.5 * 2**-21,
}
#: A sum of independent zero-mean errors e_i, |e_i| <= r_i, passes 7.6 * sqrt(sum r_i^2) once in 10^12 (Hoeffding: 2 exp(-t^2 / 2)).
_TAIL: Final = 7.6
#: Steepest slope of each activation: by how much it can stretch an error that was there before it.
_SLOPE: Final = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an output is right.

    Attributes:
        ok: every element was written, is within its bound, and nothing else was touched.
        worst: the largest error as a fraction of its bound.
        message: what is wrong, with the first wrong coordinate; "right" where nothing is.
    """

    ok: bool
    worst: float
    message: str


def reference64(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float = 1.0, beta: float = 0.0) -> torch.Tensor:
    """activation(alpha * a @ b + beta * c + bias) as (batch, m, n) in float64 (complex128 for complex inputs).

    Reads a and b only where there is something to multiply, and c only where beta is not 0.
    """
    wide = _wide(problem)
    value = torch.zeros(problem.batch, problem.m, problem.n, dtype=wide, device=slots["OUT"].device)
    if problem.k and alpha != 0:
        value += alpha * (slot_matrix(problem, slots, "A").to(wide) @ slot_matrix(problem, slots, "B").to(wide))
    value = _finish(problem, slots, value, beta)
    if problem.acc_dtype == "int32":  # integers wrap where the accumulator does
        return value.to(torch.int64).to(torch.int32).to(TORCH_DTYPES[problem.out.dtype]).to(wide)
    return value


def error_bound(
    problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float, beta: float, reference: torch.Tensor
) -> torch.Tensor:
    """The error each element of a right result may have.

    2 |torch - ref| + eps_out |ref| + 2 sqrt(K + E) u_acc (|alpha| |A| |B| + |beta C| + |bias|) + rounding of the inputs.

    torch is torch's own product in the wider of the input's and the output's type. E counts the epilogue's roundings, which matter
    where K is small. The input term is 0 unless the precision rounds fp32 inputs; it is the smaller of the worst case over a sum
    and what independent errors of that size exceed once in 10^12 (see PRODUCT_ERROR).
    """
    if problem.acc_dtype == "int32":
        return torch.zeros_like(reference)
    out = torch.finfo(TORCH_DTYPES[problem.out.dtype])
    unit = torch.finfo(TORCH_DTYPES[problem.acc_dtype]).eps / 2
    slope = _SLOPE.get(problem.epilogue.activation, 1.0)
    magnitude = torch.zeros(reference.shape, dtype=torch.float64, device=reference.device)
    rounding = torch.zeros_like(magnitude)
    if problem.k and alpha != 0:
        a, b = (_finite(slot_matrix(problem, slots, name)).to(_wide(problem)).abs() for name in ("A", "B"))
        product = abs(alpha) * (a @ b)
        magnitude += product
        if each := PRODUCT_ERROR.get(problem.precision):
            spread = _TAIL * abs(alpha) * ((a * a) @ (b * b)).sqrt()
            rounding = each * torch.minimum(product, spread)
    if problem.epilogue.c is not None and beta != 0:
        magnitude += abs(beta) * _finite(slot_matrix(problem, slots, "C")).abs()
    if problem.epilogue.bias is not None:
        magnitude += _finite(slot_matrix(problem, slots, "BIAS")).abs()
    rivals = _finite(_torch_result(problem, slots, alpha, beta).to(reference.dtype) - reference).abs()
    stored = _finite(reference).abs().clamp(min=out.tiny)  # below tiny, neighbours are a fixed distance apart
    steps = 2 * math.sqrt(problem.k + _epilogue_roundings(problem))
    return 2 * rivals + out.eps * stored + slope * (steps * unit * magnitude + rounding)


def verify(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float = 1.0, beta: float = 0.0) -> Verdict:
    """Judge what a kernel left in OUT, and, for slots of `make_slots`, that it touched nothing else."""
    faults = []
    if isinstance(slots, Slots):
        faults += touched(problem, slots)
    worst = 0.0
    if problem.batch and problem.m and problem.n:
        reference = reference64(problem, slots, alpha, beta)
        bound = error_bound(problem, slots, alpha, beta, reference)
        worst, wrong = _compare(problem, slots, reference, bound)
        faults = wrong + faults
    return Verdict(not faults, worst, "; ".join(faults) or "right")


def _wide(problem: GemmProblem) -> torch.dtype:
    return torch.complex128 if problem.dtype.startswith("complex") else torch.float64


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """float64 with Inf and NaN replaced by 0: they are compared by position, not by size."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return torch.where(torch.isfinite(wide), wide, torch.zeros_like(wide))


def _finish(problem: GemmProblem, slots: Mapping[str, torch.Tensor], value: torch.Tensor, beta: float) -> torch.Tensor:
    """The epilogue in value's type."""
    if problem.epilogue.c is not None and beta != 0:
        value = value + beta * slot_matrix(problem, slots, "C").to(value.dtype)
    if problem.epilogue.bias is not None:
        value = value + slot_matrix(problem, slots, "BIAS").to(value.dtype)
    match problem.epilogue.activation:
        case "relu":
            return functional.relu(value)
        case "gelu":
            # torch's vectorised gelu makes NaN of Inf in fp32 on a CPU.
            return 0.5 * value * (1 + torch.erf(value * math.sqrt(0.5)))
        case "gelu_tanh":
            return functional.gelu(value, approximate="tanh")
        case "silu":
            return functional.silu(value)
        case "leaky_relu":
            return functional.leaky_relu(value)
    return value


def _torch_result(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float, beta: float) -> torch.Tensor:
    """torch's product in the wider of the input's and the output's type, epilogue in the accumulator's, rounded to the output's."""
    out, given = TORCH_DTYPES[problem.out.dtype], TORCH_DTYPES[problem.dtype]
    dtype = out if given.itemsize < out.itemsize or given.itemsize == 1 else given
    accumulator = TORCH_DTYPES[problem.acc_dtype]
    value = torch.zeros(problem.batch, problem.m, problem.n, dtype=accumulator, device=slots["OUT"].device)
    if problem.k and alpha != 0:
        a, b = slot_matrix(problem, slots, "A"), slot_matrix(problem, slots, "B")
        value = alpha * (a.to(dtype) @ b.to(dtype)).to(accumulator)
    return _finish(problem, slots, value, beta).to(out)


def _epilogue_roundings(problem: GemmProblem) -> int:
    """Roundings after the sum: a scalar and its product each one, an addition one, an activation's formula about eight."""
    epilogue = problem.epilogue
    scaled = 2 if epilogue.alpha == "x" else 0
    added = 3 if epilogue.c is not None else 0
    return scaled + added + (epilogue.bias is not None) + (8 if epilogue.activation not in ("none", "relu") else 0)


def _compare(
    problem: GemmProblem, slots: Mapping[str, torch.Tensor], reference: torch.Tensor, bound: torch.Tensor
) -> tuple[float, list[str]]:
    """The worst error as a fraction of its bound, and what is wrong with the values."""
    stored = slot_matrix(problem, slots, "OUT")
    got = stored.to(reference.dtype)
    error = (got - reference).abs()
    same = (got == reference) | (got.isnan() & reference.isnan())
    right = same | (error <= bound) & reference.isfinite()
    if not bool(right.all()):
        right |= _overflowed(stored, reference, bound)
    ratio = torch.where(same | ~error.isfinite(), torch.zeros_like(bound), error / bound)
    worst = float(ratio.max())
    if bool(right.all()):
        return worst, []
    wrong = ~right
    where = tuple(int(i) for i in wrong.nonzero()[0])
    faults = [
        f"{int(wrong.sum())} of {wrong.numel()} elements wrong, first at {where}: got {stored[where].item()}, "
        f"expected {reference[where].item():.9g} within {float(bound[where]):.3g}"
    ]
    if isinstance(slots, Slots):
        missing = int(unwritten(problem, slots, wrong).sum())
        faults += [f"{missing} elements never written"] if missing else []
    return max(worst, float(torch.where(error.isfinite(), ratio, math.inf)[wrong].max())), faults


def _overflowed(stored: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Elements that are rightly beyond the output type's range: a value within the bound rounds to what was stored."""
    if not stored.is_floating_point():
        return torch.zeros_like(reference, dtype=torch.bool)
    right = torch.zeros_like(reference, dtype=torch.bool)
    for extreme in ((reference + bound).to(stored.dtype), (reference - bound).to(stored.dtype)):
        right |= ~extreme.isfinite() & ((stored == extreme) | (stored.isnan() & extreme.isnan()))
    return right & reference.isfinite()


__all__ = [
    "GUARD_BYTE",
    "PRODUCT_ERROR",
    "Fill",
    "Slots",
    "Verdict",
    "error_bound",
    "make_slots",
    "poison",
    "reference64",
    "verify",
]
