"""The sweep on a GPU: every shape chosen, compiled ahead in parallel, checked, then timed against torch.matmul.

Nothing here knows a kernel. The same code runs on a CPU with an engine that does not measure, which is how it is tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import baselines
from bench.records import ShapeResult
from heuristics.choose import NoVariantError, Selection
from kernel_zoo.spec import GemmProblem
from minblas import dispatch, launch, timing
from minblas.buffers import Bank
from minblas.device import arch_of
from minblas.oracle import Oracle, exact_affordable

if TYPE_CHECKING:
    import torch

Progress = Callable[[ShapeResult], None]

_EAGER_SECONDS: Final = 0.01  # of back-to-back calls per rival
_EAGER_CALLS: Final = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """What will serve a problem: the selection, or why there is none."""

    problem: GemmProblem
    suite: str
    selection: Selection | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How to sweep.

    Attributes:
        rounds: interleaved rounds a shape.
        budget_s: stop timing when it is spent; shapes left over are not reported. None: no limit.
        eager: also take wall time per public call.
        workers: compile processes; one per CPU by default.
        target_us: device time of one replay of a shape's graph.
    """

    rounds: int = timing.ROUNDS
    budget_s: float | None = None
    eager: bool = True
    workers: int | None = None
    target_us: float = timing.TARGET_US


def choose_all(cases: Sequence[tuple[str, GemmProblem]], device: torch.device) -> list[Plan]:
    """What the runtime, with the options in force, picks for each (suite, problem)."""
    plans = []
    for suite, problem in cases:
        try:
            plans.append(Plan(problem, suite, dispatch.select(problem, device)))
        except NoVariantError as error:
            plans.append(Plan(problem, suite, None, str(error)))
    return plans


def spread(cases: Sequence[tuple[str, GemmProblem]]) -> list[tuple[str, GemmProblem]]:
    """The cases in an order in which every stretch holds every class alike, so that a budget cuts all of them short equally."""
    by_class: dict[str, list[tuple[str, GemmProblem]]] = {}
    for case in cases:
        by_class.setdefault(case[1].shape_class, []).append(case)
    placed = [((rank + 0.5) / len(group), case) for group in by_class.values() for rank, case in enumerate(group)]
    return [case for _, case in sorted(placed, key=lambda item: item[0])]


def compile_ahead(plans: Sequence[Plan], device: torch.device, workers: int | None = None) -> float:
    """Compile every binary the plans need in worker processes, into triton's disk cache; the seconds it took."""
    from kernel_zoo.build import specialise
    from kernel_zoo.gate import compile_all

    arch = arch_of(device)
    variants = {variant.name: variant for variant in dispatch.registry()}
    jobs = []
    for plan in plans:
        if plan.selection is not None and plan.selection.tile is not None:
            recipe = variants[plan.selection.variant].plan(plan.problem, plan.selection.tile, arch)
            jobs += [(specialise(call), arch.cc) for call in recipe.calls]
    begin = time.perf_counter()
    compile_all(jobs, workers, read=False)
    return time.perf_counter() - begin


def sweep(
    plans: Sequence[Plan],
    device: torch.device,
    options: Options = Options(),
    *,
    engine: timing.Engine | None = None,
    progress: Progress | None = None,
    began: float | None = None,
) -> Iterator[ShapeResult]:
    """Check and time every plan, in order, until the budget is spent.

    Args:
        plans: what to measure.
        device: where.
        options: how.
        engine: how launches are timed; CUDA graphs by default.
        progress: told of every result.
        began: `time.perf_counter()` from which the budget counts; now by default.
    """
    began = time.perf_counter() if began is None else began
    engine = engine or timing.CudaEngine(device)
    bank = Bank(device)
    for plan in plans:
        if options.budget_s is not None and time.perf_counter() - began > options.budget_s:
            return
        result = measure(plan, device, bank, engine, options)
        if progress is not None:
            progress(result)
        yield result


def measure(plan: Plan, device: torch.device, bank: Bank, engine: timing.Engine, options: Options) -> ShapeResult:
    """One shape: prepared, checked on poisoned output, timed against torch."""
    problem, selection = plan.problem, plan.selection
    if selection is None:
        return ShapeResult.of(problem, plan.suite, status="unserved", message=plan.refused)
    found: dict[str, Any] = {
        "variant": selection.variant,
        "tile": selection.tile.describe() if selection.tile is not None else "",
        "rung": selection.rung,
        "estimate_us": selection.estimate.time_us if selection.estimate is not None else None,
    }
    try:
        return _measure(plan, selection, found, device, bank, engine, options)
    except Exception as error:  # a sweep reports a shape that cannot be compiled or launched and goes on to the next
        message = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        return ShapeResult.of(problem, plan.suite, **{**found, "status": "failed", "message": message})


def _measure(
    plan: Plan,
    selection: Selection,
    found: dict[str, Any],
    device: torch.device,
    bank: Bank,
    engine: timing.Engine,
    options: Options,
) -> ShapeResult:
    problem = plan.problem
    prepared = _prepare(problem, selection, device)
    oracle = Oracle(problem, device, exact=exact_affordable(problem, arch_of(device)))
    prepared(oracle.slots, oracle.alpha, oracle.beta)
    fault = oracle.verdict()
    del oracle  # a large product's operands and references, before the buffers it is timed on are made
    found["compile_seconds"] = prepared.compile_seconds
    if fault:
        return ShapeResult.of(problem, plan.suite, **{**found, "status": "wrong", "message": fault})
    sets = bank.sets(problem)
    with baselines.torch_precision(problem.precision) if device.type == "cuda" else nullcontext():
        found |= _times(problem, prepared, sets, engine, options)
        if options.eager:
            found |= _eager_times(problem, sets[0], device)
    return ShapeResult.of(problem, plan.suite, **found)


def _prepare(problem: GemmProblem, selection: Selection, device: torch.device) -> launch.Prepared:
    variant = next(variant for variant in dispatch.registry() if variant.name == selection.variant)
    return launch.prepare(variant, problem, selection.tile, arch_of(device), device)


def _times(
    problem: GemmProblem,
    prepared: launch.Prepared,
    sets: Sequence[dict[str, torch.Tensor]],
    engine: timing.Engine,
    options: Options,
) -> dict[str, Any]:
    """Device time of ours and torch's, interleaved."""
    rivals = [baselines.torch_product(problem, slots) for slots in sets]
    runs: list[timing.Run] = [lambda i: prepared(sets[i], 1.0, 0.0)]
    launches = [rival for rival in rivals if rival is not None]
    if launches:
        runs.append(lambda i: _ignore(launches[i]()))
    times = timing.time_interleaved(runs, sets=len(sets), rounds=options.rounds, target_us=options.target_us, engine=engine)
    ours = times[0]
    found: dict[str, Any] = {"time_us": ours.median_us, "low_us": ours.low_us, "high_us": ours.high_us}
    if launches:
        ratio = timing.ratio(times[1], ours)
        found |= {"torch_us": times[1].median_us, "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
    return found


def _ignore(_: object) -> None:
    """A launch's result is in its out."""


def _eager_times(problem: GemmProblem, slots: dict[str, torch.Tensor], device: torch.device) -> dict[str, Any]:
    """Wall time per public call, ours and torch's, interleaved; the better of two passes."""
    rivals = {"eager_us": baselines.eager_minblas(problem, slots), "torch_eager_us": baselines.eager_torch(problem, slots)}
    best: dict[str, float] = {}
    for _ in range(2):
        for name, call in rivals.items():
            if call is not None:
                best[name] = min(best.get(name, float("inf")), _wall_us(call, device))
    return best


def _wall_us(call: baselines.Launch, device: torch.device) -> float:
    """Microseconds of one call in a row of calls, the device's work included."""
    wait = _waiter(device)
    call()
    wait()
    begin = time.perf_counter()
    call()
    wait()
    count = max(1, min(_EAGER_CALLS, int(_EAGER_SECONDS / max(time.perf_counter() - begin, 1e-6))))
    begin = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - begin) * 1e6 / count


def _waiter(device: torch.device) -> Callable[[], None]:
    if device.type != "cuda":
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)
