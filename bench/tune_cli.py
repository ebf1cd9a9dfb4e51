"""The `minblas tune` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.terminal import AsJson, Layout, print_json, told
from bench.warmup_cli import parse_range

if TYPE_CHECKING:
    from kernel_zoo.spec import GemmProblem
    from minblas.shapes import Shape

_INTERRUPTED = 130  # the exit code that shells give to Ctrl-C


def tune(
    sizes: Annotated[list[int] | None, typer.Argument(help="M N K, and further triples; with --m: N K, and further pairs.")] = None,
    m: Annotated[
        str | None,
        typer.Option("--m", help="Sizes of M: 1,8,64 or a range with both ends, 1:256, for which 1, 2, 3, 4, 6, 8, 12, ... stand."),
    ] = None,
    suite: Annotated[list[str] | None, typer.Option(help="A suite or group; may be given again.")] = None,
    recorded: Annotated[
        list[Path] | None, typer.Option(help="A file that MINBLAS_RECORD made a program write; may be given again.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the sizes (bf16 by default); of a suite: keep this dtype.")] = None,
    layout: Layout = "nn",
    batch: Annotated[int, typer.Option(min=1, help="Of the sizes.")] = 1,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be given again.")] = None,
    challenger: Annotated[
        list[str] | None,
        typer.Option(help="Only this variant's candidates, beside the pick in force; may be given again. For new kernels."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Of a suite: at most so many shapes, spread over the classes.")] = None,
    budget: Annotated[float | None, typer.Option(min=1, help="Begin no further shape after so many seconds.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates measured a shape.")] = 16,
    per_variant: Annotated[
        int, typer.Option(min=1, help="Candidates that each variant sends at least; above 2 it may take more than --top-k.")
    ] = 2,
    resume: Annotated[Path | None, typer.Option(help="A journal to write, and to go on from.")] = None,
    table: Annotated[Path | None, typer.Option(help="The table to merge the winners into; your own by default.")] = None,
    devices: Annotated[str | None, typer.Option(help="GPUs of one kind that share the shapes: all, or 0,1.")] = None,
    isolate: Annotated[
        bool | None,
        typer.Option("--isolate/--no-isolate", help="Candidates in a process of their own; by default on a GPU."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Compile processes; one per CPU but one by default.")] = None,
    aten: Annotated[bool, typer.Option("--aten", help="PyTorch's own product competes too.")] = False,
    verify_only: Annotated[bool, typer.Option("--verify-only", help="Check the candidates, time nothing; works on a CPU.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure candidates on this GPU and write the winners into a table; exit code 1 where a candidate's result was wrong.

    Ctrl-C ends it with what was done in the table and the journal; --resume with that journal goes on.
    """
    import minblas
    from minblas.tune import TuneInterrupted

    with told():
        problems = [*_sizes(sizes, m, batch), *_of_suites(suite, dtype, limit), *_recorded(recorded)]
        if not problems:
            raise ValueError("nothing to tune; needed: sizes (M N K), --suite NAME or --recorded FILE")
        try:
            report = minblas.tune(
                problems,
                dtype=dtype or "bf16",
                layout=layout,
                variants=variant,
                challengers=challenger,
                devices=_devices(devices),
                budget_s=budget,
                top_k=top_k,
                per_variant=per_variant,
                resume=resume,
                table=table,
                progress=not (quiet or as_json),
                include_aten=aten,
                verify_only=verify_only,
                workers=workers,
                isolate=isolate,
            )
        except TuneInterrupted as interrupted:
            report = interrupted.report
            typer.echo(f"interrupted; go on with --resume {report.journal}", err=True)
            code = _INTERRUPTED
        else:
            code = 1 if report.rejected["wrong"] else 0
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(str(report))
    raise typer.Exit(code)


def _sizes(sizes: list[int] | None, m: str | None, batch: int) -> list[Shape]:
    """Sizes and --m as shapes.

    Raises:
        ValueError: they do not come in threes, or, with --m, in twos.
    """
    given = sizes or []
    if m is None:
        if len(given) % 3:
            raise ValueError(f"sizes come as M N K (or as N K, with --m); given {len(given)} numbers")
        return [(batch, *given[i : i + 3]) for i in range(0, len(given), 3)]
    if not given or len(given) % 2:
        raise ValueError(f"with --m sizes come as N K; given {len(given)} numbers")
    return [(batch, size, *given[i : i + 2]) for i in range(0, len(given), 2) for size in _many(m)]


def _many(text: str) -> list[int | range]:
    """The sizes and ranges of "1,8,64:256".

    Raises:
        ValueError: the text has another form.
    """
    return [int(part) if part.strip().isdecimal() else parse_range(part) for part in text.split(",")]


def _of_suites(names: list[str] | None, dtype: str | None, limit: int | None) -> list[GemmProblem]:
    if not names:
        return []
    from bench import run

    return [problem for _, problem in run.select_cases(run.Request(suites=tuple(names), dtype=dtype, limit=limit))]


def _recorded(paths: list[Path] | None) -> list[GemmProblem]:
    import minblas

    return [problem for path in paths or [] for problem in minblas.recorded(path)]


def _devices(text: str | None) -> list[str] | str | None:
    """The word "all", or names; a bare number is a GPU's."""
    if text is None or text == "all":
        return text
    return [f"cuda:{part.strip()}" if part.strip().isdecimal() else part.strip() for part in text.split(",")]
