"""The `minblas resources` commands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bench.terminal import AsJson, console, print_json, told

app = typer.Typer(no_args_is_help=True, help="What compiled kernels need: build, show, verify.")

Directory = Annotated[Path | None, typer.Option("--dir", help="Where the files lie; beside the package's code by default.")]
Archs = Annotated[list[str] | None, typer.Option("--arch", help="A capability (sm_90); may be given again. All by default.")]


@app.command()
def build(
    arch: Archs = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Compile processes; one per CPU but one by default.")] = None,
    budget: Annotated[float | None, typer.Option(min=1, help="Stop after so many seconds; the next call goes on.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be given again. The others' data stay.")] = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Compile every candidate that the data lack with the Triton that is installed. Needs no GPU; may be interrupted."""
    from bench import resources
    from heuristics.resources import DIRECTORY, public_version
    from minblas.environment import version

    deadline = time.monotonic() + budget if budget is not None else None
    done = []
    with told():
        triton = version("triton")
        if not triton:
            raise ImportError("the data are built with triton; it is not installed (pip install triton)")
        for name in arch or resources.CAPABILITIES:
            if deadline is None or time.monotonic() < deadline:
                made = resources.build(
                    resources.device(name),
                    public_version(triton),
                    workers=workers,
                    deadline=deadline,
                    directory=directory or DIRECTORY,
                    variants=variant,
                    say=lambda line: typer.echo(line, err=True),
                )
                done.append(made)
                if not as_json:
                    typer.echo(str(made))
    if as_json:
        print_json([made.as_dict() for made in done])


@app.command()
def show(
    arch: Archs = None,
    faulty: Annotated[bool, typer.Option("--faulty", help="Only what is refused, in some form.")] = False,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Print the data."""
    from bench import resources

    with told():
        rows = list(resources.rows(arch or resources.CAPABILITIES, faulty=faulty, directory=directory))
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("arch", "triton", "binary", "form", "shared", "registers", "spills", "instructions")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console().print(table)


@app.command()
def verify(directory: Directory = None, as_json: AsJson = False) -> None:
    """Say which keys are missing and which variants' kernels have changed; exit code 1 where something is. Needs no GPU."""
    from bench import resources
    from heuristics.resources import DIRECTORY

    with told():
        found = resources.gaps(directory or DIRECTORY)
    if as_json:
        print_json([gap.as_dict() for gap in found])
    else:
        typer.echo("\n".join(map(str, found)) or "there are no data")
    raise typer.Exit(1 if not found or not all(gap.ok for gap in found) else 0)
