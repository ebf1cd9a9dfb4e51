"""The commands `minblas table held-out` and `minblas table renew`: the file that `minblas table regret` reads, for a larger zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.terminal import AsJson, print_json, told

Times = Annotated[Path, typer.Argument(help="Held-out problems and the times of their candidates.", exists=True, dir_okay=False)]
Out = Annotated[Path, typer.Option(help="The file to write.")]


def held_out(times: Times, out: Out, as_json: AsJson = False) -> None:
    """Write the held-out problems as a list for `minblas tune --recorded`."""
    from bench.heldout import write_problems
    from bench.regret import read

    with told():
        problems = [item.problem for item in read(times)]
        write_problems(out, problems)
    if as_json:
        print_json({"problems": len(problems), "path": str(out)})
    else:
        typer.echo(f"{out}: {len(problems)} problems; tune them with --recorded {out}, a journal and a table of their own")


def renew(
    times: Times,
    journals: Annotated[list[Path], typer.Argument(help="Journals of tunes of these problems.", exists=True, dir_okay=False)],
    out: Out,
    keep: Annotated[
        bool, typer.Option("--keep", help="The file's own times stay; the new ones are brought to their clock.")
    ] = False,
    tuned: Annotated[
        Path | None,
        typer.Option(help="The journal of another tune, with its usual shortlist, whose winners are judged too.", exists=True),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write held-out times anew, from journals of tunes of the problems."""
    from bench.heldout import read_journals, renewed, with_tuned
    from bench.regret import read, write

    with told():
        seen, environment = read_journals(journals)
        made, notes = renewed(read(times), seen, keep=keep)
        if tuned is not None:
            made = with_tuned(made, read_journals([tuned])[0])
        write(out, made, environment)
    count = sum(len(item.times) for item in made)
    if as_json:
        print_json({"problems": len(made), "times": count, "notes": notes, "path": str(out)})
        return
    for note in notes:
        typer.echo(note)
    typer.echo(f"{out}: {count} times of {len(made)} problems")
