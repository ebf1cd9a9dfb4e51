"""The compile gate: does a variant, for a problem and a tile, become the machine code it promises on a given device?

Compiles for the device's capability and reads the binary, so it needs neither a GPU nor a driver. A row passes where nothing spills
to local memory, shared memory fits a block, and the instructions are those the variant counts on: tensor cores of the declared
family, TMA where there are descriptors, asynchronous copies where aligned operands are read through pointers.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Final

from kernel_zoo.build import Specialisation, compile_binary, resources, specialise
from kernel_zoo.spec import VECTOR_BYTES, Arch, Descriptor, GemmProblem, Recipe, Resources, TileConfig, Variant

#: A compiled kernel's resources, None where they were not asked for, or why there is no kernel.
Built = Resources | str | None
Job = tuple[Specialisation, int]


@dataclass(frozen=True, slots=True)
class GateRow:
    """What to gate; `label` says where the row comes from (a table and its key)."""

    variant: Variant
    problem: GemmProblem
    tile: TileConfig
    arch: Arch
    label: str = ""

    def describe(self) -> str:
        """One line for a report."""
        where = f"{self.label}: " if self.label else ""
        return f"{where}{self.variant.name} {self.tile.describe()} for {self.problem.describe()} on {self.arch.name}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """A row's verdict: `faults` is empty where it passes; `resources` has one entry per launch that compiled."""

    row: GateRow
    resources: tuple[Resources, ...]
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """The row may be used."""
        return not self.faults


def gate(rows: Iterable[GateRow], workers: int | None = None) -> list[GateResult]:
    """Compile every row for its device and judge it; equal binaries are compiled once.

    Args:
        rows: what to gate; a row that its own variant refuses fails with the refusal.
        workers: processes; the number of CPUs by default.
    """
    planned = [(row, *_plan(row)) for row in rows]
    jobs = [job for _, _, row_jobs, _ in planned for job in row_jobs]
    built = compile_all(jobs, workers)
    return [_judge(row, recipe, [built[job] for job in row_jobs], faults) for row, recipe, row_jobs, faults in planned]


def compile_all(jobs: Iterable[Job], workers: int | None = None, *, read: bool = True) -> dict[Job, Built]:
    """Compile (specialisation, compute capability) pairs in worker processes, into triton's disk cache.

    Args:
        jobs: what to compile; duplicates are compiled once.
        workers: processes; the number of CPUs by default.
        read: read the binary's resources; without it a compiled job's value is None.

    Returns:
        Per job its resources, or one line that says why it did not compile.
    """
    unique = list(dict.fromkeys(jobs))
    portable = [job for job in unique if _is_importable(job[0].kernel)]
    results: dict[Job, Built] = {}
    count = min(workers or os.cpu_count() or 1, len(portable))
    if count > 1:
        results.update(_compile_in_pool(portable, count, read))
    for job in unique:
        if job not in results:
            results[job] = _compile(job, read)
    return results


def _plan(row: GateRow) -> tuple[Recipe, list[Job], tuple[str, ...]]:
    refusal = row.variant.refusal(row.problem, row.arch, row.tile)
    if refusal is not None:
        return Recipe(()), [], (f"refused: {refusal.sentence}",)
    recipe = row.variant.plan(row.problem, row.tile, row.arch)
    return recipe, [(specialise(call), row.arch.cc) for call in recipe.calls], ()


def _judge(row: GateRow, recipe: Recipe, built: list[Built], faults: tuple[str, ...]) -> GateResult:
    found = tuple(item for item in built if isinstance(item, Resources))
    failures = tuple(f"does not compile: {item}" for item in built if isinstance(item, str))
    if not faults and not failures:
        faults = (*_resource_faults(found, row.arch), *_instruction_faults(row, recipe, found))
    return GateResult(row, found, faults + failures)


def _resource_faults(found: Iterable[Resources], arch: Arch) -> Iterator[str]:
    for item in found:
        if item.spills:
            yield f"{item.spills} local-memory accesses; must be 0"
        if item.shared_bytes > arch.smem_per_block:
            yield f"{item.shared_bytes:,} bytes of shared memory; {arch.name} has {arch.smem_per_block:,} per block"


def _instruction_faults(row: GateRow, recipe: Recipe, found: Iterable[Resources]) -> Iterator[str]:
    """Instructions that must be in some launch of the row and are not."""
    kinds = {kind for item in found for kind in item.instructions}
    problem, tile, arch = row.problem, row.tile, row.arch
    if problem.k == 0:
        return
    declared = re.search(r"\b(wgmma|mma|fma)-", row.variant.reduction(problem, tile))
    family = declared.group(1) if declared else ""
    sixteen_bit = problem.a.itemsize == 2
    if family == "wgmma" and sixteen_bit and arch.cc == 90:
        if "wgmma" not in kinds:
            yield f"no wgmma, which {row.variant.name} counts on for this tile"
    elif family in ("wgmma", "mma") and arch.capability[0] != 10 and not kinds & {"wgmma", "mma"}:
        # Data-centre Blackwell has tensor-core instructions of its own, which are not told apart here.
        yield "no tensor-core instructions"
    if family == "fma" and "ffma" not in kinds:
        yield "no fp32 multiply-adds"
    descriptors = any(isinstance(arg, Descriptor) for call in recipe.calls for arg in call.args)
    if descriptors and "tma" not in kinds:
        yield "no TMA copies although operands are given as descriptors"
    loops = tile.num_stages > 1 and problem.k >= 2 * tile.block_k * tile.split_k  # a single block is not pipelined
    if not descriptors and family in ("wgmma", "mma") and loops and _vectorised(problem) and "cp.async" not in kinds:
        yield "no asynchronous copies although every operand is aligned"


def _vectorised(problem: GemmProblem) -> bool:
    """Every 16-byte access along a contiguous line is aligned and inside the matrix or outside it as a whole."""
    if min(problem.a.line_align, problem.b.line_align) < VECTOR_BYTES:
        return False
    width = VECTOR_BYTES // problem.a.itemsize
    return (problem.a.layout == "n" or problem.m % width == 0) and (problem.b.layout == "t" or problem.n % width == 0)


def _is_importable(kernel: Any) -> bool:
    return kernel.fn.__module__ != "__main__" and _resolve(*_path(kernel)) is kernel


def _path(kernel: Any) -> tuple[str, str]:
    return kernel.fn.__module__, kernel.fn.__qualname__


def _resolve(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _compile(job: Job, read: bool) -> Built:
    try:
        compiled = compile_binary(*job)
    except Exception as error:  # the compiler raises its own types, RuntimeError and CalledProcessError alike
        return _one_line(error)
    return resources(compiled) if read else None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _compile_in_pool(jobs: list[Job], count: int, read: bool) -> dict[Job, Built]:
    results: dict[Job, Built] = {}
    try:
        with _pool(count) as pool:
            futures = [pool.submit(_worker, *_packed(job), read) for job in jobs]
            for job, future in zip(jobs, futures, strict=True):
                results[job] = future.result()
    except BrokenProcessPool:
        # A compiler that aborts takes its process along: the jobs left are tried one process each.
        results.update({job: _compile_alone(job, read) for job in jobs if job not in results})
    return results


def _compile_alone(job: Job, read: bool) -> Built:
    try:
        with _pool(1) as pool:
            return pool.submit(_worker, *_packed(job), read).result()
    except BrokenProcessPool:
        return "the compiler died"


_PRELOADED: Final = ["kernel_zoo.build", "triton.compiler", "triton.backends.compiler"]


def _pool(count: int) -> ProcessPoolExecutor:
    """Workers that share no threads or CUDA state with this process."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(count, mp_context=context)


def _packed(job: Job) -> tuple[Any, ...]:
    """A job as plain data: kernels are named, because jitted functions do not pickle."""
    spec, cc = job
    return (*_path(spec.kernel), spec.signature, spec.constants, spec.divisors, spec.num_warps, spec.num_stages, cc)


def _worker(module: str, name: str, *rest: Any) -> Built:
    *fields, cc, read = rest
    return _compile((Specialisation(_resolve(module, name), *fields), cc), read)


__all__ = ["Built", "GateResult", "GateRow", "Job", "compile_all", "gate"]
