"""Tuning: candidates verified, timed against each other, and the winners written into a table that the next call reads.

Only when asked for, on scratch copies, on a GPU. Binaries are compiled in worker processes ahead of the shapes that need them;
candidates run in a process of their own for each GPU, so that one that crashes or hangs costs itself; and every finished shape is
in the journal before the next begins.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heuristics import store
from heuristics.model import PER_VARIANT
from heuristics.policy import NET
from kernel_zoo.compile_pool import CompilePool
from kernel_zoo.spec import GemmProblem, Variant
from minblas import log, quarantine, registry, settings
from minblas.errors import ArgumentError
from minblas.inside import with_torchs_own
from minblas.journal import Journal, identity
from minblas.progress import Progress
from minblas.shapes import Shape, problems_of, unique
from minblas.tune_devices import is_isolated, places_of
from minblas.tune_lanes import BENCHES, Crew, Work
from minblas.tune_report import TuneReport, save_table
from minblas.tune_session import Session, TuneAbortedError
from minblas.tune_task import Benches, Step, Task

if TYPE_CHECKING:
    import torch


class TuneInterrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a tune. What was done is in the table and the journal; `report` says so."""

    def __init__(self, report: TuneReport) -> None:
        self.report = report
        super().__init__(f"interrupted; resume={report.journal!r} goes on")


@with_torchs_own
def tune(
    problems: Iterable[Shape],
    *,
    dtype: str = "bf16",
    layout: str = "nn",
    variants: Sequence[str] | None = None,
    challengers: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    devices: Sequence[torch.device | str | int] | str | None = None,
    budget_s: float | None = None,
    top_k: int = 16,
    per_variant: int = PER_VARIANT,
    resume: str | PathLike[str] | None = None,
    table: str | PathLike[str] | None = None,
    progress: bool = True,
    include_aten: bool = False,
    verify_only: bool = False,
    workers: int | None = None,
    isolate: bool | None = None,
    step_limit_s: float = 120.0,
    benches: Benches | str | None = None,
) -> TuneReport:
    """Measure candidates for each shape and keep the winners in a table.

    Args:
        problems: (m, n, k), (batch, m, n, k) or GemmProblems, mixed as one likes; `minblas.recorded` reads what a program met. A
            size may be a range: range(1, 257) stands for 1, 2, 3, 4, 6, 8, 12, ..., 192, 256.
        dtype: of the tuples; "tf32" is fp32 with TF32 precision.
        layout: of the tuples.
        variants: only these compete, and the best of them wins; by default all that options(exclude=...) leaves, and then the pick
            in force stays unless beaten.
        challengers: only candidates of these are tried, beside the pick in force, which stays unless beaten. For new kernels: what
            is known of the others' candidates need not be measured again.
        device: the GPU.
        devices: several GPUs of one kind, by name or number, which share the shapes; "all" for every one.
        budget_s: begin no further shape after so many seconds.
        top_k: candidates measured per shape; up to three of them also with their other start (`tune_starts`), where that may pay.
        per_variant: candidates that every variant which can serve sends at least, whatever the model thinks of it; more than 2 may
            make more than top_k of them.
        resume: a journal to write to and, where it exists, to go on from. By default a new one in the user's data directory.
        table: the table file to merge the winners into; the user's own table by default.
        progress: show which journal it writes, and how far it is.
        include_aten: PyTorch's own product competes too.
        verify_only: check that candidates are right and time nothing; works on a CPU, for small shapes.
        workers: compile processes, by default one per CPU but one; 0 compiles in this process.
        isolate: run candidates in a process of their own, which one that crashes, hangs or spoils the GPU takes down alone; by
            default on a GPU. Shapes with a variant that cannot be sent there are tuned in this process, last.
        step_limit_s: seconds one step of an isolated candidate may take before it counts as hung.
        benches: how shapes are run, or, for another process, the "module:function" that makes it; for tests.

    Raises:
        DeviceError: timing was asked for and there is no GPU, or the GPUs are not of one kind.
        UnknownVariantError: a name in `variants` or `challengers` is not known.
        ArgumentError: both of them are given.
        JournalError: `resume` is no journal, one of another GPU, torch or triton, or in use.
        TuneAbortedError: a candidate left the GPU unusable for this process. Everything before it is in the table and the journal.
        TuneInterrupted: Ctrl-C; everything done is in the table and the journal.
    """
    from minblas import dispatch
    from minblas.device import arch_of
    from minblas.environment import environment

    began = time.perf_counter()
    places = places_of(device, devices, any_device=verify_only or benches is not None)
    place, isolated = places[0], is_isolated(isolate, places, benches)
    known = {variant.name: variant for variant in dispatch.registry()}
    if variants and challengers:
        raise ArgumentError("both variants and challengers are given", "one of them", "challengers compete with the pick in force")
    allowed = _allowed(known, variants, include_aten)
    if place.type == "cpu" and variants is None and benches is None:  # what cannot run there would be counted as failed
        allowed = {name: variant for name, variant in allowed.items() if variant.recipe is None or variant.interpretable}
    contenders = _allowed(known, challengers, include_aten) if challengers else None
    allowed |= contenders or {}
    crew = Crew(places, known, allowed, benches or BENCHES, isolated, step_limit_s)
    asked = unique(problem for problem in problems_of(problems, dtype, layout) if not problem.batch_invariant)
    arch, env = arch_of(place), environment(place)
    journal = Journal(Path(resume) if resume is not None else _new_journal(), {"gpu": env.gpu_name, **asdict(env)})
    report = TuneReport(env, str(journal.path), len(asked), verify_only)
    report.rows += [journal.done[key] for problem in asked if (key := identity(problem)) in journal.done]
    todo = [problem for problem in asked if identity(problem) not in journal.done]
    in_force = None if variants else lambda problem: dispatch.select(problem, place)
    session = Session(allowed, arch, journal, top_k, in_force, verify_only, contenders, per_variant)
    try:
        _run(crew, session, todo, report, began + budget_s if budget_s is not None else None, workers, progress)
    except KeyboardInterrupt:
        raise TuneInterrupted(report) from None
    finally:  # what is done is kept, however this ends
        journal.close()
        report.rows += report.fresh
        report.left = len(todo) - len(report.fresh)
        report.faults = session.faults
        report.seconds = time.perf_counter() - began
        if not verify_only and report.tuned:
            report.table = str(save_table(report.rows, env, table))
            dispatch.forget_plans()
    log.get("tune").info("%s", report)
    return report


def _run(
    crew: Crew,
    session: Session,
    todo: Sequence[GemmProblem],
    report: TuneReport,
    until: float | None,
    workers: int | None,
    progress: bool,
) -> None:
    """Let the crew tune; finished rows go into the report as they come."""
    if progress:
        print(f"journal: {report.journal} (should this be killed, resume with it goes on)", file=sys.stderr, flush=True)
    on_gpu = crew.places[0].type == "cuda"
    with CompilePool(workers if on_gpu else 0) as pool, Progress("tuning", len(todo), show=progress) as bar:

        def told(task: Task, step: Step) -> None:
            bar.say(f"{task.problem.describe()}: {step.describe()}")

        def done(problem: GemmProblem, row: dict[str, Any]) -> None:
            report.fresh.append(row)
            bar.step(f"{problem.describe()}: {row['summary']}")

        if todo:
            work = Work(session, session.plan(todo, pool), lambda: until is not None and time.perf_counter() > until, done)
            try:
                crew.serve(work, told)
            finally:
                report.notes += work.notes


def _allowed(known: Mapping[str, Variant], names: Sequence[str] | None, include_aten: bool) -> dict[str, Variant]:
    if names is None:
        excluded = settings.current().exclude
        return {name: variant for name, variant in known.items() if (include_aten if name == NET else name not in excluded)}
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        registry.get(name)
        if why := quarantine.reason(name):
            raise ArgumentError(
                f"variant {name!r} is quarantined: {why}", "a variant whose results are right", "correct it and register it again"
            )
    if include_aten:
        names.append(NET)
    return {name: known[name] for name in names}


def _new_journal() -> Path:
    """Where a tune that is given no journal keeps its own."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return store.user_dir().parent / "journals" / f"tune-{stamp}.jsonl"


__all__ = ["TuneAbortedError", "TuneInterrupted", "TuneReport", "tune"]
