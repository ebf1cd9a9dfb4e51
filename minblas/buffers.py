"""Buffer sets to rotate over while timing: random operands, many enough that no launch finds its own in L2.

All sets are cut from one bank of random numbers per dtype: filling fresh buffers for every shape of a sweep would take longer than
timing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kernel_zoo.spec import VECTOR_BYTES, GemmProblem, Operand, cdiv

if TYPE_CHECKING:
    import torch

MAX_SETS: Final = 512
DEFAULT_L2_BYTES: Final = 64 << 20
_LINE: Final = 256  # operands start on their own cache lines, as those of an allocator do

Slots = dict[str, "torch.Tensor"]


def scalars(problem: GemmProblem) -> tuple[float, float]:
    """Values of alpha and beta of the problem's classes; unequal ones, so that neither can stand for the other."""
    epilogue = problem.epilogue
    alpha, beta = (3.0, -2.0) if problem.acc_dtype == "int32" else (1.25, -0.75)
    return {"0": 0.0, "1": 1.0, "x": alpha}[epilogue.alpha], {"0": 0.0, "1": 1.0, "x": beta}[epilogue.beta]


def footprint(operand: Operand, batch: int) -> int:
    """Bytes from an operand's address to its end, rounded up so that the next operand starts on a line of its own."""
    return _LINE * (cdiv((operand.last_offset(batch) + 1) * operand.itemsize, _LINE) + 1)


def count_sets(problem: GemmProblem, l2_bytes: int) -> int:
    """How many sets it takes to overflow L2 twice; one where a single set already does."""
    per_set = sum(footprint(operand, problem.batch) for operand in problem.operands.values())
    return max(1, min(MAX_SETS, cdiv(2 * l2_bytes, per_set)))


class Bank:
    """Random numbers on a device, cut into buffer sets. Sets of one bank share memory with those asked for before."""

    def __init__(self, device: torch.device | str) -> None:
        import torch

        self.device = torch.device(device)
        self._banks: dict[tuple[bool, str], torch.Tensor] = {}  # by (is the output's, dtype)
        self.l2_bytes = DEFAULT_L2_BYTES
        if self.device.type == "cuda":
            self.l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size or DEFAULT_L2_BYTES

    def sets(self, problem: GemmProblem, count: int | None = None) -> list[Slots]:
        """Slots for every set: inputs normal (small integers where the dtype is one), OUT unset."""
        count = count or count_sets(problem, self.l2_bytes)
        cut: list[Slots] = [{} for _ in range(count)]
        needed: dict[tuple[bool, str], int] = {}
        places: list[tuple[str, Operand, tuple[bool, str], int, int]] = []
        for name, operand in problem.operands.items():
            bank, step = (name == "OUT", operand.dtype), footprint(operand, problem.batch)
            begin = needed.get(bank, 0)
            needed[bank] = begin + step * count
            shift = operand.align % VECTOR_BYTES  # an operand known to be aligned to less is placed so
            places.append((name, operand, bank, begin + shift, step))
        flats = {bank: self._flat(bank, nbytes + VECTOR_BYTES) for bank, nbytes in needed.items()}
        for name, operand, bank, begin, step in places:
            for i, slots in enumerate(cut):
                slots[name] = flats[bank][(begin + i * step) // operand.itemsize :]
        return cut

    def _flat(self, bank: tuple[bool, str], nbytes: int) -> torch.Tensor:
        import torch

        from kernel_zoo.matrices import TORCH_DTYPES

        dtype = TORCH_DTYPES[bank[1]]
        flat = self._banks.get(bank)
        if flat is None or flat.numel() * dtype.itemsize < nbytes:
            self._banks.pop(bank, None)
            flat = None  # freed before the larger one is made: the largest shapes need most of the device
            flat = self._banks[bank] = _random(nbytes // dtype.itemsize + 1, dtype, self.device)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
        return flat


def _random(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers; integers between -8 and 8. In pieces, since a generator's own type is wider than most."""
    import torch

    flat = torch.empty(count, dtype=dtype, device=device)
    piece = 1 << 26
    for begin in range(0, count, piece):
        target = flat[begin : begin + piece]
        if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            target.normal_()
        elif dtype.is_floating_point or dtype.is_complex:
            target.copy_(torch.randn(target.shape, device=device).to(dtype))
        else:
            target.copy_(torch.randint(0 if dtype == torch.uint8 else -8, 9, target.shape, device=device).to(dtype))
    return flat


def buffer_sets(problem: GemmProblem, device: torch.device | str, count: int | None = None) -> list[Slots]:
    """Buffer sets for one problem, in memory of their own."""
    return Bank(device).sets(problem, count)


__all__ = ["Bank", "Slots", "buffer_sets", "count_sets", "footprint", "scalars"]
