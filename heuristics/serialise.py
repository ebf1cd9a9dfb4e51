"""Tables as text and back: JSON that a person can review, header first, rows sorted by key, one a line.

What is written depends on nothing but the table, so a diff shows what changed. What is read goes through the models of `schema`:
an unknown key at the top is an error (the file is something else, or newer), one inside a row is left out with a remark; a row that
does not validate costs that row only, coefficients that give no time cost the model their variant only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from heuristics import model
from heuristics.archs import ARCHS
from heuristics.coefficients import CORRECTIONS
from heuristics.schema import SCHEMA_VERSION, Coefficient, EntryModel, EvidenceModel, TableModel
from heuristics.table import HeuristicTable, Measurement, Origin, ProblemKey, TableEntry
from kernel_zoo.spec import GemmProblem, TileConfig

_COEFFICIENTS: Final = TypeAdapter(dict[str, Coefficient])
_PROBE: Final = GemmProblem.of(512, 512, 512)
_PROBE_TILE: Final = TileConfig(64, 64, 64, split_k=2)


class TableFileError(ValueError):
    """A file that cannot be used as a table at all; the message names the file and says why."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What was left out of a table, or settled by rule, while it was read.

    Attributes:
        cause: remarks of one cause in one file are said together, once.
        row: the number of the row in the file, from 1; 0 for the header.
        message: what is wrong with it.
    """

    cause: Literal["invalid", "duplicate", "unknown key", "model"]
    row: int
    message: str

    def __str__(self) -> str:
        return self.message

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return {
            "invalid": "correct the row, or drop it (minblas table prune)",
            "duplicate": "keep one row of each problem",
            "unknown key": "take the key out, or upgrade minblas if a newer one wrote it",
            "model": "fit the model again, or take its entry out",
        }[self.cause]


def loads(text: str, name: str, origin: Origin = "user") -> tuple[HeuristicTable, list[Remark]]:
    """The table that a file's text holds, and remarks on what was left out of it.

    Raises:
        TableFileError: the text is no table.
    """
    try:
        document = TableModel.model_validate_json(text)
    except ValidationError as error:
        raise TableFileError(f"{name} is not a minblas table: {_complaint(error)}") from error
    entries, remarks = _entries(document.entries)
    coefficients, more = _model(document.model)
    table = HeuristicTable(
        name, document.environment.value(), tuple(entries.values()), origin, document.description, document.created_at,
        document.minblas_version, document.protocol, coefficients,
    )  # fmt: skip
    return table, remarks + more


def _entries(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[ProblemKey, TableEntry], list[Remark]]:
    """The rows that can be used. Of two of one problem the one that stands higher is kept, as in a merge."""
    entries: dict[ProblemKey, TableEntry] = {}
    remarks: list[Remark] = []
    for number, row in enumerate(rows, 1):
        try:
            entry = EntryModel.model_validate(row).value()
        except ValueError as error:  # a ValidationError is one
            why = _sentence(error) if isinstance(error, ValidationError) else str(error)
            remarks.append(Remark("invalid", number, f"row {number} is ignored: {why}"))
            continue
        remarks += [
            Remark("unknown key", number, f"row {number} has the unknown key {key!r}, which is ignored") for key in _unknown(row)
        ]
        old = entries.get(entry.key)
        if old is not None:
            wins = entry.standing >= old.standing
            verb = "replaces an earlier" if wins else "gives way to an earlier"
            remarks.append(Remark("duplicate", number, f"row {number} {verb} row of {entry.key.describe()}"))
            entry = entry if wins else old
        entries[entry.key] = entry
    return entries, remarks


def _model(section: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], list[Remark]]:
    """The coefficients that can be used: numbers with which the model gives a time."""
    found: dict[str, dict[str, float]] = {}
    remarks: list[Remark] = []
    for variant, values in section.items():
        try:
            checked = _COEFFICIENTS.validate_python(values)
            if any(name in checked for name in CORRECTIONS):  # a tile's corrections, of which there are hundreds: factors
                probe = math.prod(checked.values())
            else:
                probe = model.estimate(_PROBE, ARCHS["h200"], variant, _PROBE_TILE, {variant: checked}).time_us
            if not 0 < probe < math.inf:
                raise ValueError(f"they make a product take {probe} us")
        except ValidationError as error:
            remarks.append(Remark("model", 0, f"the model of {variant} is ignored: {_sentence(error)}"))
        except (ValueError, ArithmeticError) as error:
            remarks.append(Remark("model", 0, f"the model of {variant} is ignored: its coefficients give no time: {error}"))
        else:
            found[variant] = checked
    return found, remarks


def dumps(table: HeuristicTable) -> str:
    """The table as text."""
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
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in header.items()]
    model = [f"  {json.dumps(name)}: {json.dumps(dict(sorted(values.items())))}" for name, values in sorted(table.model.items())]
    lines += [' "model": {', ",\n".join(model), " },"] if model else [' "model": {},']
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


def evidence_dict(entry: TableEntry) -> dict[str, Any]:
    """What a row rests on, as JSON, parts that have their usual value left out."""
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
    return {key: value for key, value in evidence.items() if value not in (None, "", [])}


def _row(entry: TableEntry) -> dict[str, Any]:
    row = {
        "key": key_dict(entry.key),
        "variant": entry.variant,
        "tile": entry.tile.describe() if entry.tile else None,
        "digest": entry.digest,
    }
    return {key: value for key, value in row.items() if value not in (None, "")} | {"evidence": evidence_dict(entry)}


def _runner_up(seen: Measurement, winner: TableEntry) -> list[Any]:
    row = [seen.variant, seen.tile.describe() if seen.tile else None, _rounded(seen.time_us)]
    implied = seen.variant == winner.variant and seen.digest == winner.digest
    return [*row, seen.digest] if seen.digest and not implied else row


def _rounded(time_us: float | None) -> float | None:
    """Five digits: more than any clock here resolves."""
    return None if time_us is None else float(f"{time_us:.5g}")


def _unknown(row: Mapping[str, Any]) -> list[str]:
    unknown = [key for key in row if key not in EntryModel.model_fields]
    return unknown + [f"evidence.{key}" for key in row["evidence"] if key not in EvidenceModel.model_fields]


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where + ': ' if where else ''}{first['msg']}"


def _complaint(error: ValidationError) -> str:
    """What is wrong with a whole file, and what to do about it."""
    first = error.errors(include_url=False)[0]
    where, kind = first["loc"], first["type"]
    if where == ("schema_version",) and kind == "literal_error":
        given = first["input"]
        newer = isinstance(given, int) and given > SCHEMA_VERSION
        remedy = "a newer minblas wrote it: upgrade" if newer else "tune again, or write it anew with the minblas that made it"
        return f"schema_version is {given!r}, and this minblas reads {SCHEMA_VERSION}; {remedy}"
    if kind == "extra_forbidden" and len(where) == 1:
        return f"it has the unknown key {where[0]!r} at the top; take it out, or upgrade minblas if a newer one wrote the file"
    if kind == "json_invalid":
        return f"{first['msg']}: it was cut short or edited by hand; restore it, or move it away and tune again"
    return _sentence(error)
