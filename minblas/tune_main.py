"""The tuner as a script: python -m minblas.tune --suites all-16bit --journal out.jsonl --table out.json --budget 400."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from heuristics import suites
from kernel_zoo.spec import GemmProblem
from minblas.errors import MinblasError
from minblas.shapes import problem_of
from minblas.tune import tune


def parser() -> argparse.ArgumentParser:
    """The script's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m minblas.tune", description="Measure candidates on this GPU and write the winners into a table."
    )
    made.add_argument("--suites", default="", help="suites or groups with commas between, e.g. all-16bit,all-tf32")
    made.add_argument("--shapes", default="", help="MxNxK or BxMxNxK with commas between")
    made.add_argument("--dtype", default=None, help="keep this dtype of the suites, and give it to --shapes (default bf16)")
    made.add_argument("--layout", default="nn", help="of --shapes: nn, nt, tn or tt")
    made.add_argument("--variants", default="", help="only these compete, with commas between")
    made.add_argument("--journal", default=None, help="write every finished shape here, and go on from what is there")
    made.add_argument("--table", default=None, help="merge the winners into this file; by default the user's own table")
    made.add_argument("--budget", type=float, default=None, help="stop after so many seconds")
    made.add_argument("--top-k", type=int, default=16, help="candidates measured per shape")
    made.add_argument("--limit", type=int, default=None, help="at most so many shapes")
    made.add_argument(
        "--shuffle", action="store_true", help="in a random but repeatable order, so that a budget cuts all classes alike"
    )
    made.add_argument("--workers", type=int, default=None, help="compile processes; by default one per CPU but one")
    made.add_argument("--include-aten", action="store_true", help="PyTorch's own product competes too")
    made.add_argument(
        "--verify-only", action="store_true", help="check the candidates and time nothing; works on a CPU, for small shapes"
    )
    made.add_argument("--quiet", action="store_true", help="no progress")
    return made


def problems(options: argparse.Namespace) -> list[GemmProblem]:
    """The shapes asked for."""
    found = suites.problems(_words(options.suites), options.dtype) if options.suites else []
    for text in _words(options.shapes):
        found.append(problem_of(tuple(int(part) for part in text.split("x")), options.dtype or "bf16", options.layout))
    if options.shuffle:
        random.Random(0).shuffle(found)
    return found[: options.limit]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 where every shape was reached and has a winner (or, when only verifying, nothing was wrong)."""
    made = parser()
    options = made.parse_args(arguments)
    try:
        shapes = problems(options)
        if not shapes:
            made.error("no shapes: give --suites or --shapes")
        report = tune(
            shapes,
            variants=_words(options.variants) or None,
            budget_s=options.budget,
            top_k=options.top_k,
            resume=options.journal,
            table=options.table,
            progress=not options.quiet,
            include_aten=options.include_aten,
            verify_only=options.verify_only,
            workers=options.workers,
        )
    except (MinblasError, ValueError) as error:
        made.exit(2, f"error: {error}\n")
    print(report)
    if options.verify_only:
        return 1 if any(report.rejected.values()) else 0
    return 0 if report.tuned == report.asked else 1


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
