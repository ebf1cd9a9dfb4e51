"""Tuning: candidates verified, timed against each other, and the winners written into a table that the next call reads.

Only when asked for, on scratch copies, on a GPU. Binaries are compiled in worker processes ahead of the shapes that need them, and
every finished shape is in the journal before the next begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from heuristics import store
from heuristics.policy import NET
from kernel_zoo.compile_pool import CompilePool
from kernel_zoo.spec import Variant
from minblas import log, quarantine, registry
from minblas.errors import ArgumentError, DeviceError
from minblas.journal import Journal, identity
from minblas.progress import Progress
from minblas.shapes import Shape, problem_of, unique
from minblas.tune_report import TuneReport, save_table
from minblas.tune_session import Benches, Session, TuneAbortedError

if TYPE_CHECKING:
    import torch


def tune(
    problems: Iterable[Shape],
    *,
    dtype: str = "bf16",
    layout: str = "nn",
    variants: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    budget_s: float | None = None,
    top_k: int = 16,
    resume: str | PathLike[str] | None = None,
    table: str | PathLike[str] | None = None,
    progress: bool = True,
    include_aten: bool = False,
    verify_only: bool = False,
    workers: int | None = None,
    benches: Benches | None = None,
) -> TuneReport:
    """Measure candidates for each shape and keep the winners in a table.

    Args:
        problems: (m, n, k), (batch, m, n, k) or GemmProblems, mixed as one likes.
        dtype: of the tuples; "tf32" is fp32 with TF32 precision.
        layout: of the tuples.
        variants: only these compete, and the best of them wins; all by default, and then the pick in force stays unless beaten.
        device: the GPU.
        budget_s: stop cleanly after so many seconds.
        top_k: candidates measured per shape.
        resume: a journal to write to and, where it exists, to go on from. By default a new one in the user's data directory.
        table: the table file to merge the winners into; the user's own table by default.
        progress: show how far it is.
        include_aten: PyTorch's own product competes too.
        verify_only: check that candidates are right and time nothing; works on a CPU, for small shapes.
        workers: compile processes, by default one per CPU but one; 0 compiles in this process.
        benches: how shapes are run; for tests.

    Raises:
        DeviceError: timing was asked for and there is no GPU.
        UnknownVariantError: a name in `variants` is not known.
        JournalError: `resume` is no journal, or one of another GPU, torch or triton.
        TuneAbortedError: a candidate left the GPU unusable. Everything before it is in the table and the journal.
    """
    from minblas import dispatch
    from minblas.device import arch_of
    from minblas.environment import environment

    began = time.perf_counter()
    place = _device(device, verify_only or benches is not None)
    known = {variant.name: variant for variant in dispatch.registry()}
    allowed = _allowed(known, variants, include_aten)
    todo = unique(problem_of(shape, dtype, layout) for shape in problems)
    arch, env = arch_of(place), environment(place)
    makers = benches or _benches(known, place)
    journal = Journal(Path(resume) if resume is not None else _new_journal(), {"gpu": env.gpu_name, **asdict(env)})
    report = TuneReport(env, str(journal.path), len(todo), verify_only)
    report.rows += [journal.done[key] for problem in todo if (key := identity(problem)) in journal.done]
    todo = [problem for problem in todo if identity(problem) not in journal.done]
    session = Session(
        allowed, arch, journal, top_k, None if variants else lambda problem: dispatch.select(problem, place), verify_only
    )
    try:
        with CompilePool(workers if place.type == "cuda" else 0) as pool, Progress("tuning", len(todo), show=progress) as bar:
            for problem, picks in session.ready(session.plan(todo, pool)):
                if budget_s is not None and time.perf_counter() - began > budget_s:
                    report.left = len(todo) - len(report.fresh)
                    break
                report.fresh.append(row := session.run(problem, picks, makers))
                bar.step(f"{problem.describe()}: {row['summary']}")
    finally:  # what is done is kept, however this ends
        journal.close()
        report.rows += report.fresh
        report.seconds = time.perf_counter() - began
        if not verify_only and report.tuned:
            report.table = str(save_table(report.rows, env, table))
            dispatch.forget_plans()
    log.get("tune").info("%s", report)
    return report


def _device(device: torch.device | str | None, any_device: bool) -> torch.device:
    import torch

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if str(place) == "cuda":
        place = torch.device("cuda", torch.cuda.current_device())
    if place.type != "cuda" and not any_device:
        raise DeviceError(
            f"tuning measures time, and the device is {place}",
            "a CUDA GPU",
            "verify_only=True checks the candidates on a CPU; a table tuned elsewhere can be read through MINBLAS_TABLE",
        )
    return place


def _allowed(known: Mapping[str, Variant], names: Sequence[str] | None, include_aten: bool) -> dict[str, Variant]:
    if names is None:
        return {name: variant for name, variant in known.items() if name != NET or include_aten}
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


def _benches(known: Mapping[str, Variant], place: torch.device) -> Benches:
    from minblas.tune_bench import CpuBenches, GpuBenches

    return CpuBenches(known, place) if place.type == "cpu" else GpuBenches(known, place)


def _new_journal() -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return store.user_dir().parent / "journals" / f"tune-{stamp}.jsonl"


__all__ = ["TuneAbortedError", "TuneReport", "tune"]
