"""What every command says the same way (tables, JSON, and errors as one line), and the GPU that it may find."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from minblas.errors import MinblasError

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from kernel_zoo.spec import Arch

Size = Annotated[int, typer.Argument(min=0)]
Dtype = Annotated[str, typer.Option(help="bf16, fp16, fp32, tf32, fp64, int8, fp8e4m3, ...")]
Layout = Annotated[str, typer.Option(help="nn, nt, tn or tt; a second t: B is stored (N, K).")]
ArchName = Annotated[str | None, typer.Option(help="A device (h200, a100, rtx4090, ...) or a capability (sm_90).")]
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


def plain_warnings() -> None:
    """What tables warn of is for the user: a line of its own, without the place in our code that said it."""
    from heuristics.notices import TableWarning

    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, TableWarning):
            typer.secho(f"warning: {message}", err=True, fg=typer.colors.YELLOW)
        else:
            before(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def has_gpu() -> bool:
    """torch is installed and sees a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def gpu() -> torch.device:
    """The current GPU, where there is one."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def arch_here() -> Arch | None:
    """The current GPU as a device to choose for; None where there is none."""
    if not has_gpu():
        return None
    from minblas.device import arch_of

    return arch_of(gpu())


def console() -> Console:
    """Where tables go. As wide as a terminal is, and wide enough not to cut a table in a file or a log."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=160, soft_wrap=True)


def print_json(data: Any) -> None:
    """Data on standard output, for programs."""
    typer.echo(json.dumps(data, indent=2, default=str))
