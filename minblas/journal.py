"""The tuner's journal: one JSON line per finished shape, written the moment it is finished.

A tune that is stopped, killed or crashed loses the shape it was at and nothing else: the next one reads the journal, skips what is
done, and keeps away from a candidate that took the device down. One tune at a time writes to it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig
from minblas.errors import MinblasError

VERSION: Final = 1
_SAME: Final = ("gpu", "triton", "torch")  # times taken under other values of these are not comparable


class JournalError(MinblasError, ValueError):
    """A journal that this tune cannot continue."""


def problem_to_dict(problem: GemmProblem) -> dict[str, Any]:
    """The problem as JSON-ready data."""
    return asdict(problem)


def problem_from_dict(data: Mapping[str, Any]) -> GemmProblem:
    """The inverse of `problem_to_dict`."""
    fields = dict(data)
    epilogue = dict(fields.pop("epilogue"))
    parts: dict[str, Any] = {name: _operand(fields.pop(name)) for name in ("a", "b", "out")}
    epilogue |= {name: _operand(epilogue[name]) if epilogue[name] else None for name in ("c", "bias")}
    return GemmProblem(**fields, **parts, epilogue=Epilogue(**epilogue))


def _operand(data: Mapping[str, Any]) -> Operand:
    return Operand(**{**data, "strides": tuple(data["strides"])})


def tile_to_dict(tile: TileConfig | None) -> dict[str, Any] | None:
    """The tile as JSON-ready data."""
    return asdict(tile) if tile is not None else None


def tile_from_dict(data: Mapping[str, Any] | None) -> TileConfig | None:
    """The inverse of `tile_to_dict`."""
    if data is None:
        return None
    return TileConfig(**{**data, "knobs": tuple((name, value) for name, value in data["knobs"])})


def identity(problem: GemmProblem) -> str:
    """Equal for equal problems, whatever process wrote it."""
    return json.dumps(problem_to_dict(problem), sort_keys=True, separators=(",", ":"))


class Journal:
    """An append-only file of JSON lines that starts with the environment it was taken in.

    Attributes:
        path: the file.
        done: the rows of shapes with a winner found in it, by problem identity; the others are tried again.
        faults: why, by (problem identity, variant, tile description), of candidates after which the device was lost.
        suspects: problem identities in whose timing the device was lost while several candidates ran together.

    Raises:
        JournalError: the file is no journal, was taken on another GPU or with another torch or triton, or is being written to.
    """

    def __init__(self, path: Path, environment: Mapping[str, Any]) -> None:
        from filelock import FileLock, Timeout

        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        self.faults: dict[tuple[str, str, str], str] = {}
        self.suspects: set[str] = set()
        self._writing = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._held = FileLock(f"{path}.lock", timeout=0)
        try:
            self._held.acquire()
        except Timeout:
            given = f"another tune is writing to {path}"
            raise JournalError(given, "a journal of its own", "wait for the other one, or give another path") from None
        try:
            self._open(environment)
        except BaseException:
            self._held.release()
            raise

    def _open(self, environment: Mapping[str, Any]) -> None:
        whole = self._read(environment)
        if self.path.exists() and whole < self.path.stat().st_size:
            os.truncate(self.path, whole)  # half a line, left by a process that was killed
        self._file = self.path.open("a", encoding="utf-8")
        if whole == 0:
            self.append({"kind": "header", "version": VERSION, "environment": dict(environment)})

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; it is on disk when this returns."""
        with self._writing:
            self._file.write(json.dumps(row, sort_keys=True) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._held.release()

    def _read(self, environment: Mapping[str, Any]) -> int:
        """Take in the rows that are there; returns the length in bytes of its whole lines."""
        length = 0
        for number, (row, end) in enumerate(read_lines(self.path), 1):
            if number == 1:
                self._check(row, environment)
            else:
                try:
                    self._take(row)
                except (LookupError, TypeError, ValueError, AttributeError) as error:  # edited by hand
                    raise _foreign(self.path, number, f"{type(error).__name__}: {error}") from error
            length = end
        return length

    def _take(self, row: dict[str, Any]) -> None:
        """Take in one row of an earlier run."""
        kind = row.get("kind")
        if kind == "shape" and row["winner"] is not None:
            self.done[_identity_of(row)] = row
        elif kind == "fault":
            self.faults[_identity_of(row), row["variant"], row["tile"]] = row.get("message", "")
        elif kind == "suspects":
            self.suspects.add(_identity_of(row))

    def _check(self, header: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        if header.get("kind") != "header" or header.get("version") != VERSION:
            raise JournalError(
                f"{self.path} begins otherwise than a journal does", f"a tuning journal of version {VERSION}", "give another path"
            )
        then = header.get("environment") or {}
        for name in _SAME:
            if then.get(name) != environment.get(name):
                given = f"{self.path} was taken with {name} {then.get(name)} and this machine has {environment.get(name)}"
                raise JournalError(given, "times that compare", "give another path for this machine's journal")


def read_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The whole rows of a journal, each with the offset of its end. Stops at a last line that was cut off.

    Raises:
        JournalError: a whole line is no row: the file is something else, or was edited.
    """
    if not path.exists():
        return
    end = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):  # to stop here would lose what comes after it
            raise _foreign(path, number, "it is not a JSON object")
        end += len(line)
        yield row, end


def _foreign(path: Path, number: int, why: str) -> JournalError:
    given = f"line {number} of {path} was written by no tune: {why}"
    return JournalError(given, "a tuning journal", "take the line out, or give another path" if number > 1 else "give another path")


def _identity_of(row: Mapping[str, Any]) -> str:
    return identity(problem_from_dict(row["problem"]))


__all__ = [
    "Journal",
    "JournalError",
    "identity",
    "problem_from_dict",
    "problem_to_dict",
    "read_lines",
    "tile_from_dict",
    "tile_to_dict",
]
