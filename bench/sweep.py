"""The sweep on a GPU: every shape chosen, checked, then timed against torch.matmul.

Nothing here knows a kernel. The same code runs on CPU tensors with an engine that does not measure, which is how it is tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import baselines
from bench.records import ShapeResult, one_line
from heuristics.choose import Selection
from kernel_zoo.spec import GemmProblem
from minblas import dispatch, launch, rival, timing
from minblas.buffers import Bank
from minblas.device import arch_of, is_lost
from minblas.errors import NoVariantError
from minblas.oracle import Oracle, exact_affordable

if TYPE_CHECKING:
    import torch

Cases = list[tuple[str, GemmProblem]]

_EAGER_SECONDS: Final = 0.01  # of back-to-back calls per rival
_EAGER_CALLS: Final = 100
#: A rested card runs a heavy product at a clock that its power limit takes away within a tenth of a second.
WARM_UP_MS: Final = 100.0
HEAVY_FLOPS: Final = 30e9


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
        budget_s: stop when it is spent; shapes left over are not reported. None: no limit.
        eager: also take wall time per public call.
        warm_up_ms: device time for which a heavy product, of HEAVY_FLOPS or more, runs before its rounds count.
    """

    rounds: int = timing.ROUNDS
    budget_s: float | None = None
    eager: bool = True
    warm_up_ms: float = WARM_UP_MS


@dataclass(frozen=True, slots=True)
class Rig:
    """What shapes are measured with."""

    device: torch.device
    bank: Bank
    engine: timing.Engine
    options: Options


def spread(cases: Cases) -> Cases:
    """The cases in an order in which every stretch holds every class alike, so that a budget cuts all of them short equally."""
    by_class: dict[str, Cases] = {}
    for case in cases:
        by_class.setdefault(case[1].shape_class, []).append(case)
    placed = [((rank + 0.5) / len(group), case) for group in by_class.values() for rank, case in enumerate(group)]
    return [case for _, case in sorted(placed, key=lambda item: item[0])]


def choose_all(cases: Cases, device: torch.device) -> list[Plan]:
    """What the runtime, with the options in force, picks for each (suite, problem)."""
    plans = []
    for suite, problem in cases:
        try:
            plans.append(Plan(problem, suite, dispatch.select(problem, device)))
        except NoVariantError as error:
            plans.append(Plan(problem, suite, None, str(error)))
    return plans


def sweep(
    plans: Sequence[Plan],
    device: torch.device,
    options: Options = Options(),
    *,
    engine: timing.Engine | None = None,
    began: float | None = None,
) -> Iterator[ShapeResult]:
    """Check and time every plan, in order, until the budget is spent or the device is lost.

    Args:
        plans: what to measure.
        device: where.
        options: how.
        engine: how launches are timed; CUDA graphs by default.
        began: `time.perf_counter()` from which the budget counts; now by default.
    """
    began = time.perf_counter() if began is None else began
    rig = Rig(device, Bank(device), engine or timing.CudaEngine(device), options)
    for plan in plans:
        if options.budget_s is not None and time.perf_counter() - began > options.budget_s:
            return
        result = measure(plan, rig)
        yield result
        if result.status == "failed" and is_lost(device):
            return


def measure(plan: Plan, rig: Rig) -> ShapeResult:
    """One shape: made ready, checked on poisoned output, timed against torch."""
    problem, selection = plan.problem, plan.selection
    if selection is None:
        return ShapeResult.of(problem, plan.suite, status="unserved", message=plan.refused)
    found: dict[str, Any] = {
        "variant": selection.variant,
        "tile": selection.tile.describe() if selection.tile is not None else "",
        "rung": selection.rung,
        "estimate_us": selection.estimate.time_us,
    }
    try:
        found |= _measure(problem, selection, rig)
    except Exception as error:  # a sweep reports a shape that cannot be compiled or launched and goes on to the next
        found |= {"status": "failed", "message": one_line(error)}
    return ShapeResult.of(problem, plan.suite, **found)


def _measure(problem: GemmProblem, selection: Selection, rig: Rig) -> dict[str, Any]:
    prepared = _prepare(problem, selection, rig.device)
    found: dict[str, Any] = {"compile_seconds": prepared.compile_seconds}
    fault = _fault(problem, prepared, rig.device)
    if fault:
        return found | {"status": "wrong", "message": fault}
    sets = rig.bank.sets(problem)
    with rival.torch_precision(problem.precision) if rig.device.type == "cuda" else nullcontext():
        found |= _times(problem, prepared, sets, rig)
        if rig.options.eager:
            found |= _eager_times(problem, sets[0], rig.device)
    return found


def _prepare(problem: GemmProblem, selection: Selection, device: torch.device) -> launch.Prepared:
    return launch.prepare(dispatch.get(selection.variant), problem, selection.tile, arch_of(device), device, forced=True)


def _fault(problem: GemmProblem, prepared: launch.Prepared, device: torch.device) -> str:
    """What is wrong with the result, in words; its operands are freed on return, before the buffers to time on are made."""
    oracle = Oracle(problem, device, exact=exact_affordable(problem, arch_of(device)))
    prepared(oracle.slots, oracle.alpha, oracle.beta)
    return oracle.verdict()


def _times(problem: GemmProblem, prepared: launch.Prepared, sets: Sequence[dict[str, torch.Tensor]], rig: Rig) -> dict[str, Any]:
    """Device time of ours and torch's, interleaved."""
    rivals = [rival.torch_product(problem, slots) for slots in sets]
    launches = [product for product in rivals if product is not None]
    runs: list[timing.Run] = [lambda i: prepared(sets[i], 1.0, 0.0)]
    if launches:
        runs.append(lambda i: _launch(launches[i]))
    warm_up_us = 1e3 * rig.options.warm_up_ms if problem.flops >= HEAVY_FLOPS else 0.0
    times = timing.time_interleaved(runs, sets=len(sets), rounds=rig.options.rounds, warm_up_us=warm_up_us, engine=rig.engine)
    ours = times[0]
    found: dict[str, Any] = {"time_us": ours.median_us, "low_us": ours.low_us, "high_us": ours.high_us}
    if launches:
        ratio = timing.ratio(times[1], ours)
        found |= {"torch_us": times[1].median_us, "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
    return found


def _launch(product: rival.Launch) -> None:
    """Launch; the result is in the buffers' own OUT."""
    product()


def _eager_times(problem: GemmProblem, slots: dict[str, torch.Tensor], device: torch.device) -> dict[str, Any]:
    """Wall time per public call, ours and torch's, interleaved; the better of two passes."""
    rivals = {"eager_us": baselines.eager_minblas(problem, slots), "torch_eager_us": baselines.eager_torch(problem, slots)}
    best: dict[str, float] = {}
    for _ in range(2):
        for name, call in rivals.items():
            if call is not None:
                best[name] = min(best.get(name, float("inf")), _wall_us(call, device))
    return best


def _wall_us(call: rival.Launch, device: torch.device) -> float:
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
