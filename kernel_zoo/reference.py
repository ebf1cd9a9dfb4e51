"""The oracle: fresh operands inside guard bands, the result in float64, and the error a right kernel may make.

Every test, check and tuning trial judges a kernel through `verify`. Nothing here is specific to a kernel; the bound is derived from
K, the types and the magnitudes at hand, so there is no tolerance to set. Imports torch, and of the project only spec and matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch.nn import functional

from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.spec import VECTOR_BYTES, GemmProblem, Operand, cdiv

Fill = Literal["normal", "integers", "special", "large"]

GUARD_BYTE: Final = 0xFF  # NaN in every float type, -1 in every integer type
_BAND_BYTES: Final = 256
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Poison of OUT by element size: a NaN whose payload no arithmetic produces, and integers no sum of small ones reaches.
_POISON_FLOAT: Final = {1: 0xFF, 2: 0x7FFD, 4: 0x7FFDADAD, 8: 0x7FFDADADADADADAD}
_POISON_INTEGER: Final = {1: 0xA5, 2: 0x5A5A, 4: 0x5A5A5A5A, 8: 0x5A5A5A5A5A5A5A5A}

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


class Slots(dict[str, torch.Tensor]):
    """Tensors by slot name, carved out of one guarded buffer; remembers what a kernel may not touch."""

    buffer: torch.Tensor
    inputs: dict[str, int]


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


def make_slots(
    problem: GemmProblem,
    device: str | torch.device = "cpu",
    seed: int | None = None,
    fill: Fill = "normal",
    guard: bool = True,
) -> Slots:
    """Random operands with exactly the strides and alignments the problem states, and a poisoned OUT.

    Args:
        problem: what to make operands for.
        device: where.
        seed: of the random numbers; None draws from torch's global generator.
        fill: "normal"; "integers": small whole numbers, whose sums are exact; "special": normal with Inf, -Inf and NaN planted;
            "large": magnitudes whose products leave fp16's range.
        guard: fill every byte between and around lines with 0xff, and let `verify` check those bytes.

    Raises:
        ValueError: an operand's alignment is smaller than its element.
    """
    starts, size = _place(problem)
    buffer = torch.empty(size, dtype=torch.uint8, device=device)
    if guard:
        buffer.fill_(GUARD_BYTE)
    generator = torch.Generator(device).manual_seed(seed) if seed is not None else None
    slots = Slots()
    for name, operand in problem.operands.items():
        slots[name] = _at(buffer, starts[name], operand, problem.batch)
        if name != "OUT":
            _distinct(slots[name], operand, problem.batch).copy_(
                _values(name, operand, problem.batch, fill, generator, buffer.device)
            )
    poison(problem, slots)
    slots.buffer = buffer if guard else buffer[:0]
    slots.inputs = {
        name: _checksum(slots[name], operand, problem.batch) for name, operand in problem.operands.items() if name != "OUT"
    }
    return slots


def poison(problem: GemmProblem, slots: Mapping[str, torch.Tensor]) -> None:
    """Overwrite OUT's elements with the pattern that `verify` reports as never written."""
    _bits(matrix(slots["OUT"], problem.out, problem.batch)).fill_(_poison_value(slots["OUT"]))


def reference64(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float = 1.0, beta: float = 0.0) -> torch.Tensor:
    """activation(alpha * a @ b + beta * c + bias) as (batch, m, n) in float64 (complex128 for complex inputs).

    Reads a and b only where there is something to multiply, and c only where beta is not 0.
    """
    wide = _wide(problem)
    value = torch.zeros(problem.batch, problem.m, problem.n, dtype=wide, device=slots["OUT"].device)
    if problem.k and alpha != 0:
        value += alpha * (_operand(problem, slots, "A").to(wide) @ _operand(problem, slots, "B").to(wide))
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
        a, b = (_finite(_operand(problem, slots, name)).to(_wide(problem)).abs() for name in ("A", "B"))
        product = abs(alpha) * (a @ b)
        magnitude += product
        if each := PRODUCT_ERROR.get(problem.precision):
            spread = _TAIL * abs(alpha) * ((a * a) @ (b * b)).sqrt()
            rounding = each * torch.minimum(product, spread)
    if problem.epilogue.c is not None and beta != 0:
        magnitude += abs(beta) * _finite(_operand(problem, slots, "C")).abs()
    if problem.epilogue.bias is not None:
        magnitude += _finite(_operand(problem, slots, "BIAS")).abs()
    rivals = _finite(_torch_result(problem, slots, alpha, beta).to(reference.dtype) - reference).abs()
    stored = _finite(reference).abs().clamp(min=out.tiny)  # below tiny, neighbours are a fixed distance apart
    steps = 2 * math.sqrt(problem.k + _epilogue_roundings(problem))
    return 2 * rivals + out.eps * stored + slope * (steps * unit * magnitude + rounding)


def verify(problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float = 1.0, beta: float = 0.0) -> Verdict:
    """Judge what a kernel left in OUT, and, for slots of `make_slots`, that it touched nothing else."""
    faults = []
    if isinstance(slots, Slots):
        faults += _touched(problem, slots)
    worst = 0.0
    if problem.batch and problem.m and problem.n:
        reference = reference64(problem, slots, alpha, beta)
        bound = error_bound(problem, slots, alpha, beta, reference)
        worst, wrong = _compare(problem, slots, reference, bound)
        faults = wrong + faults
    return Verdict(not faults, worst, "; ".join(faults) or "right")


def _place(problem: GemmProblem) -> tuple[dict[str, int], int]:
    """Where each slot starts in the buffer, in bytes, and the buffer's size."""
    starts: dict[str, int] = {}
    end = 0
    for name, operand in problem.operands.items():
        if operand.align < operand.itemsize and operand.align < VECTOR_BYTES:
            raise ValueError(
                f"{name} has {operand.itemsize}-byte elements and an address aligned to {operand.align}: needs at least that size"
            )
        starts[name] = _BAND_BYTES * (cdiv(end, _BAND_BYTES) + 1) + operand.align % VECTOR_BYTES
        end = starts[name] + (operand.last_offset(problem.batch) + 1) * operand.itemsize
    return starts, _BAND_BYTES * (cdiv(end, _BAND_BYTES) + 1)


def _at(buffer: torch.Tensor, start: int, operand: Operand, batch: int) -> torch.Tensor:
    size = (operand.last_offset(batch) + 1) * operand.itemsize
    return buffer[start : start + size].view(TORCH_DTYPES[operand.dtype])


def _distinct(tensor: torch.Tensor, operand: Operand, batch: int) -> torch.Tensor:
    """The operand with each broadcast dimension once, so that it can be written."""
    whole = matrix(tensor, operand, batch)
    sizes = [min(size, 1) if stride == 0 else size for size, stride in zip(whole.shape, whole.stride(), strict=True)]
    return whole.as_strided(sizes, whole.stride(), whole.storage_offset())


def _values(
    name: str, operand: Operand, batch: int, fill: Fill, generator: torch.Generator | None, device: torch.device
) -> torch.Tensor:
    sizes = [1 if stride == 0 else size for size, stride in zip((batch, operand.rows, operand.cols), operand.strides, strict=True)]
    sizes = [min(size, full) for size, full in zip(sizes, (batch, operand.rows, operand.cols), strict=True)]
    dtype = TORCH_DTYPES[operand.dtype]
    floating = dtype.is_floating_point or dtype.is_complex
    if fill == "integers" or not floating:
        low = 0 if operand.dtype == "uint8" else -4
        return torch.randint(low, 5, sizes, generator=generator, device=device).to(dtype)
    draw = dtype if dtype.itemsize >= 4 else torch.float32
    values = torch.randn(sizes, generator=generator, device=device, dtype=draw)
    if fill == "large":
        values *= 1e3 if operand.dtype == "fp16" else 1e8
    if fill == "special" and values.numel():
        flat = values.view(-1)
        # One Inf a side and one NaN in A: rows and columns away from them must stay finite.
        plants: dict[str, tuple[tuple[int, float], ...]] = {
            "A": ((flat.numel() // 2, math.inf), (flat.numel() - 1, math.nan)),
            "B": ((0, -math.inf),),
            "C": ((flat.numel() // 3, math.nan), (flat.numel() // 4, math.inf)),
            "BIAS": ((flat.numel() // 5, -math.inf),),
        }
        for index, value in plants[name]:
            flat[index] = value
    return values.to(dtype)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers (the parts of complex numbers as a last dimension)."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_BITS[tensor.element_size()])


def _poison_value(tensor: torch.Tensor) -> int:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return (_POISON_FLOAT if floating else _POISON_INTEGER)[_bits(tensor[:0]).element_size()]


def _checksum(tensor: torch.Tensor, operand: Operand, batch: int) -> int:
    return int(_bits(_distinct(tensor, operand, batch)).sum(dtype=torch.int64))


def _operand(problem: GemmProblem, slots: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return matrix(slots[name], problem.operands[name], problem.batch)


def _wide(problem: GemmProblem) -> torch.dtype:
    return torch.complex128 if problem.dtype.startswith("complex") else torch.float64


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """float64 with Inf and NaN replaced by 0: they are compared by position, not by size."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return torch.where(torch.isfinite(wide), wide, torch.zeros_like(wide))


def _finish(problem: GemmProblem, slots: Mapping[str, torch.Tensor], value: torch.Tensor, beta: float) -> torch.Tensor:
    """The epilogue in value's type."""
    if problem.epilogue.c is not None and beta != 0:
        value = value + beta * _operand(problem, slots, "C").to(value.dtype)
    if problem.epilogue.bias is not None:
        value = value + _operand(problem, slots, "BIAS").to(value.dtype)
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
        a, b = _operand(problem, slots, "A"), _operand(problem, slots, "B")
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
    stored = _operand(problem, slots, "OUT")
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
        unwritten = int(_unwritten(problem, slots, wrong).sum())
        faults += [f"{unwritten} elements never written"] if unwritten else []
    return max(worst, float(torch.where(error.isfinite(), ratio, math.inf)[wrong].max())), faults


def _overflowed(stored: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Elements that are rightly beyond the output type's range: a value within the bound rounds to what was stored."""
    if not stored.is_floating_point():
        return torch.zeros_like(reference, dtype=torch.bool)
    right = torch.zeros_like(reference, dtype=torch.bool)
    for extreme in ((reference + bound).to(stored.dtype), (reference - bound).to(stored.dtype)):
        right |= ~extreme.isfinite() & ((stored == extreme) | (stored.isnan() & extreme.isnan()))
    return right & reference.isfinite()


def _unwritten(problem: GemmProblem, slots: Mapping[str, torch.Tensor], wrong: torch.Tensor) -> torch.Tensor:
    bits = _bits(_operand(problem, slots, "OUT"))
    same = bits == _poison_value(slots["OUT"])
    return wrong & (same.all(-1) if same.dim() > wrong.dim() else same)


def _touched(problem: GemmProblem, slots: Slots) -> list[str]:
    """Guard bytes and inputs that were written."""
    faults = [
        f"input {name} was overwritten"
        for name, before in slots.inputs.items()
        if _checksum(slots[name], problem.operands[name], problem.batch) != before
    ]
    if slots.buffer.numel() == 0:
        return faults
    allowed = torch.zeros_like(slots.buffer)
    for name, operand in problem.operands.items():
        start = int(slots[name].storage_offset()) * operand.itemsize
        _bits(_distinct(_at(allowed, start, operand, problem.batch), operand, problem.batch)).fill_(
            -1 if operand.itemsize > 1 else GUARD_BYTE
        )
    written = (allowed | slots.buffer) != GUARD_BYTE
    if bool(written.any()):
        first = int(written.nonzero()[0])
        faults.append(f"{int(written.sum())} guard bytes overwritten, first {_nearest_slot(problem, slots, first)}")
    return faults


def _nearest_slot(problem: GemmProblem, slots: Slots, position: int) -> str:
    """Where a byte of the buffer lies, in words: relative to the closest slot."""
    best: tuple[int, str] | None = None
    for name, operand in problem.operands.items():
        start = int(slots[name].storage_offset()) * operand.itemsize
        end = start + (operand.last_offset(problem.batch) + 1) * operand.itemsize
        if start <= position < end:
            return f"between {name}'s lines, {position - start} bytes from its start"
        distance, text = (start - position, f"before {name}") if position < start else (position - end + 1, f"past {name}'s end")
        if best is None or distance < best[0]:
            best = (distance, f"{distance} bytes {text}")
    assert best is not None
    return best[1]


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
