"""The table file: JSON that a person can review, one row a line, read and written through pydantic models.

An unknown key at the top is an error: the file is something else, or newer. An unknown key inside a row is left out with a remark.
A row that does not validate costs that row only. The output is sorted and depends on nothing but the table, so a diff shows what
changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from heuristics.table import Environment, HeuristicTable, Measurement, Origin, ProblemKey, TableEntry, dtype_class
from kernel_zoo.spec import FP32_PRECISIONS, ITEMSIZE, TileConfig

SCHEMA_VERSION: Final = 1
_DTYPE_CLASSES: Final = frozenset(dtype_class(name) for name in ITEMSIZE)
_TILE: Final = re.compile(r"(\d+)x(\d+)x(\d+) g(\d+) w(\d+) s(\d+)(?: split(\d+))?((?: [a-z_]+\d+)*)")
_KNOB: Final = re.compile(r"([a-z_]+)(\d+)")

Count = Annotated[int, Field(ge=0, strict=True)]
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
RunnerUp = tuple[str, str | None, Microseconds] | tuple[str, str | None, Microseconds, str]


class TableFileError(ValueError):
    """A file that cannot be used as a table at all; the message names the file and says why."""


def parse_tile(text: str) -> TileConfig:
    """The tile that `TileConfig.describe` wrote as text.

    Raises:
        ValueError: the text has another form.
    """
    match = _TILE.fullmatch(text)
    if match is None:
        raise ValueError(f"tile {text!r} is not of the form '128x256x64 g8 w8 s3 split4 subtile2'")
    m, n, k, group, warps, stages, split, knobs = match.groups()
    pairs = tuple(sorted((name, int(value)) for name, value in _KNOB.findall(knobs)))
    return TileConfig(int(m), int(n), int(k), int(group), int(split or 1), int(warps), int(stages), pairs)


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
    variant: str
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
    compute_capability: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")]
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
    model: dict[str, dict[str, float]] = {}
    entries: list[dict[str, Any]]


def loads(text: str, name: str, origin: Origin = "user") -> tuple[HeuristicTable, list[str]]:
    """The table that a file's text holds, and remarks on what was left out of it.

    Raises:
        TableFileError: the text is no table.
    """
    try:
        document = TableModel.model_validate_json(text)
    except ValidationError as error:
        raise TableFileError(f"{name} is not a minblas table: {_sentence(error)}") from error
    entries: dict[ProblemKey, TableEntry] = {}
    remarks: list[str] = []
    for number, row in enumerate(document.entries, 1):
        try:
            entry = EntryModel.model_validate(row).value()
        except ValidationError as error:
            remarks.append(f"row {number} is ignored: {_sentence(error)}")
        except ValueError as error:
            remarks.append(f"row {number} is ignored: {error}")
        else:
            if entry.key in entries:
                remarks.append(f"row {number} replaces an earlier row of {entry.key.describe()}")
            entries[entry.key] = entry
            remarks += [f"row {number} has the unknown key {key!r}, which is ignored" for key in _unknown(row)]
    table = HeuristicTable(
        name, document.environment.value(), tuple(entries.values()), origin, document.description, document.created_at,
        document.minblas_version, document.protocol, document.model,
    )  # fmt: skip
    return table, remarks


def dumps(table: HeuristicTable) -> str:
    """The table as text: header first, rows sorted by key, one a line."""
    env = table.environment
    environment = {
        "gpu_name": env.gpu_name,
        "compute_capability": f"{env.compute_capability[0]}.{env.compute_capability[1]}",
        **{name: getattr(env, name) for name in ("sm_count", "driver", "cuda", "triton", "torch", "python")},
    }
    header = {
        "schema_version": SCHEMA_VERSION,
        "description": table.description,
        "created_at": table.created_at,
        "minblas_version": table.minblas_version,
        "environment": environment,
        "protocol": dict(sorted(table.protocol.items())),
        "model": {name: dict(sorted(values.items())) for name, values in sorted(table.model.items())},
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in header.items()]
    rows = [_row(entry) for entry in sorted(table.entries, key=lambda entry: sort_key(entry.key))]
    body = ",\n".join(f"  {json.dumps(row, ensure_ascii=False, separators=(',', ':'))}" for row in rows)
    return "\n".join(["{", *lines, ' "entries": [', *([body] if body else []), " ]", "}"]) + "\n"


def sort_key(key: ProblemKey) -> tuple[Any, ...]:
    """The order of rows in a file: by class, then by size."""
    return (*key.group, key.batch, key.n, key.k, key.m)


def key_dict(key: ProblemKey) -> dict[str, Any]:
    """A key as JSON, parts that have their usual value left out."""
    row: dict[str, Any] = {"m": key.m, "n": key.n, "k": key.k, "dtype": key.dtype, "layout": key.layout}
    if key.batch != 1:
        row["batch"] = key.batch
    if key.out != key.dtype:
        row["out"] = key.out
    if key.precision:
        row["precision"] = key.precision
    if key.align != "16":
        row["align"] = key.align
    if key.reads_c:
        row["reads_c"] = True
    return row


def _row(entry: TableEntry) -> dict[str, Any]:
    evidence = {
        "time_us": _rounded(entry.time_us),
        "low_us": _rounded(entry.low_us),
        "high_us": _rounded(entry.high_us),
        "torch_us": _rounded(entry.torch_us),
        "source": entry.source if entry.source != "measured" else "",
        "date": entry.date,
        "triton": entry.triton,
        "runner_ups": [_runner_up(seen, entry) for seen in entry.runner_ups],
    }
    row = {
        "key": key_dict(entry.key),
        "variant": entry.variant,
        "tile": entry.tile.describe() if entry.tile else None,
        "digest": entry.digest,
    }
    return {key: value for key, value in row.items() if value not in (None, "")} | {
        "evidence": {key: value for key, value in evidence.items() if value not in (None, "", [])}
    }


def _runner_up(seen: Measurement, winner: TableEntry) -> list[Any]:
    row = [seen.variant, seen.tile.describe() if seen.tile else None, _rounded(seen.time_us)]
    implied = seen.variant == winner.variant and seen.digest == winner.digest
    return [*row, seen.digest] if seen.digest and not implied else row


def _rounded(time_us: float | None) -> float | None:
    """Five digits: more than any clock here resolves."""
    return None if time_us is None else float(f"{time_us:.5g}")


def _tile(text: str | None) -> TileConfig | None:
    return None if text is None else parse_tile(text)


def _unknown(row: Mapping[str, Any]) -> list[str]:
    unknown = [key for key in row if key not in EntryModel.model_fields]
    return unknown + [f"evidence.{key}" for key in row["evidence"] if key not in EvidenceModel.model_fields]


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where + ': ' if where else ''}{first['msg']}"
