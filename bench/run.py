"""One `minblas bench`, from the request to the files: on a GPU the sweep against torch.matmul, on a CPU the checked small sweep."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import environment, records, report
from bench.records import CLASSES, ShapeResult
from kernel_zoo.spec import Arch, GemmProblem
from minblas.progress import Progress

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from minblas import timing


_DEFAULT_SUITE: Final = "all-16bit"
_DEFAULT_BUDGET_S: Final = 300.0
_DEFAULT_FOLDER: Final = Path("bench-results")  # of a GPU sweep that was not told where to write


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for; see `minblas bench --help`."""

    suites: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    dtype: str | None = None
    limit: int | None = None
    aten: bool = True
    rounds: int = 5
    warm_up_ms: float = 100.0
    budget_s: float | None = None
    eager: bool = True
    workers: int | None = None
    out: Path | None = None
    plots: Path | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        """Refuse a class that does not exist."""
        unknown = [name for name in self.classes if name not in CLASSES]
        if unknown:
            raise ValueError(f"class {unknown[0]!r} is not known; known: {', '.join(CLASSES)}")


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    environment: dict[str, Any]
    results: list[ShapeResult]
    seconds: float
    picks: list[dict[str, Any]]

    @property
    def faulty(self) -> bool:
        """Some result is wrong, or some shape could not be compiled or launched."""
        return bool(report.faults(self.results))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "environment": self.environment,
            "seconds": round(self.seconds, 1),
            "summary": [line.as_dict() for line in report.by_class(self.results)],
            "picks": self.picks,
            "results": [asdict(result) for result in self.results],
        }


def select_cases(request: Request) -> list[tuple[str, GemmProblem]]:
    """The suites' problems that the request keeps, each under the first suite it is in, classes alternating.

    Raises:
        ValueError: a suite is not known.
    """
    from bench.sweep import spread
    from heuristics import suites

    names = [name for given in request.suites for name in given.split(",")] or [_DEFAULT_SUITE]
    found: dict[GemmProblem, str] = {}
    for name in names:
        for problem in suites.problems(name, request.dtype):
            if not request.classes or problem.shape_class in request.classes:
                found.setdefault(problem, name)
    ordered = spread([(suite, problem) for problem, suite in found.items()])
    if request.limit is None or request.limit >= len(ordered):
        return ordered
    return [ordered[i * len(ordered) // request.limit] for i in range(request.limit)]


def on_gpu(request: Request, screen: Console, device: torch.device, engine: timing.Engine | None = None) -> Done:
    """Choose, compile ahead in parallel, check and time on a device; `engine` is how launches are timed, CUDA graphs by default."""
    import minblas
    from bench import sweep

    began = time.perf_counter()
    said = _Voice(screen, request.as_json)
    where = environment.describe(device)
    cases = select_cases(request)
    budget = request.budget_s or _DEFAULT_BUDGET_S
    said(f"{where['gpu_name']}, torch {where['torch']}, triton {where['triton']}; {len(cases)} shapes, at most {budget:.0f} s")
    excluded = frozenset() if request.aten else frozenset({"aten"})
    options = sweep.Options(request.rounds, budget, request.eager, request.warm_up_ms)
    with minblas.options(exclude=excluded | minblas.options.get().exclude):
        plans = sweep.choose_all(cases, device)
        said(f"chosen in {time.perf_counter() - began:.1f} s; compiling on {request.workers or os.cpu_count()} processes")
        warm = minblas.warmup([plan.problem for plan in plans if plan.selection], device=device, workers=request.workers)
        where |= {"compile_seconds": round(warm.seconds, 1), "binaries": warm.binaries}
        where |= {"rounds": request.rounds, "warm_up_ms": request.warm_up_ms, "aten": request.aten}
        said(str(warm))
        results = list(_tracked(sweep.sweep(plans, device, options, engine=engine, began=began), len(plans), request.as_json))
    done = Done(where, results, time.perf_counter() - began, [])
    _present(done, request, screen, missed=len(plans) - len(results))
    _print_worst(done, request, screen)
    return done


def on_cpu(request: Request, arch: Arch, screen: Console) -> Done:
    """Check small sizes in the interpreter, then show what `arch` would get on real ones (those of the suites, where given)."""
    import torch

    from bench import small
    from kernel_zoo.catalog import VARIANTS
    from minblas import registry

    began = time.perf_counter()
    said = _Voice(screen, request.as_json)
    tables = registry.tables(arch)
    chosen = [case for case in small.cases() if _kept(case.problem, request)]
    chosen = chosen[: request.limit]
    said(
        f"No NVIDIA GPU: {len(chosen)} small sizes, chosen as for {arch.name}, run through Triton's interpreter on the CPU and are "
        "checked against float64: less than a minute. A CPU says nothing about speed, so there are no ratios."
    )
    results = list(_tracked(small.check_all(chosen, arch, VARIANTS, tables), len(chosen), request.as_json))
    wanted = [problem for _, problem in select_cases(request)] if request.suites else small.real_problems()
    picks = small.picks(wanted, arch, VARIANTS, tables)
    done = Done(environment.describe(torch.device("cpu")), results, time.perf_counter() - began, [pick.as_dict() for pick in picks])
    if not request.as_json:
        screen.print(report.shape_table(results, f"Small sizes, chosen for {arch.name}, run on the CPU"))
        said(_tally(done))
        screen.print(small.pick_table(picks, arch))
    _save(done, request, said)
    return done


def _tally(done: Done) -> str:
    counts = Counter(result.status for result in done.results)
    wrong = counts["wrong"] + counts["failed"]
    return f"{counts['ok']} right, {counts['unserved']} refused, {wrong} wrong or failed, in {done.seconds:.0f} s\n"


def _kept(problem: GemmProblem, request: Request) -> bool:
    of_class = not request.classes or problem.shape_class in request.classes
    return of_class and request.dtype in (None, problem.dtype, problem.precision)


class _Voice:
    """Lines for a reader: none where the output is JSON."""

    def __init__(self, screen: Console, silent: bool) -> None:
        self._screen, self._silent = screen, silent

    def __call__(self, line: str) -> None:
        if not self._silent:
            self._screen.print(line, highlight=False)


def _tracked(results: Iterable[ShapeResult], total: int, silent: bool) -> Iterator[ShapeResult]:
    """The results as they come, with a progress bar on a terminal and a line now and then in a log."""
    with Progress("shapes", total, show=not silent) as bar:
        for result in results:
            bar.step(result.name)
            yield result


def _present(done: Done, request: Request, screen: Console, missed: int) -> None:
    """The summary, and the files."""
    said = _Voice(screen, request.as_json)
    if not request.as_json:
        screen.print(report.class_table(done.results))
    counts = done.environment
    said(
        f"{len(done.results)} shapes in {done.seconds:.0f} s; {counts['binaries']} binaries compiled and loaded in "
        f"{counts['compile_seconds']} s; {len(report.faults(done.results))} wrong or failed"
    )
    if missed:
        lost = done.results and done.results[-1].status == "failed"
        said(f"{missed} shapes were not reached: " + ("the device was lost" if lost else "the budget was spent (--budget)"))
    _save(done, request, said)


def _print_worst(done: Done, request: Request, screen: Console) -> None:
    """By name: what is wrong, and what loses most."""
    if request.as_json:
        return
    broken = report.faults(done.results)
    if broken:
        screen.print(report.shape_table(broken, "Wrong or failed"))
    slow = [result for result in report.slowest(done.results) if result.ratio is not None and result.ratio < 1]
    if slow:
        screen.print(report.shape_table(slow, "Slowest against torch.matmul"))


def _save(done: Done, request: Request, said: _Voice) -> None:
    out = request.out
    if out is None and not request.as_json and any(result.time_us for result in done.results):
        out = _DEFAULT_FOLDER / f"{done.environment.get('arch', 'gpu')}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    if out is not None:
        records.write(out, done.environment, done.results)
        said(f"results: {out}")
    folder = request.plots or (out.with_suffix("") if out is not None else None)
    if folder is not None:
        for path in _draw(done, folder, said):
            said(f"report: {path}" if path.suffix == ".html" else f"plot: {path}")


def _draw(done: Done, folder: Path, said: _Voice) -> list[Path]:
    """The pictures and the page that holds them, as far as there is something to show."""
    from bench import html, plots

    try:
        pictures = plots.draw(done.results, done.environment, folder)
        return [*pictures, html.write(done.results, done.environment, pictures, folder / "report.html")] if pictures else []
    except ImportError as error:
        said(f"no plots and no HTML report: {error.name} is not installed (pip install 'minblas[bench]')")
        return []


__all__ = ["Done", "Request", "on_cpu", "on_gpu", "select_cases"]
