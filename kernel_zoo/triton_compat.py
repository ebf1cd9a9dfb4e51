"""triton, its language and its lower-level language Gluon, or stand-ins where triton cannot be installed (macOS).

With the stand-in, kernel files import and describe their launches, so that choosing, explaining and checking tables work;
compiling, interpreting or launching says what is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final

try:
    import triton
    import triton.language as tl

    HAVE_TRITON = True
except ImportError:  # pragma: no cover - exercised in a subprocess that hides triton
    HAVE_TRITON = False

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper

    HAVE_GLUON = True
except ImportError:  # pragma: no cover - likewise, and in a triton that has no Gluon
    HAVE_GLUON = False


class Undecorated:
    """A kernel's source without a compiler: its name and parameters, and nothing that runs."""

    def __init__(self, fn: Any, language: str, general: Iterable[int | str], unaligned: Iterable[int | str]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.arg_names = list(inspect.signature(fn).parameters)
        loose, plain = set(general), set(unaligned)
        self.params = [
            SimpleNamespace(
                name=name, num=i, do_not_specialize=bool({i, name} & loose), do_not_specialize_on_alignment=bool({i, name} & plain)
            )
            for i, name in enumerate(self.arg_names)
        ]
        self._language = language

    def is_gluon(self) -> bool:
        """Whether it is written in Gluon."""
        return self._language == "gluon"


class Constant:
    """A number that kernels read where they are compiled; also what annotates a parameter that takes one."""

    def __init__(self, value: Any) -> None:
        self.value = value


def stand_in(language: str) -> Callable[..., Any]:
    """A `jit` that keeps what a launch is described by; used bare or with keywords, as triton's own."""

    def jit(
        fn: Any = None,
        *,
        do_not_specialize: Iterable[int | str] | None = None,
        do_not_specialize_on_alignment: Iterable[int | str] | None = None,
        **options: Any,
    ) -> Any:
        def decorate(fn: Any) -> Undecorated:
            return Undecorated(fn, language, do_not_specialize or (), do_not_specialize_on_alignment or ())

        return decorate if fn is None else decorate(fn)

    return jit


if not HAVE_TRITON:  # pragma: no cover - see above
    triton = SimpleNamespace(jit=stand_in("triton"), __version__="absent")
    tl = SimpleNamespace(constexpr=Constant)
if not HAVE_GLUON:  # pragma: no cover - see above
    gluon = SimpleNamespace(jit=stand_in("gluon"), constexpr_function=lambda fn: fn)
    gl = SimpleNamespace(constexpr=Constant)
    hopper = SimpleNamespace()


def is_gluon(kernel: Any) -> bool:
    """Whether a jitted function is written in Gluon."""
    asked = getattr(kernel, "is_gluon", None)
    return bool(asked and asked())


#: Minor versions that the kernels are gated on and the direct launch was tested with.
TESTED: Final = ("3.6", "3.7")
#: Versions that every row of every packaged table is compiled on (`make gate`).
GATED: Final = ("3.6.0", "3.7.1")


def is_tested(version: str) -> bool:
    """Whether a version of triton is one of a tested minor."""
    return ".".join(version.split(".")[:2]) in TESTED


__all__ = [
    "GATED",
    "HAVE_GLUON",
    "HAVE_TRITON",
    "TESTED",
    "gl",
    "gluon",
    "hopper",
    "is_gluon",
    "is_tested",
    "tl",
    "triton",
]
