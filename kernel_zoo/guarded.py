"""Fresh operands inside guard bands, and what a kernel did to memory that is not its own.

Every slot is a view in one buffer whose gaps hold 0xff bytes; OUT is poisoned. Whoever launches a kernel on such slots can tell
afterwards which bytes beside them were written, which inputs were changed and which results never came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

import torch

from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.spec import VECTOR_BYTES, GemmProblem, Operand, cdiv

Fill = Literal["normal", "integers", "special", "large"]
GUARD_BYTE: Final = 0xFF  # NaN in every float type, -1 in every integer type
_BAND_BYTES: Final = 256
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Poison of OUT by element size: a NaN whose payload no arithmetic produces, and integers no sum of small ones reaches.
_POISON_FLOAT: Final = {1: 0xFF, 2: 0x7FFD, 4: 0x7FFDADAD, 8: 0x7FFDADADADADADAD}
_POISON_INTEGER: Final = {1: 0xA5, 2: 0x5A5A, 4: 0x5A5A5A5A, 8: 0x5A5A5A5A5A5A5A5A}


class Slots(dict[str, torch.Tensor]):
    """Tensors by slot name, carved out of one guarded buffer; remembers what a kernel may not touch."""

    buffer: torch.Tensor
    inputs: dict[str, int]


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


def touched(problem: GemmProblem, slots: Slots) -> list[str]:
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


def unwritten(problem: GemmProblem, slots: Mapping[str, torch.Tensor], wrong: torch.Tensor) -> torch.Tensor:
    """Those of the wrong elements of OUT that still hold the poison."""
    bits = _bits(slot_matrix(problem, slots, "OUT"))
    same = bits == _poison_value(slots["OUT"])
    return wrong & (same.all(-1) if same.dim() > wrong.dim() else same)


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


def slot_matrix(problem: GemmProblem, slots: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """A slot's operand as a (batch, rows, cols) view."""
    return matrix(slots[name], problem.operands[name], problem.batch)
