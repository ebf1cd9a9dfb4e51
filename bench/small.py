"""The sweep on a machine without a GPU: small sizes through Triton's interpreter, every result checked; no times.

A CPU says nothing about a kernel's speed, so no ratio is shown. What is shown besides is what would be picked for a GPU on real
sizes, with the model's estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.records import ShapeResult, one_line
from heuristics.choose import ForcedVariantError, Policy, Selection, choose
from kernel_zoo.spec import Arch, Epilogue, GemmProblem, Operand, Variant

if TYPE_CHECKING:
    from rich.table import Table

    from heuristics.table import HeuristicTable


@dataclass(frozen=True, slots=True)
class Case:
    """A small problem, and the variant it is forced on ("" lets the choice decide)."""

    problem: GemmProblem
    variant: str = ""


def _epilogue(
    m: int, n: int, dtype: str, *, alpha: str = "1", beta: str = "0", bias: bool = False, activation: str = "none"
) -> Epilogue:
    """An epilogue over a dense C (where beta is not 0) and one row of bias."""
    c = Operand.dense(dtype, m, n) if beta != "0" else None
    row = Operand(dtype, m, n, (0, 0, 1)) if bias else None
    return Epilogue(alpha, beta, c, row, activation)  # type: ignore[arg-type]


def cases() -> list[Case]:
    """Every class, layout, dtype and variant at sizes the interpreter does in about a second each."""
    of = GemmProblem.of
    free = [
        of(64, 64, 64, "bf16", "nn"),
        of(128, 128, 128, "fp16", "nt"),
        of(128, 96, 256, "bf16", "tn"),
        of(96, 160, 64, "fp16", "tt"),
        of(256, 256, 256, "bf16", "nt"),
        of(384, 320, 128, "fp16", "nn"),
        of(256, 128, 64, "bf16", "nt"),
        of(80, 72, 32, "fp32", "nn"),
        of(64, 128, 96, "fp32", "nt", precision="tf32"),
        of(100, 90, 70, "bf16", "nn"),
        of(33, 17, 65, "fp16", "tn"),
        of(65, 63, 31, "fp32", "nt"),
        of(1, 256, 512, "bf16", "nt"),
        of(2, 128, 384, "fp16", "nn"),
        of(192, 1, 256, "bf16", "nn"),
        of(16, 256, 256, "bf16", "nt"),
        of(8, 128, 1024, "fp16", "nn"),
        of(64, 512, 512, "bf16", "nt"),
        of(96, 80, 4096, "bf16", "nt"),
        of(64, 64, 1, "bf16", "nn"),
        of(48, 40, 7, "fp16", "nt"),
        of(32, 48, 64, "bf16", "nt", batch=4),
        of(24, 40, 33, "fp16", "nn", batch=3),
        of(128, 64, 64, "bf16", "nt", epilogue=_epilogue(128, 64, "bf16", alpha="x", beta="x")),
        of(64, 96, 128, "fp16", "nn", epilogue=_epilogue(64, 96, "fp16", bias=True, activation="gelu")),
        of(64, 64, 64, "bf16", "nt", out_dtype="fp32"),
        of(48, 48, 48, "fp64", "nn"),
        of(32, 32, 64, "int8", "nt"),
    ]
    forced = [
        Case(of(320, 256, 128, "bf16", "nt"), "persistent"),
        Case(of(256, 192, 128, "bf16", "nt"), "tma"),
        Case(of(90, 70, 300, "fp16", "nn", epilogue=_epilogue(90, 70, "fp16", bias=True, activation="relu")), "split_k"),
        Case(of(48, 64, 1024, "bf16", "nt"), "split_k_fused"),
        Case(of(90, 71, 61, "bf16", "nt"), "repack"),
        Case(of(3, 200, 500, "bf16", "tn"), "gemv"),
        Case(of(70, 130, 90, "bf16", "tt"), "tiled"),
    ]
    return [Case(problem) for problem in free] + forced


def check_all(
    chosen: Iterable[Case], arch: Arch, variants: Sequence[Variant], tables: Sequence[HeuristicTable] = (), seed: int = 0
) -> Iterator[ShapeResult]:
    """Choose for `arch`, run on the CPU, judge against float64; one result a case, as it is done."""
    for case in chosen:
        try:
            selection = choose(case.problem, arch, variants, tables, policy=Policy(variant=case.variant or None))
            yield _check(case, selection, variants, arch, seed)
        except ForcedVariantError as error:
            yield ShapeResult.of(
                case.problem, "small", status="unserved", message=str(error.refusal.sentence), variant=case.variant
            )
        except Exception as error:  # a broken variant must not hide the others' results
            yield ShapeResult.of(case.problem, "small", status="failed", message=one_line(error), variant=case.variant or None)


def _check(case: Case, selection: Selection, variants: Sequence[Variant], arch: Arch, seed: int) -> ShapeResult:
    import torch

    from kernel_zoo.reference import make_slots, verify
    from minblas import launch
    from minblas.buffers import scalars

    problem = case.problem
    alpha, beta = scalars(problem)
    variant = next(variant for variant in variants if variant.name == selection.variant)
    slots = make_slots(problem, seed=seed)
    launch.prepare(variant, problem, selection.tile, arch, torch.device("cpu"), forced=True)(slots, alpha, beta)
    verdict = verify(problem, slots, alpha, beta)
    found: dict[str, Any] = {
        "variant": selection.variant,
        "tile": selection.tile.describe() if selection.tile is not None else "",
        "rung": selection.rung,
        "error_ratio": verdict.worst,
        "estimate_us": selection.estimate.time_us,
    }
    if not verdict.ok:
        found |= {"status": "wrong", "message": verdict.message}
    return ShapeResult.of(problem, "small", **found)


def real_problems() -> list[GemmProblem]:
    """Sizes people run, one or more of each class, for showing what would be picked."""
    of = GemmProblem.of
    return [
        of(8192, 8192, 8192, "bf16", "nt"),
        of(4096, 4096, 4096, "bf16", "nn"),
        of(4096, 14336, 4096, "bf16", "nt"),
        of(2048, 2048, 2048, "fp16", "nn"),
        of(512, 4096, 4096, "bf16", "nt"),
        of(16, 4096, 4096, "bf16", "nt"),
        of(1, 8192, 8192, "bf16", "nt"),
        of(256, 256, 16384, "bf16", "nt"),
        of(1000, 1001, 1003, "fp16", "nn"),
        of(2048, 2048, 2048, "fp32", "nn"),
    ]


def picks(
    problems: Iterable[GemmProblem], arch: Arch, variants: Sequence[Variant], tables: Sequence[HeuristicTable]
) -> list[Selection]:
    """What would be picked for each problem on the device."""
    return [choose(problem, arch, variants, tables) for problem in problems]


def pick_table(selections: Sequence[Selection], arch: Arch) -> Table:
    """The picks as a terminal table. Times are the model's, not measured."""
    from rich.table import Table

    table = Table(
        title=f"What would be picked on {arch.name} (times are the model's estimates)", title_justify="left", title_style="bold"
    )
    for heading in ("problem", "class", "variant", "tile", "chosen by"):
        table.add_column(heading)
    for heading in ("estimate us", "TFLOP/s"):
        table.add_column(heading, justify="right")
    for selection in selections:
        problem, estimate = selection.problem, selection.estimate
        table.add_row(
            problem.describe(),
            problem.shape_class,
            selection.variant,
            selection.tile.describe() if selection.tile is not None else "-",
            selection.rung,
            f"{estimate.time_us:.1f}",
            f"{problem.flops / estimate.time_us / 1e6:.0f}",
        )
    return table
