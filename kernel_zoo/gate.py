"""The compile gate: does a variant, for a problem and a tile, become the machine code it promises on a given device?

Compiles for the device's capability and reads the binary, so it needs neither a GPU nor a driver. A row passes where nothing spills
to local memory, shared memory fits a block, and the instructions are those the variant counts on: tensor cores of the declared
family, TMA where there are descriptors, asynchronous copies where aligned operands are read through pointers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernel_zoo.build import Specialisation, specialise
from kernel_zoo.compile_pool import Answer, compile_all
from kernel_zoo.spec import VECTOR_BYTES, Arch, Descriptor, GemmProblem, Recipe, Resources, TileConfig, Variant


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


def _plan(row: GateRow) -> tuple[Recipe, list[tuple[Specialisation, int]], tuple[str, ...]]:
    refusal = row.variant.refusal(row.problem, row.arch, row.tile)
    if refusal is not None:
        return Recipe(()), [], (f"refused: {refusal.sentence}",)
    recipe = row.variant.plan(row.problem, row.tile, row.arch)
    return recipe, [(specialise(call), row.arch.cc) for call in recipe.calls], ()


def _judge(row: GateRow, recipe: Recipe, built: list[Answer], faults: tuple[str, ...]) -> GateResult:
    found = tuple(answer.resources for answer in built if answer.resources is not None)
    failures = tuple(f"does not compile: {answer.message}" for answer in built if answer.status == "failed")
    unread = any(answer.status == "ok" and answer.resources is None for answer in built)
    failures += ("its machine code cannot be read: cuobjdump is missing",) if unread else ()
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


__all__ = ["GateResult", "GateRow", "gate"]
