"""The `minblas table` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.terminal import AsJson, console, print_json, told

app = typer.Typer(no_args_is_help=True, help="Tuned tables: show, diff, merge, verify, prune, generate, fit, regret.")

Names = Annotated[list[str] | None, typer.Argument(help="Files or devices; the packaged tables by default.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Compile processes; one per CPU by default.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile every row for its device and read the binary.")]


@app.command()
def show(
    names: Names = None,
    dtype: Annotated[str | None, typer.Option(help="Keep this dtype (bf16, fp32, tf32, ...).")] = None,
    shape_class: Annotated[list[str] | None, typer.Option("--class", help="Keep this class (large, gemv, split-K, ...).")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Keep rows that name this variant; may be given again.")] = None,
    near: Annotated[tuple[int, int, int] | None, typer.Option(help="M N K: the nearest rows first, with their distance.")] = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Also intervals, sources and runners-up.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Rows shown of each.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Print rows of tables."""
    from bench import table_rows, tables

    with told():
        wanted = table_rows.Filter(dtype, tuple(shape_class or ()), tuple(variant or ()), near)
        found = tables.find(names or [])
        if as_json:
            print_json([table_rows.as_dict(table, wanted) for table in found])
            return
        for table in found:
            console().print(table_rows.rows_table(table, limit, wanted, evidence))


@app.command()
def diff(
    names: Annotated[list[str], typer.Argument(help="Two files or devices; or one device: packaged against your own.")],
    as_json: AsJson = False,
) -> None:
    """Print the rows in which two tables differ, with the ratio of times (old over new); exit code 1 where they do."""
    from bench import tables
    from heuristics import store

    with told():
        old, new = tables.sides(names)
        changes = store.diff(old, new)
    if as_json:
        print_json([change.as_dict() for change in changes])
    else:
        typer.echo("\n".join([*map(str, changes), f"{len(changes)} rows differ: {old.name} -> {new.name}"]))
    raise typer.Exit(1 if changes else 0)


@app.command()
def merge(
    tables: Annotated[
        list[Path], typer.Argument(help="Of one device; of two rows of a problem the later one wins.", exists=True, dir_okay=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; what it holds is merged too.")],
    as_json: AsJson = False,
) -> None:
    """Merge tables of one device into a file. Hand-written rows win over measured ones, measured ones over modelled ones."""
    from heuristics import store

    with told():
        first, *others = [store.load(path) for path in tables]
        merged = store.merge(first, *others)
        path = store.save(merged, out)
        rows = len(store.load(path).entries)
    if as_json:
        print_json({"path": str(path), "rows": rows})
    else:
        typer.echo(f"{path}: {rows} rows")


@app.command()
def verify(names: Names = None, compile_rows: Compile = False, workers: Workers = None, as_json: AsJson = False) -> None:
    """Check that every row is legal and measured on the kernels as they are; exit code 1 where one is not. Needs no GPU."""
    import minblas
    from bench import table_checks

    with told():
        report = table_checks.check(names or [], minblas.variants(), compile_rows, workers)
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(str(report))
    raise typer.Exit(0 if report.sound else 1)


@app.command()
def prune(
    names: Annotated[list[str], typer.Argument(help="Files, or devices for your own tables.")],
    unknown: Annotated[bool, typer.Option("--unknown", help="Also rows of variants that are not registered here.")] = False,
    before: Annotated[str, typer.Option(help="Also rows dated earlier (2026-01-31).")] = "",
    redundant: Annotated[bool, typer.Option("--redundant", help="Also rows without which the ladder answers as well.")] = False,
    compile_rows: Compile = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Drop rows whose kernel has changed or that are illegal; the old file is kept beside."""
    import minblas
    from bench import table_checks
    from heuristics.pruning import Wanted

    with told():
        wanted = Wanted(unknown, before, redundant)
        done = [table_checks.prune(name, minblas.variants(), wanted, compile_rows, dry_run, workers) for name in names]
    if as_json:
        print_json([pruned.as_dict() for pruned in done])
    else:
        typer.echo("\n".join(map(str, done)))


@app.command()
def generate(
    arch: Annotated[list[str] | None, typer.Option(help="A device; may be given again. All that need one by default.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write; by default DEVICE.json here.")] = None,
    compile_rows: Compile = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Write a table from the model for a GPU that nobody measured; every row is marked as modelled. Needs no GPU."""
    import minblas
    from bench import table_checks
    from heuristics.generate import DEVICES

    with told():
        if out is not None and len(arch or DEVICES) > 1:
            raise ValueError("--out names one file: give one --arch")
        done = [
            table_checks.generate(name, minblas.variants(), out or Path(f"{name}.json"), compile_rows, workers)
            for name in arch or DEVICES
        ]
    if as_json:
        print_json([made.as_dict() for made in done])
    else:
        typer.echo("\n".join(map(str, done)))
