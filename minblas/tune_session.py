"""What the shapes of one tune share: which variants compete, which picks were bad, the binaries on their way, the journal.

A candidate that takes the device down costs itself: it is in the journal, and the shape is tried again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from heuristics import model
from heuristics.legality import Legality
from kernel_zoo import build
from kernel_zoo.compile_pool import Answer, CompilePool
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas import dispatch, log, quarantine
from minblas.errors import MinblasError, NoVariantError, VariantError
from minblas.journal import Journal, identity, problem_to_dict
from minblas.tune_report import row_of
from minblas.tune_shape import DeviceLostError
from minblas.tune_starts import other_starts
from minblas.tune_task import Runner, Task
from minblas.tune_trial import TORCH, Pick, ShapeResult

InForce = Callable[[GemmProblem], Any]
Planned = tuple[GemmProblem, list[Pick]]

_BOTH_STARTS: Final = 3  # candidates that are tried as dependent launches and as others
_MOST_FAULTS: Final = 6  # of one shape; after that something else is wrong than its candidates


class TuneAbortedError(MinblasError):
    """A candidate left the GPU unusable; the journal has everything up to it."""


class Session:
    """One tune.

    Args:
        allowed: the variants that compete, by name.
        arch: the device as the choice sees it.
        journal: where finished shapes go.
        top_k: candidates per shape.
        in_force: the Selection a problem gets today; None where only `allowed` is to be compared.
        verify_only: time nothing.
        challengers: of `allowed`, those whose candidates are tried beside the pick in force; all where None.
        per_variant: candidates that each of these sends at least.
    """

    def __init__(
        self,
        allowed: Mapping[str, Variant],
        arch: Arch,
        journal: Journal,
        top_k: int,
        in_force: InForce | None,
        verify_only: bool,
        challengers: Mapping[str, Variant] | None = None,
        per_variant: int = model.PER_VARIANT,
    ) -> None:
        self._allowed, self._arch, self._journal = allowed, arch, journal
        self._top_k, self._in_force, self._verify_only = max(top_k, 1), in_force, verify_only
        self._challengers = allowed if challengers is None else challengers
        self._per_variant = per_variant
        self._bad: dict[Pick, str] = {}
        self.faults: list[str] = []
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
        """The candidates, the pick in force first; the most promising with both starts."""
        first = self._pick_in_force(problem)
        picks = candidates(problem, self._arch, self._challengers, self._top_k, first, self._per_variant)
        more = other_starts(problem, self._arch, picks[:_BOTH_STARTS], self._allowed)
        return [*picks, *(pick for pick in more if pick not in picks)]

    def run(self, problem: GemmProblem, picks: Sequence[Pick], runner: Runner) -> dict[str, Any]:
        """Tune one shape and write its row.

        Raises:
            TuneAbortedError: the device is lost, and the runner with it.
        """
        here = identity(problem)
        skipped = {pick: why for pick in picks if (why := self._known_bad(pick, here))}
        refused = {pick: why for pick in picks if pick not in skipped and (why := self._compiled(problem, pick))}
        torch = (here, TORCH.variant, TORCH.describe()) not in self._journal.faults
        task = Task(problem, tuple(picks), refused, skipped, self._verify_only, here in self._journal.suspects, torch)
        result = self._result(task, runner)
        self._bad |= report_bad(result, self._allowed, self._arch)
        row = row_of(result, self._allowed, "verified" if self._verify_only else "shape")
        self._journal.append(row)
        return row

    def _known_bad(self, pick: Pick, here: str) -> str:
        fault = self._journal.faults.get((here, pick.variant, pick.describe()))
        if fault is not None:
            return f"took the device down in an earlier run: {fault}"
        return self._bad.get(pick, "") or quarantine.reason(pick.variant)

    def _result(self, task: Task, runner: Runner) -> ShapeResult:
        """What the runner finds, without those candidates that take it down.

        Raises:
            TuneAbortedError: the runner does not survive that.
        """
        for _ in range(_MOST_FAULTS):
            try:
                return runner.run(task)
            except DeviceLostError as error:
                self._record(task.problem, error)
                if not runner.survives:
                    raise self._aborted(task.problem, error) from error
                told = len(error.picks) == 1
                if not told and (task.careful or not error.picks):
                    return ShapeResult(task.problem, note=f"the device was lost, and by no single candidate: {error}")
                task = self._without(task, error.picks[0], error.message) if told else replace(task, careful=True)
        return ShapeResult(task.problem, note=f"given up: the device was lost {_MOST_FAULTS} times")

    def _without(self, task: Task, culprit: Pick, why: str) -> Task:
        if culprit == TORCH:
            return replace(task, torch=False)
        self._bad[culprit] = f"took the device down on {task.problem.describe()}: {why}"
        dispatch.QUARANTINE.add(task.problem, self._arch, culprit.variant, culprit.tile, RuntimeError(self._bad[culprit]))
        return replace(task, refused={**task.refused, culprit: f"took the device down: {why}"})

    def _record(self, problem: GemmProblem, error: DeviceLostError) -> None:
        """What took the device down, into the journal: the next run keeps away from it."""
        where = {"problem": problem_to_dict(problem), "message": error.message}
        if len(error.picks) == 1:
            pick = error.picks[0]
            self._journal.append({"kind": "fault", "variant": pick.variant, "tile": pick.describe(), **where})
        elif error.picks:
            self._journal.append({"kind": "suspects", "picks": [pick.describe() for pick in error.picks], **where})
        self.faults.append(f"{problem.describe()}: {error}")
        log.get("tune").warning("the device was lost on %s: %s", problem.describe(), error)

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
        return TuneAbortedError(
            f"the GPU cannot be used any more after {error} on {problem.describe()}",
            "a new process for the shapes that are left",
            f"run again with resume={str(self._journal.path)!r}: it goes on without it; isolate=True would have done so by itself",
        )


def report_bad(result: ShapeResult, allowed: Mapping[str, Variant], arch: Arch) -> dict[Pick, str]:
    """Say what was wrong or failed. What is wrong serves no more: a pick of the zoo, or all of a user's variant."""
    bad: dict[Pick, str] = {}
    for trial in result.trials:
        if trial.status not in ("wrong", "failed"):
            continue
        what = f"{trial.pick.describe()} on {result.problem.describe()}"
        log.get("tune").warning("%s is %s and left out: %s", what, trial.status, trial.message)
        if trial.status == "wrong":
            bad[trial.pick] = f"was wrong on {result.problem.describe()}"
            variant = allowed[trial.pick.variant]
            error = ArithmeticError(f"tuning {result.problem.describe()} found it wrong: {trial.message}")
            dispatch.QUARANTINE.add(result.problem, arch, trial.pick.variant, trial.pick.tile, error)
            if variant.origin == "user":
                quarantine.suspend(variant, str(error))
    return bad


def candidates(
    problem: GemmProblem,
    arch: Arch,
    allowed: Mapping[str, Variant],
    count: int,
    first: Pick | None = None,
    per_variant: int = model.PER_VARIANT,
) -> list[Pick]:
    """What is worth measuring, by the model; `first` leads, and leaves the others their places where each variant has its share."""
    fitted = next((table.model for table in dispatch.tables(arch) if table.model and table.kinship(arch) == "exact"), None)
    shortlist = model.shortlist(Legality(problem, arch, dispatch.resources(arch)), allowed.values(), count, fitted, per_variant)
    picks = [Pick(candidate.variant, candidate.tile) for candidate in shortlist]
    if first is None:
        return picks
    most = len(picks) + 1 if per_variant > model.PER_VARIANT or first.variant not in allowed else count
    return [first, *(pick for pick in picks if pick != first)][:most]


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
