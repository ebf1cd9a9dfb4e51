"""`minblas bench --ladder`: from a naive tile to the fastest kernel, one step at a time, at one size.

On a GPU each step is checked, then timed in interleaved rounds beside torch.matmul and the step before it. On a CPU each step is
checked at a small size in Triton's interpreter; what cannot be interpreted is compiled only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

import minblas
from bench import environment
from bench.ladder_results import Done, StepResult, write
from bench.records import one_line
from bench.steps import LADDERS, SCALAR, Ladder, Step
from kernel_zoo import reference
from kernel_zoo.build import specialise
from kernel_zoo.compile_pool import compile_all
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas import dispatch, launch, rival, timing
from minblas.buffers import Bank, Slots
from minblas.device import arch_of, is_lost
from minblas.errors import NoVariantError, UnknownVariantError, VariantError
from minblas.oracle import Oracle, exact_affordable
from minblas.progress import Progress

NO_GPU: Final = (
    "No NVIDIA GPU: timing needs one. Instead every step runs at a small size through Triton's interpreter on the CPU and is "
    "checked against float64; what cannot be interpreted is compiled for the real size."
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for; see `minblas bench --help`."""

    sizes: tuple[int, int, int] | None = None
    dtype: str | None = None
    rounds: int = timing.ROUNDS
    out: Path | None = None
    silent: bool = False

    def __post_init__(self) -> None:
        """Refuse a dtype that has no ladder, and sizes without a product."""
        known = [ladder.dtype for ladder in LADDERS]
        if self.dtype not in (None, *known):
            raise ValueError(f"there is no ladder for {self.dtype}; there is one for {' and '.join(known)}")

        if self.sizes is not None and min(self.sizes) < 1:
            raise ValueError(f"sizes are {' '.join(map(str, self.sizes))}; a ladder is timed at M, N and K of at least 1")

    @property
    def ladders(self) -> list[Ladder]:
        """The ladders asked for, at the sizes asked for."""
        kept = [ladder for ladder in LADDERS if self.dtype in (None, ladder.dtype)]
        return [replace(ladder, sizes=self.sizes) for ladder in kept] if self.sizes else kept


def on_gpu(request: Request, device: torch.device, engine: timing.Engine | None = None) -> Done:
    """Check and time every step on a device; `engine` is how launches are timed, CUDA graphs by default."""
    bench = _Bench(device, Bank(device), engine or timing.CudaEngine(device), request.rounds)
    return _done(request, device, lambda ladder: _climb(ladder, bench))


def on_cpu(request: Request, arch: Arch) -> Done:
    """Check every step as `arch` would run it, at a small size in the interpreter; compile what cannot be interpreted."""
    return _done(request, torch.device("cpu"), lambda ladder: _check_all(ladder, arch), NO_GPU)


def _done(request: Request, device: torch.device, climb: Callable[[Ladder], Iterator[StepResult]], note: str = "") -> Done:
    ladders, results = request.ladders, []
    steps = sum(len(ladder.steps) for ladder in ladders)
    with torch.no_grad(), Progress("steps", steps, show=not request.silent) as bar:
        for ladder in ladders:
            for result in climb(ladder):
                results.append(result)
                bar.step(result.name)
    done = Done(environment.describe(device) | {"rounds": request.rounds}, results, note)
    if request.out is not None:
        write(request.out, done)
    return done


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What computes a step; `refused` says why nothing can."""

    variant: Variant | None = None
    tile: TileConfig | None = None
    refused: str = ""


def find(step: Step, problem: GemmProblem, where: torch.device | Arch) -> _Kernel:
    """The variant and tile of a step for a problem, or the sentence that says why the device cannot take it."""
    variant, tile = SCALAR, step.tile
    try:
        if step.variant and step.variant != SCALAR.name:
            variant = dispatch.get(step.variant)
        if tile is None:
            with minblas.options(exclude=minblas.options.get().exclude | {"aten"}):
                selection = dispatch.select(problem, where, step.variant or None)
            variant, tile = dispatch.get(selection.variant), selection.tile
    except UnknownVariantError:
        return _Kernel(refused=f"there is no variant {step.variant}")
    except (VariantError, NoVariantError) as error:
        refusal = getattr(error, "refusal", None)
        return _Kernel(refused=refusal.sentence if refusal is not None else str(error))
    refusal = variant.refusal(problem, where if isinstance(where, Arch) else arch_of(where), tile)
    return _Kernel(variant, tile, refusal.sentence if refusal is not None else "")


def _begin(ladder: Ladder, number: int, step: Step, where: torch.device | Arch) -> tuple[GemmProblem, _Kernel, StepResult]:
    """The step's problem and kernel, and as much of its result as is known before it runs."""
    problem = ladder.problem(ladder.sizes, step.precision)
    kernel = find(step, problem, where)
    name, tile = kernel.variant.name if kernel.variant else step.variant, kernel.tile.describe() if kernel.tile else ""
    status = "unserved" if kernel.refused else "ok"
    title = ladder.problem(ladder.sizes).describe()
    return problem, kernel, StepResult(title, number, step.name, status, kernel.refused, name, tile, step.precision)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What steps are timed with."""

    device: torch.device
    bank: Bank
    engine: timing.Engine
    rounds: int


def _climb(ladder: Ladder, bench: _Bench) -> Iterator[StepResult]:
    """The ladder on a device, bottom to top, until the top or until the device is lost."""
    device, oracle, before = bench.device, None, None
    for number, step in enumerate(ladder.steps, 1):
        problem, kernel, result = _begin(ladder, number, step, device)
        if kernel.variant is not None and not kernel.refused:
            try:
                prepared = launch.prepare(kernel.variant, problem, kernel.tile, arch_of(device), device, forced=True)
                if oracle is None or oracle.problem != problem:
                    oracle = Oracle(problem, device, exact=exact_affordable(problem, arch_of(device)))
                prepared(oracle.slots, oracle.alpha, oracle.beta)
                fault = oracle.verdict()
                if fault:
                    result = replace(result, status="wrong", message=fault)
                else:
                    result = replace(result, **_times(problem, prepared, None if step.precision else before, bench))
                    before = before if step.precision else (number, prepared)
            except Exception as error:  # one step that cannot be compiled or launched is a line, not the end of the ladder
                result = replace(result, status="failed", message=one_line(error))
        yield result
        if result.status == "failed" and is_lost(device):
            return


def _times(
    problem: GemmProblem, prepared: launch.Prepared, before: tuple[int, launch.Prepared] | None, bench: _Bench
) -> dict[str, Any]:
    """Device time of a step, of torch's product and of the step before, interleaved."""
    sets = bench.bank.sets(problem)
    theirs = problem.precision if problem.precision in ("ieee", "tf32") or not problem.precision else "ieee"
    runs: list[timing.Run] = [_launcher(prepared, sets), _matmul(problem, theirs, sets)]
    if before is not None:
        runs.append(_launcher(before[1], sets))
    times = timing.time_interleaved(runs, sets=len(sets), rounds=bench.rounds, engine=bench.engine)
    ours, ratio = times[0], timing.ratio(times[1], times[0])
    found: dict[str, Any] = {
        "time_us": ours.median_us,
        "low_us": ours.low_us,
        "high_us": ours.high_us,
        "tflops": problem.flops / ours.median_us / 1e6,
        "against": f"torch.matmul {theirs}".rstrip(),
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
    }
    if before is not None:
        gain = timing.ratio(times[2], ours)
        found |= {"over": before[0], "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
    return found


def _launcher(prepared: launch.Prepared, sets: Sequence[Slots]) -> timing.Run:
    return lambda i: prepared(sets[i], 1.0, 0.0)


def _matmul(problem: GemmProblem, precision: str, sets: Sequence[Slots]) -> timing.Run:
    """torch.matmul, its fp32 products formed as `precision` says (read when a graph is captured)."""
    products = [rival.torch_product(problem, slots) for slots in sets]

    def run(index: int) -> None:
        product = products[index]
        if product is None:
            raise ValueError(f"torch has no product for {problem.describe()}")
        with rival.torch_precision(precision):
            product()

    return run


def _check_all(ladder: Ladder, arch: Arch) -> Iterator[StepResult]:
    """The ladder without a GPU."""
    for number, step in enumerate(ladder.steps, 1):
        problem, kernel, result = _begin(ladder, number, step, arch)
        if kernel.variant is not None and not kernel.refused:
            try:
                small = ladder.problem(ladder.small, step.precision)
                status, message = check(kernel.variant, kernel.tile, problem, small, arch)
                result = replace(result, status=status, message=message)
            except Exception as error:  # a broken step must not hide the others
                result = replace(result, status="failed", message=one_line(error))
        yield result


def check(variant: Variant, tile: TileConfig | None, problem: GemmProblem, small: GemmProblem, arch: Arch) -> tuple[str, str]:
    """Status and message of a kernel on the CPU: the small problem interpreted and judged, or the real one compiled."""
    if variant.interpretable:
        cpu = torch.device("cpu")
        prepared = launch.prepare(variant, small, tile, arch, cpu, forced=True)
        if isinstance(prepared, launch.Interpreted):
            slots = reference.make_slots(small, seed=0)
            prepared(slots, 1.0, 0.0)
            verdict = reference.verify(small, slots)
            return ("ok", "") if verdict.ok else ("wrong", verdict.message)
    if tile is None:
        return "unserved", f"{variant.name} launches by itself; needs a GPU"
    answers = compile_all([(specialise(call), arch.cc) for call in variant.plan(problem, tile, arch).calls]).values()
    faults = [answer.message for answer in answers if answer.status != "ok"]
    return ("failed", "; ".join(faults)) if faults else ("compiled", "not interpreted")


__all__ = ["NO_GPU", "Request", "check", "find", "on_cpu", "on_gpu"]
