"""`minblas bench --host`: what a call costs the host, which is all that a small product costs.

Wall time per call over rows of calls that are not waited for, plans warm, the rivals interleaved (A B B A). A row is short enough
for the driver's queue, so that the host never waits for the device. Without a GPU there is nothing to launch: then the time is
taken of a product without rows, which is everything of a warm call but the launch. A CPU's times are compared with nothing.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from bench import environment
from bench.host_calls import WARM, Call, Contender, cpu_contenders, gpu_contenders
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import GemmProblem
from minblas import timing
from minblas.rival import MATMUL

if TYPE_CHECKING:
    from rich.table import Table

CALLS: Final = 100  # of a row: far fewer than the launches that a driver queues
ROUNDS: Final = 21  # at least


@dataclass(frozen=True, slots=True)
class HostResult:
    """Host time of one call: the median over rounds with an interval, and its ratio to a rival's over paired rounds."""

    name: str
    median_us: float
    low_us: float
    high_us: float
    rounds: int
    against: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for; see `minblas bench --help`."""

    sizes: tuple[int, int, int] = (256, 256, 256)
    dtype: str = "bf16"
    rounds: int = ROUNDS
    out: Path | None = None

    def __post_init__(self) -> None:
        """Refuse a dtype that torch.matmul does not take."""
        if self.dtype not in MATMUL:
            raise ValueError(f"dtype is {self.dtype}; host time is taken beside torch.matmul's, which takes {', '.join(MATMUL)}")


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it; `note` says what was measured where that is not what was asked for."""

    environment: dict[str, Any]
    title: str
    results: list[HostResult]
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "environment": self.environment,
            "title": self.title,
            "note": self.note,
            "results": [asdict(result) for result in self.results],
        }


def on_gpu(request: Request, device: torch.device) -> Done:
    """Time calls on a GPU."""
    m, n, k = request.sizes
    problem = GemmProblem.of(m, n, k, request.dtype, "nn")
    with torch.no_grad(), torch.cuda.device(device):
        results = measure(gpu_contenders(problem, device), request.rounds, lambda: torch.cuda.synchronize(device))
    return _saved(Done(environment.describe(device), f"Host time of {problem.describe()}", results), request.out)


def on_cpu(request: Request) -> Done:
    """Time what a warm call does before it launches, on a product without rows."""
    _, n, k = request.sizes
    note = (
        "No NVIDIA GPU: the host time of a GPU call cannot be measured here. What follows is a product without rows on the CPU: "
        "the key, the lookup, the check of the operands and the result's allocation, and no launch."
    )
    with torch.no_grad():
        results = measure(cpu_contenders(n, k, TORCH_DTYPES[request.dtype]), request.rounds, lambda: None)
    title = f"Host time of 0 x {n} x {k} {request.dtype}, nothing launched"
    return _saved(Done(environment.describe(torch.device("cpu")), title, results, note), request.out)


def measure(
    contenders: Sequence[Contender], rounds: int, wait: Call, clock: Callable[[], float] = time.perf_counter
) -> list[HostResult]:
    """Time rivals against each other. `wait` returns when the device has nothing left to do; it is called between rows, untimed."""
    for contender in contenders:
        with contender.within():
            for _ in range(WARM):
                contender.call()
    samples: list[list[float]] = [[] for _ in contenders]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds):
            passes: list[list[float]] = [[] for _ in contenders]
            for i in timing.schedule(len(contenders), index):
                with contenders[i].within():
                    passes[i].append(_row_us(contenders[i].call, wait, clock))
            for mine, taken in zip(samples, passes, strict=True):
                mine.append(sum(taken) / len(taken))
    finally:
        if collecting:
            gc.enable()
    timings = {contender.name: timing.Timing.of(mine) for contender, mine in zip(contenders, samples, strict=True)}
    return [_result(contender, timings) for contender in contenders]


def _row_us(call: Call, wait: Call, clock: Callable[[], float]) -> float:
    wait()
    begin = clock()
    for _ in range(CALLS):
        call()
    taken = clock() - begin
    wait()
    return taken * 1e6 / CALLS


def _result(contender: Contender, timings: Mapping[str, timing.Timing]) -> HostResult:
    mine = timings[contender.name]
    found = HostResult(contender.name, mine.median_us, mine.low_us, mine.high_us, mine.rounds)
    if contender.against not in timings:
        return found
    ratio = timing.ratio(mine, timings[contender.against])
    plain = {name: getattr(found, name) for name in ("name", "median_us", "low_us", "high_us", "rounds")}
    return HostResult(**plain, against=contender.against, ratio=ratio.value, ratio_low=ratio.low, ratio_high=ratio.high)


def table(done: Done) -> Table:
    """The results for a reader."""
    from rich.table import Table

    made = Table("call", "us a call", "interval", title=done.title, title_justify="left")
    compared = any(result.ratio is not None for result in done.results)
    for name in ("against", "ratio") if compared else ():
        made.add_column(name)
    for result in done.results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f} ({result.ratio_low:.2f}-{result.ratio_high:.2f})"
        cells = (result.name, f"{result.median_us:.2f}", f"{result.low_us:.2f}-{result.high_us:.2f}")
        made.add_row(*cells, *((result.against, ratio) if compared else ()))
    return made


def _saved(done: Done, path: Path | None) -> Done:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in _rows(done)), encoding="utf-8")
    return done


def _rows(done: Done) -> Iterator[dict[str, Any]]:
    yield {"kind": "environment", **done.environment, "title": done.title, "note": done.note}
    for result in done.results:
        row = {name: value for name, value in asdict(result).items() if value not in (None, "")}
        yield {"kind": "host", **{name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}}
