"""Compiling and loading what a set of shapes will need, so that no first call has to.

Shapes that lead to the same binaries cost one compilation: a whole range of M is a handful. Without a GPU the binaries of the
device that options(arch=...) names are compiled into Triton's disk cache: an image can be built with them in it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kernel_zoo import build
from kernel_zoo.compile_pool import CompilePool
from kernel_zoo.compile_worker import compile_here
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas import dispatch, log
from minblas.errors import ArgumentError, MinblasError
from minblas.shapes import problem_of

if TYPE_CHECKING:
    import torch

Sizes = int | range
WarmShape = GemmProblem | tuple[Sizes, ...]
Pick = tuple[Variant, GemmProblem, TileConfig]

_FEW: Final = 3  # binaries; fewer are compiled sooner here than a worker process starts


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """What a warmup did.

    Attributes:
        shapes: problems asked for, ranges unrolled.
        plans: distinct picks of variant and tile among them.
        binaries: distinct binaries they need.
        loaded: binaries now loaded on the device; 0 without a GPU.
        aten: shapes served by a variant that launches by itself (PyTorch's own product): nothing to compile.
        failures: what did not compile or load.
    """

    device: str
    shapes: int
    plans: int
    binaries: int
    loaded: int
    aten: int
    seconds: float
    failures: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        made = f"{self.binaries} binaries for {self.plans} picks of {self.shapes} shapes"
        done = f"{self.loaded} loaded" if self.loaded else "compiled into the disk cache"
        aten = f"; aten serves {self.aten}" if self.aten else ""
        return "\n".join(
            [f"{self.device}: {made}, {done} in {self.seconds:.1f} s{aten}", *(f"  failed: {failure}" for failure in self.failures)]
        )


def warmup(
    shapes: Iterable[WarmShape],
    *,
    dtype: object = "bf16",
    layout: str = "nn",
    device: torch.device | str | None = None,
    workers: int | None = None,
) -> WarmupReport:
    """Compile, in parallel, and load what these shapes need.

    Args:
        shapes: (m, n, k), (batch, m, n, k) or GemmProblems; a size may be a range: (range(1, 257), 4096, 4096).
        dtype: of the tuples; "tf32" is fp32 with TF32 precision.
        layout: of the tuples.
        device: the GPU; without one, binaries are only compiled.
        workers: compile processes, by default one per CPU but one; 0 compiles in this process.

    Raises:
        ArgumentError: a shape is none.
    """
    import torch

    from minblas.device import arch_of

    began = time.perf_counter()
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    arch = arch_of(place)
    problems = [problem_of(sizes, dtype, layout) for shape in shapes for sizes in _unrolled(shape)]
    failures: list[str] = []
    picks, aten = _picks(problems, arch, failures)
    needed = dict.fromkeys(
        spec for variant, problem, tile in picks for spec in _specialisations(variant, problem, tile, arch, failures)
    )
    _compile(list(needed), arch, workers, failures)
    loaded = _load(picks, arch, place, failures) if place.type == "cuda" else 0
    where = str(place) if place.type == "cuda" else f"cpu, for {arch.name}"
    plans = len({(variant.name, tile) for variant, _, tile in picks})
    seconds = time.perf_counter() - began
    report = WarmupReport(where, len(problems), plans, len(needed), loaded, aten, seconds, tuple(dict.fromkeys(failures)))
    log.get("warmup").info("%s", report)
    return report


def _unrolled(shape: WarmShape) -> Iterator[GemmProblem | tuple[int, ...]]:
    """Every combination of the ranges' sizes."""
    if isinstance(shape, GemmProblem):
        yield shape
        return
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
    if not sizes or not all(isinstance(size, int | range) for size in sizes):
        raise ArgumentError(f"a shape is {shape!r}", "whole numbers or ranges of them: (m, n, k) or (batch, m, n, k)")
    yield from itertools.product(*((size,) if isinstance(size, int) else size for size in sizes))


def _picks(problems: Iterable[GemmProblem], arch: Arch, failures: list[str]) -> tuple[list[Pick], int]:
    """What serves each problem, and how many go to a variant that launches by itself. Empty products need nothing."""
    picks: list[Pick] = []
    opaque = 0
    for problem in problems:
        if min(problem.batch, problem.m, problem.n) <= 0:
            continue
        try:
            selection = dispatch.select(problem, arch)
        except MinblasError as error:
            failures.append(f"{problem.describe()}: {error}")
            continue
        variant = dispatch.get(selection.variant)
        if variant.recipe is None or selection.tile is None:
            opaque += 1
        else:
            picks.append((variant, problem, selection.tile))
    return picks, opaque


def _specialisations(
    variant: Variant, problem: GemmProblem, tile: TileConfig, arch: Arch, failures: list[str]
) -> list[build.Specialisation]:
    try:
        return [build.specialise(call) for call in variant.plan(problem, tile, arch).calls]
    except Exception as error:  # a registered recipe is the user's code
        failures.append(f"{variant.name} on {problem.describe()}: {type(error).__name__}: {error}")
        return []


def _compile(specs: list[build.Specialisation], arch: Arch, workers: int | None, failures: list[str]) -> None:
    """Into the disk cache: in worker processes, and here what those cannot take."""
    with CompilePool(0 if len(specs) < _FEW else workers) as pool:
        futures = [(spec, pool.submit(spec, arch.cc)) for spec in specs]
        for spec, future in futures:
            answer = future.result()
            message = _compile_here(spec, arch) if answer.status == "unknown" else answer.message
            if message:
                failures.append(f"{spec.kernel.__name__}: {message}")


def _compile_here(spec: build.Specialisation, arch: Arch) -> str:
    from kernel_zoo import interpret

    with interpret.LOCK:  # the interpreter patches triton's language while it runs
        return compile_here(spec, arch.cc, read=False).message


def _load(picks: Iterable[Pick], arch: Arch, device: torch.device, failures: list[str]) -> int:
    """Load every pick's binaries on the device; returns how many picks are ready."""
    from minblas import launch

    ready: set[tuple[build.Specialisation, ...]] = set()
    for variant, problem, tile in picks:
        specs = tuple(build.specialise(call) for call in variant.plan(problem, tile, arch).calls)
        if specs in ready:
            continue
        try:
            launch.prepare(variant, problem, tile, arch, device)
        except Exception as error:  # the driver's or the compiler's; the first call would meet it too
            failures.append(f"{variant.name} {tile.describe()} on {problem.describe()}: {type(error).__name__}: {error}")
        else:
            ready.add(specs)
    return len({spec for specs in ready for spec in specs})


__all__ = ["WarmupReport", "warmup"]
