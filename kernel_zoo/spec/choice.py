"""What a choice is made of: a device, a tile, a refusal, a compiled kernel's needs, an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Arch:
    """A device as the choice sees it. Rates are dense; `sources` says where each figure comes from."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    smem_per_block: int
    smem_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    clock_ghz: float
    bandwidth_gbps: float
    tflops: Mapping[str, float] = field(hash=False)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def cc(self) -> int:
        """The compute capability as one number: 90 for 9.0."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def has_tma(self) -> bool:
        """Tensor Memory Accelerator: bulk copies through descriptors."""
        return self.capability[0] >= 9


#: Into how many parts variants propose to cut K.
SPLITS: Final = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How a variant cuts a problem up. What follows from the problem (even K, alignment, TMA legality) is derived, never stored."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 3
    knobs: tuple[tuple[str, int], ...] = ()

    def knob(self, name: str, default: int = 0) -> int:
        """The value of a variant's own knob."""
        found = default
        for known, value in self.knobs:
            if known == name:
                found = value
        return found

    def without(self, name: str) -> TileConfig:
        """The tile with that knob left unsaid."""
        if not any(known == name for known, _ in self.knobs):
            return self
        return replace(self, knobs=tuple(knob for knob in self.knobs if knob[0] != name))

    def describe(self) -> str:
        """e.g. 128x256x64 g8 w8 s3 split4 subtile2."""
        split = f" split{self.split_k}" if self.split_k > 1 else ""
        knobs = "".join(f" {name}{value}" for name, value in self.knobs)
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{tile} g{self.group_m} w{self.num_warps} s{self.num_stages}{split}{knobs}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a variant cannot take a problem or a tile. explain and the error show the same sentence."""

    rule: str
    given: str
    needed: str

    @property
    def sentence(self) -> str:
        """given; needed."""
        return f"{self.given}; needs {self.needed}"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel needs, read from its binary."""

    shared_bytes: int
    registers: int
    spills: int  # local-memory loads and stores (LDL, STL)
    instructions: tuple[str, ...]  # the kinds that matter: wgmma, tcgen05, mma, tma, cp.async, ffma


@dataclass(frozen=True, slots=True)
class Estimate:
    """A model's time for one tile, in microseconds, and what it is made of."""

    time_us: float
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal or refused way to serve the problem, as ranked by the choice."""

    variant: str
    tile: TileConfig | None
    estimate: Estimate | None = None
    refusal: Refusal | None = None
