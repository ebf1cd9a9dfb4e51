"""minblas: a GEMM dispatcher runtime. One call, `gemm`; a zoo of Triton kernels; a table that picks one and says why.

Importing this package imports neither torch nor triton, initialises no device and compiles nothing: names are fetched when
first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

#: Where each public name lives.
_HOMES: Final[dict[str, str]] = {
    "KernelCall": "kernel_zoo.spec",
    "Recipe": "kernel_zoo.spec",
    "TileConfig": "kernel_zoo.spec",
    "accelerate": "minblas.accelerate",
    "addmm": "minblas.torch_names",
    "baddbmm": "minblas.torch_names",
    "bmm": "minblas.torch_names",
    "check": "minblas.check",
    "errors": "minblas.errors",
    "explain": "minblas.explain",
    "gemm": "minblas.api",
    "linear": "minblas.torch_names",
    "matmul": "minblas.torch_names",
    "mm": "minblas.torch_names",
    "options": "minblas.settings",
    "plan": "minblas.api",
    "recorded": "minblas.record",
    "register_variant": "minblas.register",
    "show_versions": "minblas.versions",
    "stats": "minblas.report",
    "tune": "minblas.tune",
    "unregister": "minblas.report",
    "variants": "minblas.report",
    "warmup": "minblas.warmup",
}

__all__ = [
    "KernelCall",
    "Recipe",
    "TileConfig",
    "accelerate",
    "addmm",
    "baddbmm",
    "bmm",
    "check",
    "errors",
    "explain",
    "gemm",
    "linear",
    "matmul",
    "mm",
    "options",
    "plan",
    "recorded",
    "register_variant",
    "show_versions",
    "stats",
    "tune",
    "unregister",
    "variants",
    "warmup",
]

if TYPE_CHECKING:
    from kernel_zoo.spec import KernelCall, Recipe, TileConfig
    from minblas import errors
    from minblas.accelerate import accelerate
    from minblas.api import gemm, plan
    from minblas.check import check
    from minblas.explain import explain
    from minblas.record import recorded
    from minblas.register import register_variant
    from minblas.report import stats, unregister, variants
    from minblas.settings import options
    from minblas.torch_names import addmm, baddbmm, bmm, linear, matmul, mm
    from minblas.tune import tune
    from minblas.versions import show_versions
    from minblas.warmup import warmup


class _Package(ModuleType):
    """This package, whose functions keep their names.

    Python binds a submodule to its name in the package when it is imported. `minblas.plan` is a function and minblas/plan.py a
    module: without this, whichever came last would win.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _HOMES and name != "errors":
            return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'minblas' has no attribute {name!r}")
        module = importlib.import_module(home)
        value = module if name == "errors" else getattr(module, name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *_HOMES})


def _refuse_foreign(*packages: str) -> None:
    """Stop where a module of the same name hides one of ours: a later error would not say so."""
    from minblas.versions import shadowed

    for package in packages:
        path = shadowed(package)
        if path:
            raise ImportError(
                f"minblas needs its own package {package!r}, but Python finds another at {path}; "
                f"needed: the one installed beside minblas; rename that file or move it off sys.path"
            )


_refuse_foreign("kernel_zoo", "heuristics")
sys.modules[__name__].__class__ = _Package

from minblas import log as _log  # noqa: E402  (after the check, so that it is the check that speaks)

_log.configure()
