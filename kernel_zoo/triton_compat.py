"""triton and triton.language, or a stand-in where triton cannot be installed (macOS).

With the stand-in, kernel files import and describe their launches, so that choosing, explaining and checking tables work;
compiling, interpreting or launching says what is missing.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, Final

try:
    import triton
    import triton.language as tl

    HAVE_TRITON = True
except ImportError:  # pragma: no cover - exercised in a subprocess that hides triton
    HAVE_TRITON = False

    class _Undecorated:
        """A kernel's source without a compiler: its name and parameters, and nothing that runs."""

        def __init__(self, fn: Any) -> None:
            self.fn = fn
            self.__name__ = fn.__name__
            self.arg_names = list(inspect.signature(fn).parameters)

    triton = SimpleNamespace(jit=_Undecorated, __version__="absent")
    tl = SimpleNamespace(constexpr=None)

#: Minor versions that the kernels are gated on and the direct launch was tested with.
TESTED: Final = ("3.6", "3.7")
#: Versions that every row of every packaged table is compiled on (`make gate`).
GATED: Final = ("3.6.0", "3.7.1")


def is_tested(version: str) -> bool:
    """Whether a version of triton is one of a tested minor."""
    return ".".join(version.split(".")[:2]) in TESTED


__all__ = ["GATED", "HAVE_TRITON", "TESTED", "is_tested", "tl", "triton"]
