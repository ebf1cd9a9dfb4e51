"""The `minblas table` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.terminal import AsJson, console, print_json, told

app = typer.Typer(no_args_is_help=True, help="Tuned tables: show, diff, merge, verify.")


@app.command()
def show(
    names: Annotated[list[str] | None, typer.Argument(help="Files or devices; the packaged tables by default.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows shown of each.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Print tables."""
    from bench import tables

    with told():
        found = tables.find(names or [])
    if as_json:
        print_json([tables.as_dict(table) for table in found])
        return
    for table in found:
        console().print(tables.rows_table(table, limit))


@app.command()
def diff(old: Path, new: Path, as_json: AsJson = False) -> None:
    """Print the rows in which two tables differ; exit code 1 where they do."""
    from heuristics import store

    with told():
        changes = store.diff(store.load(old), store.load(new))
    if as_json:
        print_json([change.as_dict() for change in changes])
    else:
        typer.echo("\n".join([*map(str, changes), f"{len(changes)} rows differ"]))
    raise typer.Exit(1 if changes else 0)


@app.command()
def merge(
    tables: Annotated[list[Path], typer.Argument(help="Of one device; of two rows of a problem the later one wins.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; what it holds is merged too.")],
    as_json: AsJson = False,
) -> None:
    """Merge tables of one device into a file."""
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
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Files or devices; the packaged tables by default.")] = None,
    compile_rows: Annotated[bool, typer.Option("--compile", help="Compile every row for its device and read the binary.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Compile processes; one per CPU by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that every row is legal and measured on the kernels as they are; exit code 1 where one is not. Needs no GPU."""
    import minblas
    from bench import tables
    from heuristics import store

    with told():
        found = tables.find(names or [])
        findings = [f"{table.name}: {finding}" for table in found for finding in store.verify(table, minblas.variants())]
        gated = tables.gate_tables(found, minblas.variants(), workers) if compile_rows else []
    findings += [f"{result.row.describe()}: {'; '.join(result.faults)}" for result in gated if not result.ok]
    rows = sum(len(table.entries) for table in found)
    if as_json:
        print_json({"rows": rows, "compiled": len(gated), "findings": findings})
    else:
        compiled = f", {len(gated)} compiled with triton {tables.triton_version()}" if compile_rows else ""
        typer.echo("\n".join([*findings, f"{len(found)} tables, {rows} rows{compiled}, {len(findings)} findings"]))
    raise typer.Exit(1 if findings else 0)
