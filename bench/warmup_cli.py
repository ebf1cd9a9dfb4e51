"""The `minblas warmup` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bench.terminal import ArchName, AsJson, Dtype, Layout, print_json, told

if TYPE_CHECKING:
    from minblas.warmup import WarmShape


def warmup(
    sizes: Annotated[list[int] | None, typer.Argument(help="M N K, and further triples; with --m: N K, and further pairs.")] = None,
    m: Annotated[str | None, typer.Option("--m", help="Every M from A to B, both included: 1:4096; 64:4096:64 in steps.")] = None,
    dtype: Dtype = "bf16",
    layout: Layout = "nn",
    batch: Annotated[int, typer.Option(min=1)] = 1,
    arch: ArchName = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Compile processes; one per CPU but one by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compile what these sizes need, so that no first call has to, and say which M needs which binary."""
    import minblas

    with told(), minblas.options(**({"arch": arch} if arch else {})):
        shapes: list[WarmShape] = _along(parse_range(m), sizes, batch) if m is not None else _triples(sizes, batch)
        device = "cpu" if arch else None
        report = minblas.warmup(shapes, dtype=dtype, layout=layout, device=device, workers=workers, progress=not as_json)
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(str(report))
    raise typer.Exit(1 if report.failures else 0)


def parse_range(text: str) -> range:
    """A range of sizes from "A:B" or "A:B:STEP", B included.

    Raises:
        ValueError: the text has another form, or holds no size.
    """
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--m is {text!r}; needed: A:B or A:B:STEP in whole numbers, such as 1:4096")
    first, last, step = (int(parts[0]), int(parts[1]), int(parts[2]) if len(parts) == 3 else 1)
    if first > last or step < 1:
        raise ValueError(f"--m is {text!r} and holds no size; needed: A at most B, and a step of at least 1")
    return range(first, last + 1, step)


def _along(values: range, sizes: list[int] | None, batch: int) -> list[WarmShape]:
    given = sizes or []
    if not given or len(given) % 2:
        raise ValueError(f"with --m sizes come as N K; given {len(given)} numbers")
    return [(batch, values, given[i], given[i + 1]) for i in range(0, len(given), 2)]


def _triples(sizes: list[int] | None, batch: int) -> list[WarmShape]:
    given = sizes or []
    if not given or len(given) % 3:
        raise ValueError(f"sizes come as M N K (or as N K, with --m); given {len(given)} numbers")
    return [(batch, given[i], given[i + 1], given[i + 2]) for i in range(0, len(given), 3)]
