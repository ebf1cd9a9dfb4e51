"""Suites of GEMM shapes, as data (suites.json), each with its source: what is tuned on and what results are reported over."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from kernel_zoo.spec import GemmProblem

_HALF: Final = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of a suite. dtype "tf32" is fp32 with TF32 precision."""

    batch: int
    m: int
    n: int
    k: int
    layout: str
    dtype: str

    @property
    def problem(self) -> GemmProblem:
        """The problem over contiguous matrices."""
        tf32 = self.dtype == "tf32"
        dtype = "fp32" if tf32 else self.dtype
        return GemmProblem.of(self.m, self.n, self.k, dtype, self.layout, batch=self.batch, precision="tf32" if tf32 else "")


@dataclass(frozen=True)
class Suite:
    """A named list of shapes and where it comes from. One for fitting the model is reported over by nobody: no group has it."""

    name: str
    source: str
    cases: tuple[Case, ...]
    fitting: bool = False

    @cached_property
    def problems(self) -> tuple[GemmProblem, ...]:
        """Every case as a problem."""
        return tuple(case.problem for case in self.cases)


def _load() -> dict[str, Suite]:
    suites = json.loads(Path(__file__).with_name("suites.json").read_text(encoding="utf-8"))["suites"]
    return {
        name: Suite(name, suite["source"], tuple(Case(*row) for row in suite["problems"]), suite.get("fitting", False))
        for name, suite in suites.items()
    }


SUITES: Final[dict[str, Suite]] = _load()

#: Selections across all suites but those for fitting. Batched shapes are a class of their own and are asked for by name.
GROUPS: Final[dict[str, Callable[[Case], bool]]] = {
    "all": lambda case: True,
    "all-16bit": lambda case: case.dtype in _HALF and case.batch == 1,
    "all-16bit-batched": lambda case: case.dtype in _HALF and case.batch > 1,
    "all-fp32": lambda case: case.dtype == "fp32",
    "all-tf32": lambda case: case.dtype == "tf32",
    "all-fp64": lambda case: case.dtype == "fp64",
}


def cases(names: str | Iterable[str], dtype: str | None = None) -> list[Case]:
    """The distinct cases of suites or groups, in order.

    Args:
        names: a suite, a group ("all-16bit"), or several of either.
        dtype: keep only this type: "bf16", "tf32", ..., or "16bit" for fp16 and bf16.

    Raises:
        ValueError: a name is not known; the message gives the nearest.
    """
    wanted = {None: None, "16bit": _HALF}.get(dtype, (dtype,))
    found: dict[Case, None] = {}
    for name in [names] if isinstance(names, str) else names:
        for case in _cases_of(name):
            if wanted is None or case.dtype in wanted:
                found.setdefault(case)
    return list(found)


def problems(names: str | Iterable[str], dtype: str | None = None) -> list[GemmProblem]:
    """The distinct problems of suites or groups; see `cases`."""
    return [case.problem for case in cases(names, dtype)]


def _cases_of(name: str) -> Iterable[Case]:
    if name in SUITES:
        return SUITES[name].cases
    if name in GROUPS:
        return [case for suite in SUITES.values() if not suite.fitting for case in suite.cases if GROUPS[name](case)]
    known = [*SUITES, *GROUPS]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"suite {name!r} is not known; {hint}known: {', '.join(known)}")
