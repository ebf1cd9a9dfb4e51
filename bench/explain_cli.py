"""The `minblas explain` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.terminal import ArchName, AsJson, Size, arch_here, console, print_json, told

if TYPE_CHECKING:
    from heuristics.selection import Selection


def explain(
    m: Size,
    n: Size,
    k: Size,
    dtype: Annotated[str | None, typer.Option(help="bf16 (the default), fp16, fp32, tf32, fp64, int8, fp8e4m3, ...")] = None,
    layout: Annotated[str | None, typer.Option(help="nn (the default), nt, tn or tt; a second t: B is stored (N, K).")] = None,
    batch: Annotated[int, typer.Option(min=0)] = 1,
    out_dtype: Annotated[str | None, typer.Option()] = None,
    alpha: Annotated[float, typer.Option(help="0: A and B are not read.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Other than 0: C is read.")] = 0.0,
    bias: Annotated[bool, typer.Option("--bias")] = False,
    activation: Annotated[str | None, typer.Option()] = None,
    arch: ArchName = None,
    variant: Annotated[str | None, typer.Option(help="Force this variant.")] = None,
    tile: Annotated[
        str | None, typer.Option(help="Force this tile, as explain prints it: '128x256x64 g8 w8 s3'. With --why: ask about it.")
    ] = None,
    why: Annotated[str | None, typer.Option(help="Say why this variant was not picked, and nothing else.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Never this variant; may be given again.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of fp32 products: ieee, tf32, bf16x3, ...")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Only what repeats bit for bit.")] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="A row's bits do not depend on M or the batch.")
    ] = False,
    sm_count: Annotated[
        int | None, typer.Option("--sm-count", min=1, help="As for a device with so many SMs (a shared GPU).")
    ] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Also say where the device's figures come from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which variant and tile a product gets, by which rung, why, and what is wrong with the others. Needs no GPU."""
    import minblas
    from heuristics.schema import parse_tile

    given: dict[str, Any] = {"dtype": dtype, "layout": layout, "out_dtype": out_dtype, "activation": activation}
    given |= {"precision": precision, "variant": variant, "deterministic": deterministic or None}
    given = {name: value for name, value in given.items() if value is not None}
    with told(), minblas.options(**_options(exclude, sm_count)):
        asked = parse_tile(tile) if tile is not None else None
        if why is None and asked is not None:
            given["tile"] = asked
        # fmt: off
        selection = minblas.explain(
            m, n, k, arch=arch if arch is not None else arch_here(), batch=batch, alpha=alpha, beta=beta, bias=bias,
            batch_invariant=batch_invariant or None, **given,
        )
        # fmt: on
        if why is not None:
            _why(selection, why, asked, as_json)
            return
        shown = selection.as_dict() if as_json else selection.rich(sources=sources)
    if as_json:
        print_json(shown)
    else:
        console().print(shown)


def _options(exclude: list[str] | None, sm_count: int | None) -> dict[str, Any]:
    """What is asked for, beside what the environment excludes."""
    import minblas

    excluded = frozenset(exclude or ()) | minblas.options.get().exclude
    return {"exclude": excluded, **({"sm_count": sm_count} if sm_count else {})}


def _why(selection: Selection, name: str, tile: Any, as_json: bool) -> None:
    """Answer for one variant."""
    from minblas import dispatch

    verdict = selection.why(dispatch.get(name).name, tile)
    if as_json:
        print_json({**verdict.as_dict(), "pick": selection.variant, "rung": selection.rung})
    else:
        picked = f"{selection.variant} {selection.tile.describe() if selection.tile else ''}".rstrip()
        typer.echo(f"{verdict}\nthe pick is {picked} ({selection.rung})")
