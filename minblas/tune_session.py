"""What the shapes of one tune share: which variants compete, which picks were bad, the binaries on their way, the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from heuristics import model
from kernel_zoo import build
from kernel_zoo.compile_pool import Answer, CompilePool
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas import dispatch, log, quarantine
from minblas.errors import MinblasError, NoVariantError, VariantError
from minblas.journal import Journal, identity, problem_to_dict
from minblas.tune_report import row_of
from minblas.tune_shape import Bench, DeviceLostError, Pick, ShapeResult, tune_shape

InForce = Callable[[GemmProblem], Any]
Planned = tuple[GemmProblem, list[Pick]]


class TuneAbortedError(MinblasError):
    """A candidate left the GPU unusable; the journal has everything up to it."""


class Benches(Protocol):
    """Makes the bench of a shape."""

    def open(self, problem: GemmProblem) -> AbstractContextManager[Bench]:
        """A bench for one shape."""


class Session:
    """One tune.

    Args:
        allowed: the variants that compete, by name.
        arch: the device as the choice sees it.
        journal: where finished shapes go.
        top_k: candidates per shape.
        in_force: the Selection a problem gets today; None where only `allowed` is to be compared.
        verify_only: time nothing.
    """

    def __init__(
        self, allowed: Mapping[str, Variant], arch: Arch, journal: Journal, top_k: int, in_force: InForce | None, verify_only: bool
    ) -> None:
        self._allowed, self._arch, self._journal = allowed, arch, journal
        self._top_k, self._in_force, self._verify_only = max(top_k, 1), in_force, verify_only
        self._bad: set[Pick] = set()
        self._pending: dict[tuple[GemmProblem, Pick], list[Future[Answer]]] = {}

    def plan(self, todo: Sequence[GemmProblem], pool: CompilePool) -> list[Planned]:
        """Every shape's candidates, their binaries on the way."""
        planned = []
        for problem in todo:
            planned.append((problem, self.picks(problem)))
            for pick in planned[-1][1]:
                self._pending[problem, pick] = submit(self._allowed[pick.variant], problem, pick.tile, self._arch, pool)
        return planned

    def ready(self, planned: Iterable[Planned]) -> Iterator[Planned]:
        """The shapes in order, but one that still waits for its binaries lets those behind it pass."""
        waiting = list(planned)
        while waiting:
            index = next((i for i, (problem, picks) in enumerate(waiting) if self._is_ready(problem, picks)), 0)
            yield waiting.pop(index)

    def picks(self, problem: GemmProblem) -> list[Pick]:
        """The candidates, the pick in force first."""
        shortlist = model.shortlist(problem, self._arch, self._allowed.values(), self._top_k)
        picks = [Pick(candidate.variant, candidate.tile) for candidate in shortlist]
        first = self._pick_in_force(problem)
        if first is not None:
            picks = [first, *(pick for pick in picks if pick != first)][: self._top_k]
        here = identity(problem)
        return [pick for pick in picks if (here, pick.variant, pick.describe()) not in self._journal.faults]

    def run(self, problem: GemmProblem, picks: Sequence[Pick], makers: Benches) -> dict[str, Any]:
        """Tune one shape and write its row.

        Raises:
            TuneAbortedError: the device is lost.
        """
        picks = [pick for pick in picks if pick not in self._bad and not quarantine.reason(pick.variant)]
        try:
            with makers.open(problem) as bench:
                result = tune_shape(
                    problem, picks, bench, compiled=lambda pick: self._compiled(problem, pick), verify_only=self._verify_only
                )
        except DeviceLostError as error:
            raise self._aborted(problem, error) from error
        except (MemoryError, RuntimeError) as error:  # too large for the device: torch's out-of-memory error is a RuntimeError
            result = ShapeResult(problem, note=f"{type(error).__name__}: {error}".splitlines()[0])
        self._report_bad(result)
        row = row_of(result, self._allowed, "verified" if self._verify_only else "shape")
        self._journal.append(row)
        return row

    def _pick_in_force(self, problem: GemmProblem) -> Pick | None:
        if self._in_force is None:
            return None
        try:
            selection = self._in_force(problem)
        except (NoVariantError, VariantError):
            return None
        return Pick(selection.variant, selection.tile) if selection.variant in self._allowed else None

    def _is_ready(self, problem: GemmProblem, picks: Iterable[Pick]) -> bool:
        return all(future.done() for pick in picks for future in self._pending.get((problem, pick), ()))

    def _compiled(self, problem: GemmProblem, pick: Pick) -> str:
        answers = [future.result() for future in self._pending.pop((problem, pick), [])]
        for answer in answers:
            if answer.status == "failed":
                return f"does not compile: {answer.message}"
            if answer.resources is not None and answer.resources.spills:
                return f"spills registers: {answer.resources.spills} accesses to local memory"
        return ""

    def _aborted(self, problem: GemmProblem, error: DeviceLostError) -> TuneAbortedError:
        fault = {"kind": "fault", "problem": problem_to_dict(problem), "variant": error.pick.variant, "tile": error.pick.describe()}
        self._journal.append({**fault, "message": str(error)})
        return TuneAbortedError(
            f"the GPU cannot be used any more after {error} on {problem.describe()}",
            "a new process for the shapes that are left",
            f"run again with resume={str(self._journal.path)!r}: it goes on without this candidate",
        )

    def _report_bad(self, result: ShapeResult) -> None:
        """A pick that was wrong once is tried no more; a user's variant that was wrong serves no more."""
        for trial in result.trials:
            if trial.status not in ("wrong", "failed"):
                continue
            what = f"{trial.pick.describe()} on {result.problem.describe()}"
            log.get("tune").warning("%s is %s and left out: %s", what, trial.status, trial.message)
            if trial.status == "wrong":
                self._bad.add(trial.pick)
                variant = self._allowed[trial.pick.variant]
                error = ArithmeticError(f"tuning {result.problem.describe()} found it wrong: {trial.message}")
                dispatch.QUARANTINE.add(result.problem, self._arch, trial.pick.variant, trial.pick.tile, error)
                if variant.origin == "user":
                    quarantine.suspend(variant, str(error))


def submit(variant: Variant, problem: GemmProblem, tile: TileConfig | None, arch: Arch, pool: CompilePool) -> list[Future[Answer]]:
    """Ask for a pick's binaries: none for an opaque variant, or a recipe that fails."""
    if variant.recipe is None or tile is None or not pool.workers:
        return []
    try:
        specs = [build.specialise(call) for call in variant.plan(problem, tile, arch).calls]
    except Exception as error:  # a recipe's own fault; it is reported where the pick is prepared
        log.get("tune").debug("%s has no launches for %s: %s", variant.name, problem.describe(), error)
        return []
    return [pool.submit(spec, arch.cc) for spec in specs]
