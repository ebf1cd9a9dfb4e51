"""Whether this thread is inside minblas's own work, where a product of torch's must be torch's own.

`accelerate` puts kernels of ours in the place of torch's. What minblas itself computes with torch (a variant that calls torch.mm, a
rival that is timed, an oracle) would come back to them: under `with INSIDE:` they step aside. Leaf: standard library only.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Inside(threading.local):
    """A block that may be entered again from within itself; each thread has its own depth."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *exc: Any) -> None:
        self.depth -= 1


INSIDE: Final = _Inside()


def with_torchs_own(function: Callable[P, R]) -> Callable[P, R]:
    """A function of minblas that measures against torch, or judges by it: torch's products are torch's own while it runs."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with INSIDE:
            return function(*args, **kwargs)

    return inside
