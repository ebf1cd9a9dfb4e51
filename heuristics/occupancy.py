"""How many programs an SM holds at once, and what stops it from holding more: the occupancy calculator of a CUDA text.

An SM has warp slots, block slots, registers and shared memory, and hands each out in units: registers by the warp, 256 at a time,
in four partitions of its own register file; shared memory 128 bytes at a time, after 1 KiB that the driver keeps for every block.
The slots are those of the CUDA C++ Programming Guide ("Technical Specifications per Compute Capability"), the units those of the
calculator that NVIDIA ships with CUDA (cuda_occupancy.h), with whose results this one is tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from heuristics.traits import traits_of
from kernel_zoo.spec import Arch, GemmProblem, Resources, TileConfig, cdiv

Source = Literal["compiled", "formula"]

WARP: Final = 32
_PARTITIONS: Final = 4  # each with its own quarter of the registers and its own warps
_REGISTER_UNIT: Final = 256  # registers that a warp's are rounded up to
_REGISTERS_APIECE: Final = 8  # registers that a thread's share is a multiple of
_SHARED_UNIT: Final = 128
_RESERVED: Final = 1024  # of shared memory, per block, from compute capability 8.0 on
_MOST_REGISTERS: Final = 255  # a thread's
_MOST_WARPS: Final = 32  # a program's
_BLOCK_SLOTS: Final = {
    (7, 5): 16,
    (8, 0): 32,
    (8, 6): 16,
    (8, 7): 16,
    (8, 9): 24,
    (9, 0): 32,
    (10, 0): 32,
    (11, 0): 24,
    (12, 0): 24,
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What an SM holds of one kernel.

    Attributes:
        programs: resident at once; 0 where a single one does not fit.
        warps: theirs.
        warp_slots: the SM's.
        limits: programs that each resource alone would admit.
        limited_by: the resources that admit no more than that.
        registers: a thread's.
        shared_bytes: a program's.
        source: "compiled" where both were read from a binary, "formula" where they follow from the tile.
    """

    programs: int
    warps: int
    warp_slots: int
    limits: Mapping[str, int] = field(hash=False)
    limited_by: tuple[str, ...]
    registers: int
    shared_bytes: int
    source: Source

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able."""
        return {
            "programs_per_sm": self.programs,
            "warps": self.warps,
            "warp_slots": self.warp_slots,
            "share": self.warps / self.warp_slots,
            "limits": dict(self.limits),
            "limited_by": list(self.limited_by),
            "registers": self.registers,
            "shared_bytes": self.shared_bytes,
            "source": self.source,
        }


def block_slots(capability: tuple[int, int]) -> int:
    """Programs that an SM has slots for; a capability that is not listed has the next older one's."""
    older = [listed for listed in _BLOCK_SLOTS if listed <= capability]
    return _BLOCK_SLOTS[max(older) if older else min(_BLOCK_SLOTS)]


def occupancy(arch: Arch, num_warps: int, registers: int, shared_bytes: int, source: Source = "compiled") -> Occupancy:
    """What an SM holds of a kernel with so many warps a program, registers a thread, and bytes of shared memory a program."""
    limits = {
        "registers": _by_registers(arch, num_warps, registers),
        "shared memory": _by_shared_memory(arch, shared_bytes),
        "threads": arch.threads_per_sm // (WARP * num_warps) if num_warps <= _MOST_WARPS else 0,
        "block slots": block_slots(arch.capability),
    }
    programs = min(limits.values())
    limited_by = tuple(name for name, limit in limits.items() if limit == programs)
    slots = arch.threads_per_sm // WARP
    return Occupancy(programs, programs * num_warps, slots, limits, limited_by, registers, shared_bytes, source)


def _by_registers(arch: Arch, num_warps: int, registers: int) -> int:
    a_warps = _rounded(max(registers, 1) * WARP, _REGISTER_UNIT)
    if registers > _MOST_REGISTERS or a_warps * _rounded(num_warps, _PARTITIONS) > arch.registers_per_sm:
        return 0
    return arch.registers_per_sm // _PARTITIONS // a_warps * _PARTITIONS // num_warps


def _by_shared_memory(arch: Arch, shared_bytes: int) -> int:
    return 0 if shared_bytes > arch.smem_per_block else arch.smem_per_sm // _rounded(shared_bytes + _RESERVED, _SHARED_UNIT)


def _rounded(value: int, unit: int) -> int:
    return cdiv(value, unit) * unit


def of_tile(problem: GemmProblem, arch: Arch, variant: str, tile: TileConfig, compiled: Resources | None = None) -> Occupancy:
    """What an SM holds of a variant's tile: from its binary where that is known, else from what the tile is expected to need."""
    traits = traits_of(variant, tile)
    warps = tile.num_warps + traits.helpers
    if compiled is not None:
        return occupancy(arch, warps, compiled.registers, compiled.shared_bytes)
    threads = WARP * warps
    if traits.vector:  # sums and one block of the matrix in registers; nothing staged
        registers, shared = tile.block_n * tile.block_k // threads * (min(problem.m, problem.n) + 1) + 40, 0
    else:
        registers = tile.block_m * tile.block_n // threads + 64
        shared = (tile.block_m + tile.block_n) * tile.block_k * problem.a.itemsize * tile.num_stages
        if traits.sole:  # warps that compute take over registers of those that load; results wait for their store
            registers = arch.registers_per_sm // threads // _REGISTERS_APIECE * _REGISTERS_APIECE
            shared += tile.block_m * tile.block_n * problem.out.itemsize * traits.hands
    return occupancy(arch, warps, min(registers, _MOST_REGISTERS), min(shared, arch.smem_per_block), "formula")
