"""The commands `minblas table fit` and `minblas table regret`: the model against what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.terminal import AsJson, print_json, told

if TYPE_CHECKING:
    from heuristics.fit import Times
    from kernel_zoo.spec import GemmProblem


def fit(
    journals: Annotated[list[Path], typer.Argument(help="Journals of tunes on one device.", exists=True, dir_okay=False)],
    table: Annotated[Path, typer.Option(help="The table of that device whose model is replaced; the old file is kept beside it.")],
    steps: Annotated[int, typer.Option(min=1, help="Of the descent; a step over 25,000 times takes about 2 s.")] = 150,
    only: Annotated[
        list[str] | None, typer.Option(help="Fit this variant's alone and keep the table's for the others; may be given again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the model's coefficients to what tunes measured, and write them into a table."""
    from dataclasses import replace

    from heuristics import store
    from heuristics.archs import ARCHS
    from heuristics.fit import fit as fitted
    from minblas.progress import Progress

    with told():
        old = store.load(table)
        arch = ARCHS.get(old.environment.device)
        if arch is None:
            raise ValueError(
                f"{table} is of {old.environment.gpu_name}, whose rates are not listed: there is nothing to fit against"
            )
        measured = [row for path in journals for row in _measured(path, old.environment.gpu_name)]
        with Progress("fitting", steps, show=not as_json) as bar:
            report = fitted(measured, arch, steps, lambda step: bar.step(f"step {step}"), only or (), old.model)
        kept = store.rewrite(replace(old, model=report.model), table, old)
    found = {"problems": report.problems, "times": report.times, "before": report.before, "after": report.after, "kept": str(kept)}
    if as_json:
        print_json(found)
    else:
        typer.echo(f"fitted to {report.times} times of {report.problems} problems")
        typer.echo(f"best time / time of the model's first pick: {report.before:.4f} before, {report.after:.4f} now")
        typer.echo(f"{table}: model replaced; the old file is {kept}")


def _measured(path: Path, gpu: str) -> list[tuple[GemmProblem, Times]]:
    """The problems of a journal and the times of their candidates.

    Raises:
        ValueError: it was taken on another GPU, or a line is no journal's.
    """
    from minblas.journal import problem_from_dict, read_lines, tile_from_dict

    found: list[tuple[GemmProblem, Times]] = []
    for number, (row, _) in enumerate(read_lines(path), 1):
        try:
            if row["kind"] == "header" and row["environment"]["gpu"] != gpu:
                raise ValueError(f"{path} was taken on {row['environment']['gpu']}, the table is of {gpu}")
            if row["kind"] != "shape":
                continue
            timed = [trial for trial in row["trials"] if trial["status"] == "ok" and "time_us" in trial and trial["tile"]]
            times = {(trial["variant"], tile): trial["time_us"] for trial in timed if (tile := tile_from_dict(trial["tile"]))}
            if times:
                found.append((problem_from_dict(row["problem"]), times))
        except (KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is no journal's: {error} is missing or of another kind") from None
    return found


def regret(
    times: Annotated[
        Path, typer.Argument(help="Held-out problems and the times of their candidates.", exists=True, dir_okay=False)
    ],
    device: Annotated[str, typer.Option("--arch", help="The device they were taken on.")] = "h200",
    as_json: AsJson = False,
) -> None:
    """Say how good the choice is on held-out problems: best time / time of the pick, by way of choosing. Needs no GPU."""
    from bench.regret import measure, read
    from heuristics.archs import get_arch
    from minblas.registry import registry, resources, tables

    with told():
        arch = get_arch(device)
        found = [each.as_dict() for each in measure(read(times), arch, registry(), tables(arch), resources(arch))]
    if as_json:
        print_json(found)
        return
    typer.echo(f"{'choice':16s} {'problems':>8s} {'geomean':>8s} {'p10':>7s} {'worst':>7s}  rungs")
    for row in found:
        rungs = ", ".join(f"{rung} {count}" for rung, count in row["rungs"].items())
        typer.echo(f"{row['choice']:16s} {row['problems']:8d} {row['geomean']:8.4f} {row['p10']:7.3f} {row['worst']:7.3f}  {rungs}")
        for missing in row["missing"]:
            typer.echo(f"  never timed, counted as 0.5: {missing}")
