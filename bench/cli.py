"""The command line: `minblas`, or `python -m bench` without an install.

Sizes are M N K, in that order. Every command takes --json.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import table_cli
from bench.terminal import AsJson, console, print_json, told

if TYPE_CHECKING:
    import torch

    from kernel_zoo.spec import Arch

# Heavy imports are made by the command that needs them, so that `minblas explain` starts without torch.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich", help=__doc__)
app.add_typer(table_cli.app, name="table")

Size = Annotated[int, typer.Argument(min=0)]
Dtype = Annotated[str, typer.Option(help="bf16, fp16, fp32, tf32, fp64, int8, fp8e4m3, ...")]
Layout = Annotated[str, typer.Option(help="nn, nt, tn or tt; a second t: B is stored (N, K).")]
ArchName = Annotated[str | None, typer.Option(help="A device (h200, a100, rtx4090, ...) or a capability (sm_90).")]


def main() -> None:
    """The console script."""
    app()


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


def _cuda() -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device())


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
        done = run.on_gpu(request, console(), _cuda()) if has_gpu() else run.on_cpu(request, arch_named(arch), console())
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
    beta: Annotated[float, typer.Option(help="Other than 0: C is read.")] = 0.0,
    bias: Annotated[bool, typer.Option("--bias")] = False,
    activation: Annotated[str | None, typer.Option()] = None,
    arch: ArchName = None,
    variant: Annotated[str | None, typer.Option(help="Force this variant.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Never this variant; may be given again.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of fp32 products: ieee, tf32, bf16x3, ...")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Only what repeats bit for bit.")] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="A row's bits do not depend on M or the batch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which variant and tile a product gets, by which rung, and what the others were refused for. Needs no GPU."""
    import minblas
    from minblas import dispatch

    with told(), minblas.options(exclude=frozenset(exclude or ()) | minblas.options.get().exclude):
        # fmt: off
        selection = minblas.explain(
            m, n, k, dtype=dtype, layout=layout, batch=batch, out_dtype=out_dtype, beta=beta, bias=bias, activation=activation,
            arch=arch, variant=variant, precision=precision, deterministic=deterministic or None,
            batch_invariant=batch_invariant or None,
        )
        # fmt: on
        if arch is None and has_gpu():
            selection = dispatch.select(selection.problem, _cuda(), variant)
    if as_json:
        print_json(selection.as_dict())
    else:
        console().print(selection)


@app.command()
def variants(as_json: AsJson = False) -> None:
    """List the kernel variants."""
    import minblas

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
        for variant in minblas.variants()
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
        for name in names or [variant.name for variant in minblas.variants()]:
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
    suite: Annotated[list[str] | None, typer.Option(help="A suite or group; may be given again.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the sizes (bf16 by default); of a suite: keep this dtype.")] = None,
    layout: Layout = "nn",
    batch: Annotated[int, typer.Option(min=1, help="Of the sizes.")] = 1,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be given again.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many shapes, spread over the classes.")] = None,
    budget: Annotated[float | None, typer.Option(min=1, help="Stop after so many seconds.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates measured a shape.")] = 16,
    resume: Annotated[Path | None, typer.Option(help="A journal to write, and to go on from.")] = None,
    table: Annotated[Path | None, typer.Option(help="The table to merge the winners into; your own by default.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Compile processes; one per CPU by default.")] = None,
    aten: Annotated[bool, typer.Option("--aten", help="PyTorch's own product competes too.")] = False,
    verify_only: Annotated[bool, typer.Option("--verify-only", help="Check the candidates, time nothing; works on a CPU.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure candidates on this GPU and write the winners into a table; exit code 1 where a candidate's result was wrong."""
    import minblas
    from bench import run
    from minblas.shapes import problem_of

    with told():
        if bool(sizes) == bool(suite):
            raise ValueError("tuning needs sizes (M N K) or --suite, one of the two")
        problems = [problem_of((batch, *triple), dtype or "bf16", layout) for triple in _triples(sizes)] if sizes else []
        if suite:
            request = run.Request(suites=tuple(suite), dtype=dtype, limit=limit)
            problems = [problem for _, problem in run.select_cases(request)]
        report = minblas.tune(
            problems,
            variants=variant,
            budget_s=budget,
            top_k=top_k,
            resume=resume,
            table=table,
            progress=not (quiet or as_json),
            include_aten=aten,
            verify_only=verify_only,
            workers=workers,
        )
    _show(report, as_json)
    raise typer.Exit(1 if report.rejected["wrong"] else 0)


@app.command()
def warmup(
    sizes: Annotated[list[int] | None, typer.Argument(help="M N K, and further triples.")] = None,
    dtype: Dtype = "bf16",
    layout: Layout = "nn",
    as_json: AsJson = False,
) -> None:
    """Compile what these sizes need, so that no first call has to."""
    import minblas

    with told():
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
        typer.echo(str(report))


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
