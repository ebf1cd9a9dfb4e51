"""What compiled kernels need, as data: shared memory, registers, spills and instructions of every candidate's binary.

One file per compute capability and Triton version, made by `minblas resources build`. A key is what decides a binary (see
`kernel_zoo/spec/needs.py`), a record its forms from the heaviest on, as far as they had to be compiled. Records count only for the
very kernels that were compiled: each variant's digest is in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from heuristics.notices import warn_once
from kernel_zoo.spec import (
    FORMS,
    VECTOR_BYTES,
    Arch,
    GemmProblem,
    Refusal,
    Resources,
    TileConfig,
    Variant,
    binary_class,
    is_vectorised,
    tails,
    tile_key,
)

DIRECTORY: Final = Path(__file__).parent / "resources"
_SCHEMA: Final = 1
_COLUMNS: Final = "shared memory in bytes, registers a thread, accesses to local memory, instructions; or why it does not compile"

Needs = Resources | str  # of one form, or why it does not compile


@dataclass(frozen=True, slots=True)
class Record:
    """A key's forms: `heavy` with everything an epilogue can read, `plain` with nothing, `even` plain and without masks.

    A form is None where a heavier one is without fault, and where it was not compiled yet. `at` is the alignment of A's and B's
    lines in bytes, and of out's where that is not the worse of theirs: it is there where the tile is illegal at the worst of the
    key's. A fault says nothing of a problem that is aligned better.
    """

    heavy: Needs | None = None
    plain: Needs | None = None
    even: Needs | None = None
    at: tuple[int, ...] | None = None

    def refusal(self, problem: GemmProblem, arch: Arch, tile: TileConfig) -> Refusal | None:
        """Why the problem's binary may not serve: a form that is no heavier is at fault. None leaves it to the variant."""
        if not _is_faulty(self.heavy, arch) or not self._as_short(problem):
            return None
        masked = all(tails(problem, tile))
        if masked and _is_full(problem):
            return _fault(self.heavy, arch)
        if masked or not _is_faulty(self.plain, arch):
            return _fault(self.plain, arch)
        return _fault(self.even, arch)

    def _as_short(self, problem: GemmProblem) -> bool:
        """The problem's lines are aligned no better than those that were compiled."""
        a, b, *of_out = self.at or (
            (problem.a.itemsize, problem.b.itemsize) if not is_vectorised(problem) else (VECTOR_BYTES, VECTOR_BYTES)
        )
        out = of_out[0] if of_out else min(a, b)
        return problem.a.line_align <= a and problem.b.line_align <= b and problem.out.line_align <= out

    def nearest(self, problem: GemmProblem) -> Resources | None:
        """The needs of the form most like the problem's binary, and no lighter where there is one."""
        forms = (self.plain, self.even, self.heavy) if problem.epilogue.plain else (self.heavy, self.plain, self.even)
        return next((form for form in forms if isinstance(form, Resources)), None)


def _is_faulty(needs: Needs | None, arch: Arch) -> bool:
    """Whether `_fault` has something to say, which takes it longer."""
    return needs is not None and (isinstance(needs, str) or needs.spills > 0 or needs.shared_bytes > arch.smem_per_block)


def _fault(needs: Needs | None, arch: Arch) -> Refusal | None:
    """What is wrong with a form's binary; nothing where it is unknown."""
    if needs is None:
        return None
    if isinstance(needs, str):
        return Refusal("compiler", f"the kernel does not compile for sm_{arch.cc} ({needs})", "a binary")
    if needs.spills:
        return Refusal("spills", f"the kernel spills registers ({needs.spills} accesses to local memory)", "no spills")
    if needs.shared_bytes > arch.smem_per_block:
        given = f"the kernel takes {needs.shared_bytes:,} bytes of shared memory"
        return Refusal("shared memory", given, f"at most {arch.smem_per_block:,} on {arch.name}")
    return None


def _is_full(problem: GemmProblem) -> bool:
    """The epilogue is as heavy as the heavy form's: C, a bias with two dimensions of its own, gelu."""
    epilogue = problem.epilogue
    if epilogue.c is None or epilogue.bias is None or epilogue.activation != "gelu":
        return False
    return min(map(abs, (*epilogue.c.strides[1:], *epilogue.bias.strides[1:]))) > 0


@dataclass(frozen=True)
class ResourceTable:
    """What the binaries of one compute capability and Triton version were seen to need.

    Attributes:
        cc: the capability (90 for 9.0).
        triton: the version that compiled them.
        digests: of the kernels that were compiled, by variant.
        records: by key, "tiled 16bit nt 16 64x64x64 w4 s4".
    """

    cc: int
    triton: str
    digests: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ResourceTable(sm_{self.cc}, triton {self.triton}: {len(self.records):,} records)"

    def for_problem(self, problem: GemmProblem) -> ProblemResources:
        """The table as one problem sees it: for many questions about it."""
        return ProblemResources(self, problem)

    def find(self, problem: GemmProblem, variant: Variant, tile: TileConfig) -> Resources | None:
        """The needs of a variant's binary for the problem's class, where known; of the nearest heavier form where not exactly."""
        record = self.for_problem(problem).record(variant, tile)
        return record.nearest(problem) if record is not None else None

    def refusal(self, problem: GemmProblem, arch: Arch, variant: Variant, tile: TileConfig) -> Refusal | None:
        """Why the binary may not serve; None where it may, or is not known."""
        return self.for_problem(problem).refusal(arch, variant, tile)

    def covers(self, digest: str) -> bool:
        """Whether kernels of that digest were compiled: the version's compile gate has seen them. Tables ask (toolchain.py)."""
        return digest in self.digests.values()


class ProblemResources:
    """What a table says of one problem's binaries."""

    __slots__ = ("_class", "_digests", "_problem", "_records")

    def __init__(self, table: ResourceTable, problem: GemmProblem) -> None:
        self._digests, self._records = table.digests, table.records
        self._problem, self._class = problem, binary_class(problem)

    def record(self, variant: Variant, tile: TileConfig) -> Record | None:
        """What was compiled for the variant's kernel as it is, and the tile."""
        if self._digests.get(variant.name) != variant.digest:
            return None
        return self._records.get(f"{variant.name} {self._class} {tile_key(self._problem, tile)}")

    def is_sound(self, arch: Arch, variant: Variant, tile: TileConfig) -> bool:
        """Whether the binary may serve whatever the sizes and the epilogue, as far as it is known."""
        record = self.record(variant, tile)
        return record is None or not _is_faulty(record.heavy, arch)

    def refusal(self, arch: Arch, variant: Variant, tile: TileConfig) -> Refusal | None:
        """Why the binary may not serve; None where it may, or is not known."""
        record = self.record(variant, tile)
        return record.refusal(self._problem, arch, tile) if record is not None else None


# Files


def public_version(version: str) -> str:
    """A version without its local part: 3.7.1 for 3.7.1+git1234."""
    return version.partition("+")[0]


def path_of(cc: int, triton: str, directory: Path = DIRECTORY) -> Path:
    """Where the data of a capability and Triton version lie."""
    return directory / f"sm_{cc}-triton{triton}.json"


def listed(directory: Path = DIRECTORY) -> list[tuple[int, str]]:
    """The capabilities and Triton versions there are data for."""
    names = (re.fullmatch(r"sm_(\d+)-triton(.+)", path.stem) for path in directory.glob("*.json"))
    return sorted((int(name[1]), name[2]) for name in names if name)


@lru_cache(maxsize=32)
def known(cc: int, triton: str) -> ResourceTable | None:
    """The packaged data of a capability and Triton version ("3.7.1"; what a build appends to it does not count)."""
    path = path_of(cc, public_version(triton))
    try:
        return loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn_once(f"resource data {path} are ignored: {error}")
        return None


def of_capability(cc: int) -> list[ResourceTable]:
    """The packaged data of a capability, under every Triton version there are any for."""
    versions = [version for listed_cc, version in listed() if listed_cc == cc]
    return [data for version in versions if (data := known(cc, version)) is not None]


def dumps(table: ResourceTable) -> str:
    """A table as a file's text: a line a key, sorted; equal tables give equal text."""
    header = {
        "schema_version": _SCHEMA,
        "capability": f"{table.cc // 10}.{table.cc % 10}",
        "triton": table.triton,
        "columns": _COLUMNS,
        "digests": dict(sorted(table.digests.items())),
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in header.items()]
    rows = [f"  {json.dumps(key)}: {json.dumps(_packed(table.records[key]))}" for key in sorted(table.records)]
    return "\n".join(["{", *lines, ' "binaries": {', ",\n".join(rows), " }", "}", ""])


def loads(text: str) -> ResourceTable:
    """The table in a file's text.

    Raises:
        ValueError: it is no such table, or of another schema.
    """
    data = json.loads(text)
    try:
        if data["schema_version"] != _SCHEMA:
            raise ValueError(f"the schema is {data['schema_version']}; this minblas reads {_SCHEMA}: build the file again")
        major, minor = map(int, data["capability"].split("."))
        records = {key: _unpacked(forms) for key, forms in data["binaries"].items()}
        return ResourceTable(10 * major + minor, data["triton"], data["digests"], records)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no resource data ({type(error).__name__}: {error})") from error


def _packed(record: Record) -> dict[str, Any]:
    forms = {form: getattr(record, form) for form in FORMS}
    return {
        form: needs if isinstance(needs, str) else [needs.shared_bytes, needs.registers, needs.spills, " ".join(needs.instructions)]
        for form, needs in forms.items()
        if needs is not None
    } | ({"at": list(record.at)} if record.at is not None else {})


def _unpacked(forms: Mapping[str, Any]) -> Record:
    heavy, plain, even = (_needs(forms[form]) if form in forms else None for form in FORMS)
    at = forms.get("at")
    return Record(heavy, plain, even, tuple(at) if at else None)


def _needs(packed: Any) -> Needs:
    if isinstance(packed, str):
        return packed
    shared, registers, spills, kinds = packed
    return Resources(shared, registers, spills, tuple(kinds.split()))
