"""What the `minblas resources` commands do: build the data of a capability with the Triton that is installed, and look for gaps."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from heuristics import resources
from heuristics.archs import get_arch
from heuristics.atomic import locked, replace_text
from heuristics.resources import Record, ResourceTable
from kernel_zoo import catalog, census
from kernel_zoo.spec import FORMS, Arch, Variant

CAPABILITIES: Final = ("sm_90", "sm_80", "sm_89", "sm_100", "sm_120", "sm_86")
_SAVE_EVERY: Final = 100  # keys


@dataclass(frozen=True, slots=True)
class Gap:
    """What a file lacks: keys that are candidates' and not in it, and variants of which it has another kernel."""

    cc: int
    triton: str
    keys: int
    missing: int
    stale: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing is missing."""
        return not self.missing and not self.stale

    def __str__(self) -> str:
        stale = f"; the kernels of {', '.join(self.stale)} have changed since" if self.stale else ""
        return f"sm_{self.cc} triton {self.triton}: {self.keys} keys, {self.missing} missing{stale}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "arch": f"sm_{self.cc}",
            "triton": self.triton,
            "keys": self.keys,
            "missing": self.missing,
            "stale": list(self.stale),
        }


@dataclass(frozen=True, slots=True)
class Built:
    """What a build did.

    Attributes:
        compiled: forms that were compiled now.
        seconds: it took.
        left: keys that are still to be compiled, in some form.
    """

    path: Path
    keys: int
    compiled: int
    seconds: float
    left: int

    def __str__(self) -> str:
        rate = f", {self.seconds / self.compiled:.2f} s each" if self.compiled else ""
        return f"{self.path.name}: {self.compiled} forms compiled{rate}; {self.keys - self.left} of {self.keys} keys complete"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "path": str(self.path),
            "keys": self.keys,
            "compiled": self.compiled,
            "seconds": round(self.seconds, 1),
            "left": self.left,
        }


def device(name: str) -> Arch:
    """The device that stands for a capability; of sm_86 none is listed, and it has the limits of sm_89.

    Raises:
        ValueError: it is not known.
    """
    if name == "sm_86":
        return replace(get_arch("sm_89"), name="sm_86", capability=(8, 6))
    return get_arch(name)


def build(
    arch: Arch,
    triton: str,
    *,
    workers: int | None = None,
    deadline: float | None = None,
    directory: Path = resources.DIRECTORY,
    variants: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Built:
    """Compile what the data of a capability lack, and write them every hundred keys and at the end, an interrupt included.

    Of certain variants only, where they are named: what the file has of the others stays as it is.

    Raises:
        ValueError: one that is named is not in the catalog.
    """
    started = time.monotonic()
    path = resources.path_of(arch.cc, triton, directory)
    zoo = _named(variants)
    todo = census.items(zoo, arch)
    digests = {item.variant.name: item.variant.digest for item in todo}
    known = _known(path, digests, {item.key for item in todo})
    others = _others(path, {variant.name for variant in zoo}) if variants else ResourceTable(arch.cc, triton)
    compiled, saved = 0, started

    def save() -> None:
        records = {item.key: Record(**known[item.key], at=item.at) for item in todo if known.get(item.key)}
        compiled_variants = {key.split()[0] for key in records}
        present = {name: digest for name, digest in digests.items() if name in compiled_variants}
        _write(path, ResourceTable(arch.cc, triton, {**others.digests, **present}, {**others.records, **records}))

    with _scratch_cache(), contextlib.closing(census.measure(todo, arch, known, workers)) as found:
        try:
            for key, form, needs in found:
                known.setdefault(key, {})[form] = needs
                compiled += 1
                if compiled % _SAVE_EVERY == 0:
                    save()
                    rate, saved = (time.monotonic() - saved) / _SAVE_EVERY, time.monotonic()
                    say(f"{path.name}: {compiled} compiled, {len(known)} of {len(todo)} keys, {rate:.2f} s each")
                if deadline is not None and time.monotonic() > deadline:
                    break
        finally:
            save()
    left = sum(census.next_form(known.get(item.key, {}), arch) is not None for item in todo)
    return Built(path, len(todo), compiled, time.monotonic() - started, left)


def _named(names: Sequence[str] | None) -> list[Variant]:
    """The catalog's variants of those names; all where none is named."""
    known = {variant.name: variant for variant in catalog.VARIANTS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"variant {unknown[0]!r} is not in the catalog; known: {', '.join(known)}")
    return [known[name] for name in names] if names else list(catalog.VARIANTS)


def _others(path: Path, names: set[str]) -> ResourceTable:
    """What a file has of variants that are not named."""
    table = _load(path) or ResourceTable(0, "")
    digests = {name: digest for name, digest in table.digests.items() if name not in names}
    return replace(table, digests=digests, records={key: r for key, r in table.records.items() if key.split()[0] in digests})


def gaps(directory: Path = resources.DIRECTORY) -> list[Gap]:
    """What each file lacks; a file that is missing for one of the Triton versions that others have lacks everything."""
    versions = sorted({triton for _, triton in resources.listed(directory)})
    return [_gap(device(name), triton, directory) for triton in versions for name in CAPABILITIES]


def _gap(arch: Arch, triton: str, directory: Path) -> Gap:
    todo = census.items(catalog.VARIANTS, arch)
    path = resources.path_of(arch.cc, triton, directory)
    table = _load(path)
    digests = {item.variant.name: item.variant.digest for item in todo}
    stale = tuple(sorted(name for name in table.digests if digests.get(name) != table.digests[name])) if table else ()
    known = _forms(table) if table else {}
    missing = sum(item.variant.name in stale or census.next_form(known.get(item.key, {}), arch) is not None for item in todo)
    return Gap(arch.cc, triton, len(todo), missing, stale)


def rows(archs: Iterable[str], *, faulty: bool = False, directory: Path | None = None) -> Iterator[dict[str, Any]]:
    """The forms in the files of some capabilities, or those that are refused, as a table's rows."""
    for name in archs:
        arch = device(name)
        for cc, triton in resources.listed(directory or resources.DIRECTORY):
            table = _load(resources.path_of(cc, triton, directory or resources.DIRECTORY)) if cc == arch.cc else None
            for key, forms in _forms(table).items() if table is not None else ():
                for form, needs in forms.items():
                    if not (faulty and census.is_clean(needs, arch)):
                        yield {"arch": f"sm_{cc}", "triton": triton, "key": key, "form": form, **_columns(needs)}


def _columns(needs: census.Needs) -> dict[str, Any]:
    if isinstance(needs, str):
        return {"shared_bytes": None, "registers": None, "spills": None, "instructions": needs}
    kinds = " ".join(needs.instructions)
    return {"shared_bytes": needs.shared_bytes, "registers": needs.registers, "spills": needs.spills, "instructions": kinds}


def _known(path: Path, digests: Mapping[str, str], keys: set[str]) -> dict[str, dict[str, census.Needs]]:
    """What a file already has of kernels that are as they were, and of tiles that are still candidates."""
    table = _load(path)
    if table is None:
        return {}
    current = {name for name, digest in table.digests.items() if digests.get(name) == digest}
    return {key: forms for key, forms in _forms(table).items() if key in keys and key.split()[0] in current}


def _load(path: Path) -> ResourceTable | None:
    return resources.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _forms(table: ResourceTable) -> dict[str, dict[str, census.Needs]]:
    pairs = ((key, {form: getattr(record, form) for form in FORMS}) for key, record in table.records.items())
    return {key: {form: needs for form, needs in forms.items() if needs is not None} for key, forms in pairs}


def _write(path: Path, table: ResourceTable) -> None:
    """In one step: a kill leaves the old file or the new one."""
    with locked(path):
        replace_text(path, resources.dumps(table))


@contextlib.contextmanager
def _scratch_cache() -> Iterator[None]:
    """A Triton cache that goes away: thousands of binaries nobody will launch."""
    name, before = tempfile.mkdtemp(prefix="minblas-resources-"), os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = name
    try:
        yield
    finally:
        os.environ.pop("TRITON_CACHE_DIR")
        if before is not None:
            os.environ["TRITON_CACHE_DIR"] = before
        shutil.rmtree(name, ignore_errors=True)
