"""The command line: `minblas`, or `python -m bench` without an install.

Sizes are M N K, in that order. Every command takes --json.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench import explain_cli, fit_cli, heldout_cli, resources_cli, table_cli, terminal, tune_cli, warmup_cli
from bench.terminal import ArchName, AsJson, console, plain_warnings, print_json, told
from kernel_zoo.spec import canonical_dtype

if TYPE_CHECKING:
    from kernel_zoo.spec import Arch

# Heavy imports are made by the command that needs them, so that `minblas explain` starts without torch.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich", help=__doc__)
table_cli.app.command()(fit_cli.fit)
table_cli.app.command()(fit_cli.regret)
table_cli.app.command()(heldout_cli.held_out)
table_cli.app.command()(heldout_cli.renew)
app.add_typer(table_cli.app, name="table")
app.add_typer(resources_cli.app, name="resources")


def main() -> None:
    """The console script."""
    plain_warnings()
    app()


def arch_named(name: str | None) -> Arch:
    """The device of that name, h200 where none is given."""
    from heuristics.archs import get_arch

    return get_arch(name or "h200")


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
    warm_up: Annotated[float, typer.Option(min=0, help="Milliseconds for which a heavy product runs before it is timed.")] = 100.0,
    budget: Annotated[float | None, typer.Option(min=1, help="Stop after so many seconds.")] = None,
    eager: Annotated[bool, typer.Option(help="Also take wall time per call.")] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="Compile processes; one per CPU by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write JSON Lines here.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw PNG files into this folder.")] = None,
    host: Annotated[bool, typer.Option("--host", help="Time what a call costs the host instead.")] = False,
    ladder: Annotated[bool, typer.Option("--ladder", help="Climb from a naive kernel to the fastest, a step a line.")] = False,
    size: Annotated[tuple[int, int, int] | None, typer.Option(help="With --host (256 256 256) or --ladder: M N K.")] = None,
    arch: ArchName = None,
    as_json: AsJson = False,
) -> None:
    """Sweep sizes against torch.matmul. Without a GPU: check small sizes on the CPU and show what --arch would get."""
    if ladder:
        with told():
            if suite or shape_class or limit or plots or budget or workers or host or not (aten and eager):
                raise ValueError(
                    "bench --ladder climbs steps of its own; needed: --dtype, --size M N K, --rounds, --arch, --out, --json "
                    "and nothing else"
                )
            faulty = _bench_ladder(size, dtype, rounds, out, arch, as_json)
        raise typer.Exit(1 if faulty else 0)
    if host:
        with told():
            if suite or shape_class or limit or plots or budget or workers or arch or not (aten and eager):
                raise ValueError(
                    "bench --host times one size; needed: --size M N K, --dtype, --rounds, --out, --json and nothing else"
                )
            _bench_host(size or (256, 256, 256), dtype or "bf16", rounds, out, as_json)
        return
    from bench import run

    with told():
        if size is not None:
            raise ValueError(
                "bench --size is for --host and --ladder; needed: --host or --ladder beside it, "
                "or --suite, --class and --limit for a sweep"
            )
        request = run.Request(
            suites=tuple(suite or ()),
            classes=tuple(shape_class or ()),
            dtype=dtype,
            limit=limit,
            aten=aten,
            rounds=rounds,
            warm_up_ms=warm_up,
            budget_s=budget,
            eager=eager,
            workers=workers,
            out=out,
            plots=plots,
            as_json=as_json,
        )
        done = (
            run.on_gpu(request, console(), terminal.gpu())
            if terminal.has_gpu()
            else run.on_cpu(request, arch_named(arch), console())
        )
    if as_json:
        print_json(done.as_dict())
    raise typer.Exit(1 if done.faulty else 0)


def _bench_host(size: tuple[int, int, int], dtype: str, rounds: int, out: Path | None, as_json: bool) -> None:
    from bench import host

    request = host.Request(size, canonical_dtype(dtype), max(rounds, host.ROUNDS), out)
    done = host.on_gpu(request, terminal.gpu()) if terminal.has_gpu() else host.on_cpu(request)
    if as_json:
        print_json(done.as_dict())
        return
    if done.note:
        console().print(done.note, highlight=False)
    console().print(host.table(done))


def _bench_ladder(
    size: tuple[int, int, int] | None, dtype: str | None, rounds: int, out: Path | None, arch: str | None, as_json: bool
) -> bool:
    """Whether a step was found faulty."""
    from bench import ladder, ladder_results

    request = ladder.Request(size, canonical_dtype(dtype) if dtype else None, rounds, out, silent=as_json)
    done = ladder.on_gpu(request, terminal.gpu()) if terminal.has_gpu() else ladder.on_cpu(request, arch_named(arch))
    if as_json:
        print_json(done.as_dict())
        return done.faulty
    if done.note:
        console().print(done.note, highlight=False)
    for table in ladder_results.tables(done):
        console().print(table)
    return done.faulty


app.command()(explain_cli.explain)


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


app.command()(tune_cli.tune)
app.command()(warmup_cli.warmup)


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
