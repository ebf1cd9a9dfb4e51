"""What the table commands do to tables: verify, prune and generate them, with a compile gate where asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import tables
from heuristics import archs, pruning, resources, store
from heuristics.compare import listed_device, unlisted
from heuristics.generate import BORROWERS, Binaries, generate_table, kind
from heuristics.pruning import Dropped, Wanted
from heuristics.resources import public_version
from heuristics.table import HeuristicTable, ProblemKey, problem_key, problem_of
from kernel_zoo.spec import Arch, Variant

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_UNLISTED = "unlisted"
_GATE_ROUNDS = 10  # a row that fails the gate gets the model's next choice, which is gated in turn


@dataclass(frozen=True, slots=True)
class Checked:
    """Something wrong with a table, one of its rows (by key), or a row of the file that is not in it.

    "unlisted" is no fault of the table's: it was not checked, for nobody knows its device's limits here.
    """

    table: str
    kind: str
    key: str
    message: str

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.table}: {self.kind}: {key}{self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a verification found. Modelled rows are no fault; they are counted so that nobody takes them for measured ones.

    `tables` are those that could be read, unlisted ones too.
    """

    tables: tuple[dict[str, Any], ...]
    findings: tuple[Checked, ...]
    compiled: int
    triton: str

    @property
    def sound(self) -> bool:
        """Nothing is wrong, as far as it could be checked."""
        return not self._faults

    @property
    def _faults(self) -> int:
        return sum(finding.kind != _UNLISTED for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        rows = sum(table["rows"] for table in self.tables)
        modelled = sum(table["modelled"] for table in self.tables)
        head = {"rows": rows, "modelled": modelled, "compiled": self.compiled, "triton": self.triton}
        return {**head, "tables": list(self.tables), "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        lines += [
            f"{table['name']}: {table['modelled']} of {table['rows']} rows are modelled: nobody measured them"
            for table in self.tables
            if table["modelled"]
        ]
        rows = sum(table["rows"] for table in self.tables)
        compiled = f", {self.compiled} compiled with triton {self.triton}" if self.triton else ""
        unchecked = len(self.findings) - self._faults
        left = f", {unchecked} tables not checked" if unchecked else ""
        return "\n".join([*lines, f"{len(self.tables)} tables, {rows} rows{compiled}, {self._faults} findings{left}"])


def check(names: Sequence[str], variants: Sequence[Variant], compile_rows: bool, workers: int | None) -> Report:
    """Verify tables by path or device; see `tables.look` for the names.

    Raises:
        ValueError: a name stands for nothing.
    """
    findings: list[Checked] = []
    found: list[HeuristicTable] = []
    checked: list[HeuristicTable] = []
    for item in tables.look(names):
        if item.table is None:
            findings.append(Checked(str(item.path), "unreadable", "", item.error))
            continue
        name = item.table.name
        found.append(item.table)
        findings += [Checked(name, remark.cause, "", f"{remark}; {remark.remedy}") for remark in item.remarks]
        device = tables.device_of(item.table)
        if device is None:
            findings.append(Checked(name, _UNLISTED, "", unlisted(item.table)))
            continue
        checked.append(item.table)
        findings += [
            Checked(name, fault.kind, fault.key.describe(), fault.message)
            for fault in store.verify(item.table, variants, device, tables.needs(item.table))
        ]
    gated = tables.gate_tables(checked, variants, workers) if compile_rows else []
    findings += [
        Checked(result.row.label, "gate", problem_key(result.row.problem).describe(), f"{result.row.describe()}: {fault}")
        for result in gated
        for fault in result.faults
    ]
    summary = [
        {
            "name": table.name,
            "gpu": table.environment.gpu_name,
            "rows": len(table.entries),
            "modelled": sum(entry.source == "modelled" for entry in table.entries),
        }
        for table in found
    ]
    return Report(tuple(summary), tuple(findings), len(gated), tables.triton_version() if compile_rows else "")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was dropped from a file, and where the old one is kept ("" for a dry run, or where nothing went).

    `unlisted` says why nothing was looked at, where its device's limits are not known.
    """

    path: str
    rows: int
    dropped: tuple[Dropped, ...]
    invalid: int
    kept: str
    dry_run: bool
    unlisted: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        head = {"path": self.path, "rows": self.rows, "invalid": self.invalid, "kept": self.kept, "dry_run": self.dry_run}
        head |= {"unlisted": self.unlisted}
        return {**head, "dropped": [drop.as_dict() for drop in self.dropped]}

    def __str__(self) -> str:
        if self.unlisted:
            return f"{self.path}: {_UNLISTED}: {self.unlisted}; {self.rows} rows are left"
        verb = "would drop" if self.dry_run else "dropped"
        rows = sum(drop.what == "row" for drop in self.dropped)
        parts = len(self.dropped) - rows
        more = "".join(
            (f", {parts} runners-up or winners" if parts else "", f", {self.invalid} unreadable" if self.invalid else "")
        )
        kept = f"; the old file is {self.kept}" if self.kept else ""
        return "\n".join([*map(str, self.dropped), f"{self.path}: {verb} {rows} rows{more}; {self.rows} rows are left{kept}"])


def prune(name: str, variants: Sequence[Variant], wanted: Wanted, compile_rows: bool, dry_run: bool, workers: int | None) -> Pruned:
    """Prune a file, or the user's own table of a device.

    Raises:
        ValueError: there is no such file, the date is none, or the file was changed meanwhile.
        TableFileError: the file is no table.
    """
    if wanted.before and not _DATE.fullmatch(wanted.before):
        raise ValueError(f"--before is {wanted.before!r}; needs a date such as 2026-01-31")
    path = Path(name) if Path(name).exists() else tables.user_path(archs.get_arch(name))
    if not path.exists():
        raise ValueError(f"you have no table of {name}: there is no file {path}")
    table, remarks = store.read(path)
    device = tables.device_of(table)
    if device is None:
        return Pruned(str(path), len(table.entries), (), 0, "", dry_run, unlisted(table))
    if compile_rows:
        wanted = replace(wanted, gate=_refused(table, variants, workers))
    needs = tables.needs(table)
    try:
        others = [other for other in tables.find([table.environment.device]) if other.name != table.name]
    except ValueError:
        others = []
    left, dropped = pruning.prune(table, variants, wanted, device, needs, others)
    invalid = sum(remark.cause == "invalid" for remark in remarks)
    changed = bool(dropped or remarks)
    kept = str(store.rewrite(left, path, table)) if changed and not dry_run else ""
    return Pruned(str(path), len(left.entries), tuple(dropped), invalid, kept, dry_run)


def _refused(table: HeuristicTable, variants: Sequence[Variant], workers: int | None) -> tuple[tuple[ProblemKey, str], ...]:
    """Rows whose winner does not pass the compile gate of the Triton that is installed."""
    results = tables.gate_tables([table], variants, workers)
    version = tables.triton_version()
    return tuple(
        (problem_key(result.row.problem), f"triton {version}: {'; '.join(result.faults)}") for result in results if not result.ok
    )


@dataclass(frozen=True, slots=True)
class Generated:
    """A table that was written, what its rows compile to, and the rows that found no kernel that passes."""

    path: str
    device: str
    rows: int
    binaries: int
    left_out: tuple[str, ...]
    gated_on: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def __str__(self) -> str:
        gate = f", gated on triton {self.gated_on}" if self.gated_on else ", not gated (--compile)"
        lines = [f"left out: {row}" for row in self.left_out]
        return "\n".join([*lines, f"{self.path}: {self.rows} modelled rows for {self.device}, {self.binaries} binaries{gate}"])


def generate(name: str, variants: Sequence[Variant], out: Path, compile_rows: bool, workers: int | None) -> Generated:
    """Write a device's table from the model.

    Raises:
        ValueError: the device is not known, or has measured rows to borrow.
    """
    arch = archs.get_arch(name)
    if arch.name in BORROWERS:
        raise ValueError(f"{arch.name} needs no generated table: {BORROWERS[arch.name]}")
    data = resources.of_capability(arch.cc)
    versions = [known.triton for known in data]
    installed = public_version(tables.installed_triton())
    triton = installed if compile_rows or installed in versions or not versions else versions[-1]
    refused: dict[tuple[str, str, str], str] = {}
    for _ in range(_GATE_ROUNDS if compile_rows else 1):
        table, left_out = generate_table(arch, variants, data, triton, _binaries(arch), refused)
        failed = [result for result in tables.gate_tables([table], variants, workers) if not result.ok] if compile_rows else []
        refused |= {
            kind(result.row.variant.name, result.row.problem, result.row.tile): "; ".join(result.faults) for result in failed
        }
        if not failed:
            break
    for result in failed:
        key = problem_key(result.row.problem)
        left_out.append(
            f"{key.describe()}: {_GATE_ROUNDS} choices of the model failed the gate, the last by: {'; '.join(result.faults)}"
        )
        table = replace(table, entries=tuple(entry for entry in table.entries if entry.key != key))
    store.write(table, out)
    return Generated(
        str(out), arch.name, len(table.entries), count_binaries(table, variants), tuple(left_out), installed if compile_rows else ""
    )


def _binaries(arch: Arch) -> Binaries:
    """What a variant and tile compile to for a problem on a device; says so without compiling."""
    from kernel_zoo.build import specialise

    return lambda variant, problem, tile: frozenset(specialise(call) for call in variant.plan(problem, tile, arch).calls)


def count_binaries(table: HeuristicTable, variants: Sequence[Variant]) -> int:
    """The distinct binaries that a gate of a table's rows compiles."""
    by_name, needs = {variant.name: variant for variant in variants}, _binaries(listed_device(table))
    return len(
        {
            spec
            for entry in table.entries
            if entry.tile is not None and entry.variant in by_name
            for spec in needs(by_name[entry.variant], problem_of(entry.key), entry.tile)
        }
    )
