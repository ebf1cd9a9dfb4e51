"""The shape of a table file, as pydantic models: nothing that a file says is believed before it is checked."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from heuristics.table import Environment, Measurement, ProblemKey, TableEntry, dtype_class
from kernel_zoo.spec import FP32_PRECISIONS, ITEMSIZE, TileConfig

SCHEMA_VERSION: Final = 1
_LARGEST: Final = 2**48  # a larger dimension fits no memory, and its offsets no 64 bits
_MOST_WARPS: Final = 32  # a CUDA block's 1,024 threads
_MOST: Final = 2**16  # of anything else that a tile counts
_DTYPE_CLASSES: Final = frozenset(dtype_class(name) for name in ITEMSIZE)
_TILE: Final = re.compile(r"(\d+)x(\d+)x(\d+) g(\d+) w(\d+) s(\d+)(?: split(\d+))?((?: [a-z_]+\d+)*)")
_KNOB: Final = re.compile(r"([a-z_]+)(\d+)")

Count = Annotated[int, Field(ge=0, le=_LARGEST, strict=True)]
Microseconds = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
RunnerUp = tuple[str, str | None, Microseconds] | tuple[str, str | None, Microseconds, str]


def parse_tile(text: str) -> TileConfig:
    """The tile that `TileConfig.describe` wrote as text.

    Raises:
        ValueError: the text has another form, or counts what no launch can have.
    """
    match = _TILE.fullmatch(text) if len(text) < 1024 else None
    if match is None:
        raise ValueError(f"tile {text[:80]!r} is not of the form '128x256x64 g8 w8 s3 split4 subtile2'")
    m, n, k, group, warps, stages, split = (int(part or 1) for part in match.groups()[:-1])
    pairs = tuple(sorted((name, int(value)) for name, value in _KNOB.findall(match.groups()[-1])))
    counts = (m, n, k, group, stages, split)
    if min(*counts, warps) < 1 or max(counts) > _MOST or warps > _MOST_WARPS or any(value > _MOST for _, value in pairs):
        raise ValueError(f"tile {text!r} counts 0, more than {_MOST_WARPS} warps, or more than {_MOST:,} of something else")
    return TileConfig(m, n, k, group, split, warps, stages, pairs)


class KeyModel(BaseModel):
    """A row's key. Strict: a part this version does not know could make two different problems one."""

    model_config = ConfigDict(extra="forbid")

    m: Count
    n: Count
    k: Count
    batch: Count = 1
    dtype: str
    out: str = ""
    precision: Literal["", *FP32_PRECISIONS] = ""  # type: ignore[valid-type]
    layout: Annotated[str, StringConstraints(pattern=r"^[nts]{2}[ts]?$")]
    align: Annotated[str, StringConstraints(pattern=r"^(16|(1|2|4|8|16)(/(1|2|4|8|16)){2})$")] = "16"
    reads_c: bool = False

    @field_validator("dtype", "out")
    @classmethod
    def _known(cls, name: str) -> str:
        if name and name not in _DTYPE_CLASSES:
            raise ValueError(f"{name!r} is no dtype class; known: {', '.join(sorted(_DTYPE_CLASSES))}")
        return name

    def value(self) -> ProblemKey:
        """The key in memory."""
        return ProblemKey(**{**self.model_dump(), "out": self.out or self.dtype})


class EvidenceModel(BaseModel):
    """What was measured, in microseconds: median and interval of rounds, torch beside it, and who came next."""

    time_us: Microseconds
    low_us: Microseconds | None = None
    high_us: Microseconds | None = None
    torch_us: Microseconds | None = None
    source: Literal["measured", "modelled", "hand"] = "measured"
    date: str = ""
    triton: str = ""
    runner_ups: tuple[RunnerUp, ...] = ()


class EntryModel(BaseModel):
    """One row."""

    key: KeyModel
    variant: Annotated[str, StringConstraints(min_length=1)]
    tile: str | None = None
    digest: str = ""
    evidence: EvidenceModel

    def value(self) -> TableEntry:
        """The row in memory."""
        seen = self.evidence
        runner_ups = tuple(
            Measurement(r[0], _tile(r[1]), r[2], r[3] if len(r) == 4 else self._implied(r[0])) for r in seen.runner_ups
        )
        return TableEntry(
            self.key.value(), self.variant, _tile(self.tile), self.digest, seen.time_us, seen.torch_us, runner_ups,
            seen.source, seen.date, seen.low_us, seen.high_us, seen.triton,
        )  # fmt: skip

    def _implied(self, variant: str) -> str:
        """A runner-up of the winner's variant is of the winner's kernel, unless it says otherwise."""
        return self.digest if variant == self.variant else ""


class EnvironmentModel(BaseModel):
    """Where the rows were measured."""

    gpu_name: str
    compute_capability: Annotated[str, StringConstraints(pattern=r"^\d{1,3}\.\d{1,3}$")]
    sm_count: Count
    driver: str = ""
    cuda: str = ""
    triton: str = ""
    torch: str = ""
    python: str = ""

    def value(self) -> Environment:
        """The environment in memory."""
        major, minor = map(int, self.compute_capability.split("."))
        fields = self.model_dump(exclude={"compute_capability"})
        return Environment(compute_capability=(major, minor), **fields)


class TableModel(BaseModel):
    """The whole document; rows are validated one by one."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1]
    description: str = ""
    created_at: str = ""
    minblas_version: str = ""
    environment: EnvironmentModel
    protocol: dict[str, Any] = {}
    model: dict[str, Any] = {}
    entries: list[dict[str, Any]]


def _tile(text: str | None) -> TileConfig | None:
    return None if text is None else parse_tile(text)
