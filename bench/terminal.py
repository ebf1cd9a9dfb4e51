"""What every command says the same way: tables, JSON, and errors as one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from minblas.errors import MinblasError

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def fail(message: str) -> NoReturn:
    """Say what is wrong and end with exit code 2."""
    typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(2)


@contextmanager
def told() -> Iterator[None]:
    """Errors that a user's input caused become one line instead of a traceback."""
    try:
        yield
    except (MinblasError, ValueError, LookupError, OSError, ImportError) as error:
        fail(str(error))


def console() -> Console:
    """Where tables go. As wide as a terminal is, and wide enough not to cut a table in a file or a log."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=160, soft_wrap=True)


def print_json(data: Any) -> None:
    """Data on standard output, for programs."""
    typer.echo(json.dumps(data, indent=2, default=str))
