"""The tuned data in memory: rows keyed on the problem, where they were measured, exact lookup and nearest rows.

Frozen dataclasses only. Files are read and written by `store` through the models of `schema`; nothing here imports pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from heuristics.archs import ARCHS, device_name
from heuristics.distance import RowGroup, position
from kernel_zoo.spec import ITEMSIZE, VECTOR_BYTES, Arch, Epilogue, GemmProblem, Operand, TileConfig, cdiv

Source = Literal["measured", "modelled", "hand"]
Origin = Literal["user", "packaged"]
Kinship = Literal["exact", "borrowed"]

HALF_CLASS: Final = "16bit"
_SOURCE_RANK: Final = {"modelled": 0, "measured": 1, "hand": 2}


def dtype_class(dtype: str) -> str:
    """The class whose rows a dtype shares: fp16 and bf16 run the same instructions at the same speed."""
    return HALF_CLASS if dtype in ("fp16", "bf16") else dtype


@dataclass(frozen=True, slots=True)
class ProblemKey:
    """What a row is keyed on. Layouts and alignments are those of A and B, and of out where out is not row-major.

    `align` is the line alignment in bytes of A, B and out, as "16" where all three are 16 and "16/2/16" where not.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    out: str
    precision: str = ""
    layout: str = "nn"
    align: str = "16"
    reads_c: bool = False

    @property
    def group(self) -> tuple[str, str, str, str, str, bool]:
        """What must be equal for two rows to be comparable."""
        return (self.dtype, self.out, self.precision, self.layout, self.align, self.reads_c)

    def describe(self) -> str:
        """One line, e.g. 256 x 256 x 16384 16bit nt."""
        batch = f"{self.batch} x " if self.batch != 1 else ""
        out = f" -> {self.out}" if self.out != self.dtype else ""
        extras = [self.precision, f"align {self.align}" if self.align != "16" else "", "reads C" if self.reads_c else ""]
        return " ".join(filter(None, [f"{batch}{self.m} x {self.n} x {self.k} {self.dtype}{out}", self.layout, *extras]))


def problem_key(problem: GemmProblem) -> ProblemKey:
    """The key under which a problem's row is kept."""
    a, b, out = problem.a, problem.b, problem.out
    aligns = (a.line_align, b.line_align, out.line_align)
    return ProblemKey(
        problem.batch,
        problem.m,
        problem.n,
        problem.k,
        dtype_class(a.dtype),
        dtype_class(out.dtype),
        problem.precision,
        a.layout + b.layout + (out.layout if out.layout != "n" else ""),
        "16" if aligns == (16, 16, 16) else "/".join(map(str, aligns)),
        problem.epilogue.c is not None,
    )


def problem_of(key: ProblemKey) -> GemmProblem:
    """A problem with that key: bf16 for the 16-bit class, leading dimensions padded or offset to the key's alignment."""
    dtype, out = ("bf16" if name == HALF_CLASS else name for name in (key.dtype, key.out))
    aligns = [int(part) for part in key.align.split("/")] * (1 if "/" in key.align else 3)
    layouts = f"{key.layout}n"[:3]
    shapes = ((key.m, key.k), (key.k, key.n), (key.m, key.n))
    a, b, result = (
        _operand(name, rows, cols, layout, align, key.batch)
        for name, (rows, cols), layout, align in zip((dtype, dtype, out), shapes, layouts, aligns, strict=True)
    )
    epilogue = Epilogue(beta="1", c=result) if key.reads_c else Epilogue()
    return GemmProblem(key.batch, key.m, key.n, key.k, a, b, result, epilogue, key.precision)


def _operand(dtype: str, rows: int, cols: int, layout: str, align: int, batch: int) -> Operand:
    """A stored matrix whose lines start at multiples of exactly `align` bytes (or of more, where one element is wider)."""
    itemsize = ITEMSIZE[dtype]
    lines, length = (cols, rows) if layout == "t" else (rows, cols)
    vector = max(VECTOR_BYTES // itemsize, 1)
    leading = vector * cdiv(max(length, 1), vector)
    if align < VECTOR_BYTES:
        leading += max(align // itemsize, 1)
    if layout == "s":
        strides = (lines * leading * 2, leading * 2, 2)
    else:
        strides = (lines * leading, 1, leading) if layout == "t" else (lines * leading, leading, 1)
    return Operand.of(dtype, rows, cols, strides, align if align < VECTOR_BYTES else VECTOR_BYTES, batch)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A variant and tile, and its median time. `digest` is the kernel's; "" where it was not recorded."""

    variant: str
    tile: TileConfig | None
    time_us: float
    digest: str = ""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A row: the winner for a problem, bound to its kernel's digest, and the evidence for it.

    `triton` is the version the row was measured on where that is not the table's own.
    """

    key: ProblemKey
    variant: str
    tile: TileConfig | None
    digest: str
    time_us: float
    torch_us: float | None = None
    runner_ups: tuple[Measurement, ...] = ()
    source: Source = "measured"
    date: str = ""
    low_us: float | None = None
    high_us: float | None = None
    triton: str = ""

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The winner, then the runners-up."""
        return (Measurement(self.variant, self.tile, self.time_us, self.digest), *self.runner_ups)

    @property
    def standing(self) -> tuple[int, str]:
        """Of two rows of a problem the higher one wins: hand-written over measured over modelled, then the later date."""
        return (_SOURCE_RANK[self.source], self.date)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where rows were measured."""

    gpu_name: str
    compute_capability: tuple[int, int]
    sm_count: int
    driver: str = ""
    cuda: str = ""
    triton: str = ""
    torch: str = ""
    python: str = ""

    @property
    def device(self) -> str:
        """The project's name of the GPU; a slice of one, or another cut of the chip, is a device of its own."""
        name = device_name(self.gpu_name)
        whole = name not in ARCHS or ARCHS[name].sm_count == self.sm_count
        return name if whole else f"{name}-{self.sm_count}sm"


@dataclass(frozen=True)
class HeuristicTable:
    """Rows of one device, indexed. `name` says where they come from: a path, or the packaged table's name.

    `hint` says what else is foreign about the rows ("Triton 3.5.0"); such rows are hints, as another device's are.
    """

    name: str
    environment: Environment
    entries: tuple[TableEntry, ...] = ()
    origin: Origin = "user"
    description: str = ""
    created_at: str = ""
    minblas_version: str = ""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hint: str = ""

    def kinship(self, arch: Arch) -> Kinship | None:
        """Whether rows are of this very device ("exact"), of another of its capability or hints ("borrowed"), or neither (None)."""
        env = self.environment
        if env.compute_capability != arch.capability:
            return None
        same = env.device == device_name(arch.name) and env.sm_count == arch.sm_count
        return "exact" if same and not self.hint else "borrowed"

    @property
    def where(self) -> str:
        """What the rows were measured on, in words."""
        env = self.environment
        return f"{env.gpu_name} ({env.sm_count} SMs)" + (f" with {self.hint}" if self.hint else "")

    def lookup(self, key: ProblemKey) -> TableEntry | None:
        """The row of exactly this problem."""
        return self._index.get(key)

    def nearest(self, key: ProblemKey, count: int = 4, within: float = math.inf) -> list[tuple[float, TableEntry]]:
        """The rows of comparable problems at the least distance (in octaves), nearest first, none farther than `within`."""
        group = self.group(key)
        return [(far, group.entries[index]) for far, index in group.nearest(key, count, within)] if group is not None else []

    def group(self, key: ProblemKey) -> RowGroup | None:
        """The rows of problems comparable with that one."""
        return self._groups.get(key.group)

    @cached_property
    def _index(self) -> dict[ProblemKey, TableEntry]:
        return {entry.key: entry for entry in self.entries}

    @cached_property
    def _groups(self) -> dict[tuple[Any, ...], RowGroup]:
        groups: dict[tuple[Any, ...], list[TableEntry]] = {}
        for entry in self.entries:
            if position(entry.key) is not None:
                groups.setdefault(entry.key.group, []).append(entry)
        return {key: RowGroup(tuple(entries)) for key, entries in groups.items()}
