"""The command line: `minblas`, or `python -m bench` without an install.

Sizes are M N K, in that order. Every command takes --json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from kernel_zoo.spec import Arch, GemmProblem, Variant

# Heavy imports are made by the command that needs them, so that `minblas explain` starts without torch.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich", help=__doc__)
table_app = typer.Typer(no_args_is_help=True, help="Tuned tables: show, diff, merge, verify.")
app.add_typer(table_app, name="table")

Size = Annotated[int, typer.Argument(min=0)]
Dtype = Annotated[str, typer.Option(help="bf16, fp16, fp32, tf32, fp64, int8, fp8e4m3, ...")]
Layout = Annotated[str, typer.Option(help="nn, nt, tn or tt; a second t: B is stored (N, K).")]
ArchName = Annotated[str | None, typer.Option(help="A device (h200, a100, rtx4090, ...) or a capability (sm_90).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """The console script."""
    app()


def fail(message: str) -> NoReturn:
    """Say what is wrong and end with exit code 2."""
    typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(2)


@contextmanager
def told() -> Iterator[None]:
    """Errors that a user's input caused become one line instead of a traceback."""
    try:
        yield
    except (ValueError, LookupError, OSError, ImportError) as error:
        fail(str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error))


def console() -> Console:
    """Where tables go. As wide as a terminal is, and wide enough not to cut a table in a file or a log."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=160, soft_wrap=True)


def print_json(data: Any) -> None:
    """Data on standard output, for programs."""
    typer.echo(json.dumps(data, indent=2, default=str))


def problem_of(m: int, n: int, k: int, dtype: str, layout: str, batch: int = 1, out_dtype: str | None = None) -> GemmProblem:
    """The problem over contiguous matrices; "tf32" is fp32 with TF32 precision."""
    from kernel_zoo.spec import GemmProblem

    tf32 = dtype == "tf32"
    precision = "tf32" if tf32 else ""
    return GemmProblem.of(m, n, k, "fp32" if tf32 else dtype, layout, batch=batch, out_dtype=out_dtype, precision=precision)


def arch_named(name: str | None) -> Arch:
    """The device of that name, h200 where none is given."""
    from heuristics.archs import get_arch

    return get_arch(name or "h200")


def has_gpu() -> bool:
    """torch is installed and sees a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def shipped() -> tuple[Variant, ...]:
    """The zoo. Variants of installed packages too where torch is there to load them."""
    from kernel_zoo.catalog import VARIANTS

    return VARIANTS


@app.command()
def bench(
    suite: Annotated[
        list[str] | None, typer.Option(help="A suite or group (all-16bit, all-fp32, ...); may be given again.")
    ] = None,
    shape_class: Annotated[list[str] | None, typer.Option("--class", help="Keep this class (large, gemv, split-K, ...).")] = None,
    dtype: Annotated[str | None, typer.Option(help="Keep this dtype (bf16, fp32, tf32, ...).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many shapes, spread over the classes.")] = None,
    aten: Annotated[bool, typer.Option("--aten/--no-aten", help="May PyTorch's own product serve what the zoo refuses?")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds a shape.")] = 5,
    budget: Annotated[float | None, typer.Option(min=1, help="Stop after so many seconds.")] = None,
    eager: Annotated[bool, typer.Option(help="Also take wall time per call.")] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="Compile processes; one per CPU by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write JSON Lines here.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw PNG files into this folder.")] = None,
    arch: ArchName = None,
    as_json: AsJson = False,
) -> None:
    """Sweep sizes against torch.matmul. Without a GPU: check small sizes on the CPU and show what --arch would get."""
    from bench import run

    with told():
        device_arch = arch_named(arch)
    request = run.Request(
        suites=tuple(suite or ()),
        classes=tuple(shape_class or ()),
        dtype=dtype,
        limit=limit,
        aten=aten,
        rounds=rounds,
        budget_s=budget,
        eager=eager,
        workers=workers,
        out=out,
        plots=plots,
        as_json=as_json,
    )
    screen = console()
    with told():
        done = run.on_gpu(request, screen) if has_gpu() else run.on_cpu(request, device_arch, screen)
    if as_json:
        print_json(done.as_dict())
    raise typer.Exit(1 if done.faulty else 0)


@app.command()
def explain(
    m: Size,
    n: Size,
    k: Size,
    dtype: Dtype = "bf16",
    layout: Layout = "nn",
    batch: Annotated[int, typer.Option(min=0)] = 1,
    out_dtype: Annotated[str | None, typer.Option()] = None,
    arch: ArchName = None,
    variant: Annotated[str | None, typer.Option(help="Force this variant.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Never this variant; may be given again.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which variant and tile a product gets, by which rung, and what the others were refused for. Needs no GPU."""
    from heuristics import choose, store

    with told():
        problem = problem_of(m, n, k, dtype, layout, batch, out_dtype)
        policy = choose.Policy(variant=variant, exclude=frozenset(exclude or ()))
        device = arch_named(arch) if arch or not has_gpu() else _this_gpu()
        tables = (*store.user_tables(device), *store.packaged_tables(device))
        selection = choose.choose(problem, device, _all_variants(), tables, policy=policy)
    if as_json:
        print_json(selection.as_dict())
    else:
        console().print(selection)


def _this_gpu() -> Arch:
    import torch

    from minblas.device import arch_of

    return arch_of(torch.device("cuda", torch.cuda.current_device()))


def _all_variants() -> tuple[Variant, ...]:
    """The zoo and what installed packages offer; the zoo alone where torch is missing."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return shipped()
    from importlib.metadata import entry_points

    if not entry_points(group="minblas.variants"):
        return shipped()
    from minblas import dispatch, register

    register.load_entry_points()
    return dispatch.registry()


@app.command()
def variants(as_json: AsJson = False) -> None:
    """List the kernel variants."""
    with told():
        found = _all_variants()
    rows = [
        {
            "name": variant.name,
            "summary": variant.summary,
            "origin": variant.origin,
            "kind": "opaque" if variant.recipe is None else "recipe",
            "deterministic": variant.deterministic,
            "interpretable": variant.interpretable,
            "digest": variant.digest,
        }
        for variant in found
    ]
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("variant", "origin", "kind", "deterministic", "digest", "good for", title="Variants", title_justify="left")
    for row in rows:
        kind, repeats = str(row["kind"]), "yes" if row["deterministic"] else "no"
        table.add_row(str(row["name"]), str(row["origin"]), kind, repeats, str(row["digest"]), str(row["summary"]))
    console().print(table)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Variants; every one by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a variant over tails, layouts, strides and epilogues against float64: N right, M refused, 0 wrong."""
    import torch

    import minblas

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reports = []
    with told():
        for name in names or [variant.name for variant in _all_variants()]:
            report = minblas.check(name, device=device)
            reports.append(report)
            if not as_json:
                typer.echo(str(report))
    if as_json:
        print_json([report.as_dict() for report in reports])
    raise typer.Exit(1 if any(report.wrong for report in reports) else 0)


@app.command()
def tune(
    sizes: Annotated[list[int] | None, typer.Argument(help="M N K, and further triples.")] = None,
    suite: Annotated[list[str] | None, typer.Option(help="Tune a suite or group instead of sizes.")] = None,
    dtype: Dtype = "bf16",
    layout: Layout = "nn",
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be given again.")] = None,
    budget: Annotated[float | None, typer.Option(min=1, help="Stop after so many seconds.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates measured a shape.")] = 16,
    resume: Annotated[Path | None, typer.Option(help="A journal to write, and to go on from.")] = None,
    aten: Annotated[bool, typer.Option("--aten", help="Measure PyTorch's own product as a candidate too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure candidates on this GPU and write the winners into your own table."""
    with told():
        import minblas
        from heuristics import suites

        problems = suites.problems(suite) if suite else [problem_of(*triple, dtype, layout) for triple in _triples(sizes)]
        report = minblas.tune(
            problems,
            variants=variant,
            budget_s=budget,
            top_k=top_k,
            resume=resume,
            progress=not as_json,
            include_aten=aten,
        )
    _show(report, as_json)


@app.command()
def warmup(
    sizes: Annotated[list[int] | None, typer.Argument(help="M N K, and further triples.")] = None,
    dtype: Dtype = "bf16",
    layout: Layout = "nn",
    as_json: AsJson = False,
) -> None:
    """Compile what these sizes need, so that no first call has to."""
    with told():
        import minblas

        report = minblas.warmup(_triples(sizes), dtype=dtype, layout=layout)
    _show(report, as_json)


def _triples(sizes: list[int] | None) -> list[tuple[int, int, int]]:
    """Sizes as (M, N, K).

    Raises:
        ValueError: they do not come in threes.
    """
    given = sizes or []
    if not given or len(given) % 3:
        raise ValueError(f"sizes come as M N K; given {len(given)} numbers")
    return [(given[i], given[i + 1], given[i + 2]) for i in range(0, len(given), 3)]


def _show(report: Any, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
    else:
        console().print(report if hasattr(report, "__rich__") else str(report))


@table_app.command("show")
def table_show(
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


@table_app.command("diff")
def table_diff(old: Path, new: Path, as_json: AsJson = False) -> None:
    """Print the rows in which two tables differ; exit code 1 where they do."""
    from heuristics import store

    with told():
        changes = store.diff(store.load(old), store.load(new))
    if as_json:
        print_json([change.as_dict() for change in changes])
    else:
        typer.echo("\n".join([*map(str, changes), f"{len(changes)} rows differ"]))
    raise typer.Exit(1 if changes else 0)


@table_app.command("merge")
def table_merge(
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


@table_app.command("verify")
def table_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Files or devices; the packaged tables by default.")] = None,
    compile_rows: Annotated[bool, typer.Option("--compile", help="Compile every row for its device and read the binary.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Compile processes; one per CPU by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that every row is legal and measured on the kernels as they are; exit code 1 where one is not. Needs no GPU."""
    from bench import tables
    from heuristics import store

    with told():
        found = tables.find(names or [])
        findings = [(table.name, str(finding)) for table in found for finding in store.verify(table, _all_variants())]
        gated = tables.gate_tables(found, _all_variants(), workers) if compile_rows else []
    findings += [(result.row.label, f"{result.row.describe()}: {'; '.join(result.faults)}") for result in gated if not result.ok]
    rows = sum(len(table.entries) for table in found)
    if as_json:
        print_json({"rows": rows, "compiled": len(gated), "findings": [f"{name}: {text}" for name, text in findings]})
    else:
        for name, text in findings:
            typer.echo(f"{name}: {text}")
        compiled = f", {len(gated)} compiled with triton {tables.triton_version()}" if compile_rows else ""
        typer.echo(f"{len(found)} tables, {rows} rows{compiled}, {len(findings)} findings")
    raise typer.Exit(1 if findings else 0)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine, and what is missing with its remedy."""
    from bench import environment

    findings = environment.examine()
    if as_json:
        print_json([finding.as_dict() for finding in findings])
        return
    from rich.table import Table

    table = Table("", "what", "found", "remedy", title="minblas doctor", title_justify="left")
    for finding in findings:
        table.add_row("[green]ok[/green]" if finding.ok else "[yellow]--[/yellow]", finding.name, finding.found, finding.remedy)
    console().print(table)


if __name__ == "__main__":
    main()
