"""The problems a running program meets, appended to the file that MINBLAS_RECORD names, and read again to be tuned.

One JSON line for each distinct problem of a process, written where a call chooses its kernel: a warm call never comes here. Lines
are appended by one write each, so that processes may share a file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from heuristics.notices import warn_once
from kernel_zoo.spec import GemmProblem
from minblas import log
from minblas.errors import ArgumentError
from minblas.journal import problem_from_dict, problem_to_dict

VARIABLE: Final = "MINBLAS_RECORD"

_SEEN: Final[set[tuple[str, GemmProblem]]] = set()


def note(problem: GemmProblem) -> None:
    """Record a problem where that is asked for. A file that cannot be written is said once and never fails the call."""
    path = os.environ.get(VARIABLE)
    if not path or (path, problem) in _SEEN:
        return
    _SEEN.add((path, problem))
    try:
        _append(path, json.dumps({"kind": "problem", "problem": problem_to_dict(problem)}, separators=(",", ":")))
    except OSError as error:
        log.once("tune", "%s: problems are not recorded: %s", VARIABLE, error)


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = "\n" + line  # half a line, left by a process that was killed, must not spoil this one
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def recorded(path: str | os.PathLike[str]) -> list[GemmProblem]:
    """The distinct problems of a file that MINBLAS_RECORD named, in order; lines that are none are left out with one warning.

    >>> minblas.tune(minblas.recorded("met.jsonl"))  # doctest: +SKIP

    Raises:
        ArgumentError: there is no such file.
    """
    file = Path(path)
    if not file.is_file():
        remedy = f"run the program with {VARIABLE}={file} in its environment"
        raise ArgumentError(f"there is no file {file}", "one that a program has recorded", remedy)
    found: dict[GemmProblem, None] = {}
    foreign: list[int] = []
    lines = file.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        problem = _parse(line)
        if problem is not None:
            found.setdefault(problem)
        elif line.strip() and line.endswith(b"\n"):  # a last line without an end is still being written, or was cut off
            foreign.append(number)
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        warn_once(f"{file}: line {foreign[0]} is no recorded problem and is left out{more}")
    return list(found)


def _parse(line: bytes) -> GemmProblem | None:
    try:
        row: Any = json.loads(line)
        problem = problem_from_dict(row["problem"]) if row["kind"] == "problem" else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return problem if problem is not None and _is_sound(problem) else None


def _is_sound(problem: GemmProblem) -> bool:
    """Of a type and with sizes that a problem can have: the file may have been edited."""
    try:
        sizes = (problem.batch, problem.m, problem.n, problem.k)
        return all(isinstance(size, int) and size >= 0 for size in sizes) and bool(problem.describe() and problem.least_bytes >= 0)
    except (KeyError, TypeError, ValueError):
        return False
