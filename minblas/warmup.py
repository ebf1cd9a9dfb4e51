"""Compiling and loading what a set of shapes will need, so that no first call has to.

Shapes that lead to the same binaries cost one compilation: a whole range of M is a handful. Without a GPU the binaries of the
device that options(arch=...) names are compiled into Triton's disk cache: an image can be built with them in it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heuristics.table import problem_key
from kernel_zoo import build
from kernel_zoo.compile_pool import Answer, CompilePool
from kernel_zoo.compile_worker import compile_here
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas import dispatch, log
from minblas.breakpoints import MOST_EXACT, Walk, walk
from minblas.errors import ArgumentError, MinblasError
from minblas.progress import Progress
from minblas.shapes import problem_of
from minblas.warmup_report import WarmupReport, binaries_of, picks_of

if TYPE_CHECKING:
    import torch

Sizes = int | range
WarmShape = GemmProblem | tuple[Sizes, ...]

_FEW: Final = 3  # binaries; fewer are compiled sooner here than a worker process starts


@dataclass(frozen=True, slots=True)
class Need:
    """What one problem needs: a pick and its binaries; none where the variant launches by itself, no pick where none serves."""

    variant: str = ""
    tile: TileConfig | None = None
    specs: tuple[build.Specialisation, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """Shapes that differ in M alone, and what they need."""

    label: str
    problem_at: Callable[[int], GemmProblem]
    values: Sequence[int]


def warmup(
    shapes: Iterable[WarmShape],
    *,
    dtype: object = "bf16",
    layout: str = "nn",
    device: torch.device | str | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> WarmupReport:
    """Compile, in parallel, and load what these shapes need.

    Args:
        shapes: (m, n, k), (batch, m, n, k) or GemmProblems; a size may be a range: (range(1, 257), 4096, 4096).
        dtype: of the tuples; "tf32" is fp32 with TF32 precision.
        layout: of the tuples.
        device: the GPU; without one, binaries are only compiled.
        workers: compile processes, by default one per CPU but one; 0 compiles in this process.
        progress: show on stderr how many binaries are compiled, and about when all are.

    Raises:
        ArgumentError: a shape is none.
    """
    import torch

    from minblas.device import arch_of

    began = time.perf_counter()
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    arch = arch_of(place)
    failures: list[str] = []
    walks = [(line, _walked(line, arch, failures)) for shape in shapes for line in _lines(shape, dtype, layout)]
    chosen = time.perf_counter()
    needs: dict[tuple[build.Specialisation, ...], tuple[Line, int, Need]] = {}
    for line, found in walks:
        for m, need in found.answers.items():
            if need.specs:
                needs.setdefault(need.specs, (line, m, need))
    answers = _compile(list(dict.fromkeys(spec for specs in needs for spec in specs)), arch, workers, failures, progress)
    loaded: dict[build.Specialisation, bool] = {}
    if place.type == "cuda":
        for line, m, need in needs.values():
            _load(need, line.problem_at(m), arch, place, loaded, failures)
    every = [need for _, found in walks for need in found.answers.values()]
    report = WarmupReport(
        device=str(place) if place.type == "cuda" else f"cpu, for {arch.name}",
        shapes=sum(found.total for _, found in walks),
        chosen=len(every),
        plans=len({(need.variant, need.tile) for need in every if need.specs}),
        binaries=len(answers),
        cached=sum(answer.cached for answer in answers.values()),
        loaded=len(loaded),
        aten=sum(bool(need.variant) and not need.specs and need.tile is None for need in every),
        seconds=time.perf_counter() - began,
        choosing_seconds=chosen - began,
        picks=picks_of([(line.label, found) for line, found in walks]),
        needs=binaries_of([(line.label, found) for line, found in walks], answers, loaded),
        failures=tuple(dict.fromkeys(failures)),
    )
    log.get("warmup").info("%s", report)
    return report


def _lines(shape: WarmShape, dtype: object, layout: str) -> Iterator[Line]:
    """A shape as lines along M: one for every combination of its other sizes."""
    if isinstance(shape, GemmProblem):
        yield Line(shape.describe(), lambda m: shape, [shape.m])
        return
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
    if len(sizes) not in (3, 4) or not all(isinstance(size, int | range) for size in sizes):
        needed = "whole numbers or ranges of them: (m, n, k) or (batch, m, n, k)"
        raise ArgumentError(f"a shape is {shape!r}", needed, "pass a list of those")
    batch, m, n, k = sizes if len(sizes) == 4 else (1, *sizes)
    values = sorted((m,) if isinstance(m, int) else m)
    others = itertools.product(*((size,) if isinstance(size, int) else size for size in (batch, n, k)))
    for b, cols, depth in others:

        def problem_at(m: int, b: int = b, cols: int = cols, depth: int = depth) -> GemmProblem:
            return problem_of((b, m, cols, depth), dtype, layout)

        for value in values[:1] + values[-1:]:
            problem_at(value)  # a shape that is none is an error before anything is compiled
        yield Line(f"{f'{b} x ' if b != 1 else ''}M x {cols} x {depth} {dtype} {layout}", problem_at, values)


def _walked(line: Line, arch: Arch, failures: list[str]) -> Walk[Need]:
    """What every M of a line needs."""
    marks: set[int] = set()
    if len(line.values) > 1:
        here = problem_key(line.problem_at(line.values[0]))
        rows = (entry.key for table in dispatch.tables(arch) for entry in table.entries)
        marks = {key.m for key in rows if (key.n, key.k, key.batch) == (here.n, here.k, here.batch)}
    return walk(line.values, lambda m: _need(line.problem_at(m), arch, failures), marks, MOST_EXACT)


def _need(problem: GemmProblem, arch: Arch, failures: list[str]) -> Need:
    """What serves a problem. Empty products need nothing."""
    if problem.empty:
        return Need()
    try:
        selection = dispatch.select(problem, arch)
    except MinblasError as error:
        failures.append(f"{problem.describe()}: {error}")
        return Need()
    variant = dispatch.get(selection.variant)
    if variant.recipe is None or selection.tile is None:
        return Need(variant.name)
    return Need(variant.name, selection.tile, _specialisations(variant, problem, selection.tile, arch, failures))


def _specialisations(
    variant: Variant, problem: GemmProblem, tile: TileConfig, arch: Arch, failures: list[str]
) -> tuple[build.Specialisation, ...]:
    try:
        return tuple(build.specialise(call) for call in variant.plan(problem, tile, arch).calls)
    except Exception as error:  # a registered recipe is the user's code
        failures.append(f"{variant.name} on {problem.describe()}: {type(error).__name__}: {error}")
        return ()


def _compile(
    specs: list[build.Specialisation], arch: Arch, workers: int | None, failures: list[str], progress: bool
) -> dict[build.Specialisation, Answer]:
    """Into the disk cache: in worker processes, and here what those cannot take."""
    answers: dict[build.Specialisation, Answer] = {}
    with CompilePool(0 if len(specs) < _FEW else workers) as pool, Progress("compiling", len(specs), show=progress) as bar:
        futures = [(spec, pool.submit(spec, arch.cc)) for spec in specs]
        for spec, future in futures:
            answer = future.result()
            answers[spec] = answer = _compile_here(spec, arch) if answer.status == "unknown" else answer
            if answer.message:
                failures.append(f"{spec.kernel.__name__}: {answer.message}")
            bar.step(spec.kernel.__name__)
    return answers


def _compile_here(spec: build.Specialisation, arch: Arch) -> Answer:
    from kernel_zoo import interpret

    with interpret.LOCK:  # the interpreter patches triton's language while it runs
        return compile_here(spec, arch.cc, read=False)


def _load(
    need: Need,
    problem: GemmProblem,
    arch: Arch,
    device: torch.device,
    loaded: dict[build.Specialisation, bool],
    failures: list[str],
) -> None:
    """Load a pick's binaries on the device, and note which are loaded now and whether they were before."""
    from minblas import launch
    from minblas.binaries import BINARIES

    variant = dispatch.get(need.variant)
    try:
        before = BINARIES.holds(variant.plan(problem, need.tile, arch), device) if need.tile is not None else False
        launch.prepare(variant, problem, need.tile, arch, device)
    except Exception as error:  # the driver's or the compiler's; the first call would meet it too
        tile = need.tile.describe() if need.tile is not None else ""
        failures.append(f"{variant.name} {tile} on {problem.describe()}: {type(error).__name__}: {error}")
    else:
        for spec in need.specs:
            loaded.setdefault(spec, before)


__all__ = ["WarmupReport", "warmup"]
