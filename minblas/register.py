"""Kernels of the user's own: from declarations to a Variant whose refusals are written for them.

A registered variant is a variant like any other: the plan, the compile gate, the interpreter, the check and the tuner take it as it
is. It serves where it is forced or where a row of a table names it.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from kernel_zoo.spec import GemmCall, GemmProblem, KernelCall, Recipe, TileConfig, Variant
from minblas import log
from minblas.declared import Declared, declare, sample_problem
from minblas.errors import ArgumentError

if TYPE_CHECKING:
    import torch

RecipeMaker = Callable[[GemmCall, TileConfig], Recipe | KernelCall]

ENTRY_POINT_GROUP: Final = "minblas.variants"

_LOCK: Final = threading.Lock()
_ORIGINS: Final[dict[str, str]] = {}
_loaded = False


@dataclass(frozen=True, slots=True)
class OpaqueLaunch:
    """A user's launcher, called with torch views instead of slots."""

    function: Callable[..., object]
    activation: bool

    def __call__(self, problem: GemmProblem, slots: Mapping[str, torch.Tensor], alpha: float, beta: float) -> None:
        """launch(a, b, out, *, alpha, beta, c, bias): 2-D tensors, or 3-D where the batch is not 1."""
        from kernel_zoo.matrices import matrix

        views: dict[str, torch.Tensor | None] = {"C": None, "BIAS": None}
        for name, operand in problem.operands.items():
            view = matrix(slots[name], operand, problem.batch)
            views[name] = view[0] if problem.batch == 1 else view
        extra = {"activation": problem.epilogue.activation} if self.activation else {}
        self.function(views["A"], views["B"], views["OUT"], alpha=alpha, beta=beta, c=views["C"], bias=views["BIAS"], **extra)


def register_variant(
    name: str,
    recipe: RecipeMaker | None = None,
    *,
    launch: Callable[..., object] | None = None,
    dtypes: Sequence[object],
    layouts: Sequence[str],
    epilogue: str = "none",
    candidates: Sequence[TileConfig] = (),
    kernels: Sequence[Any] | None = None,
    capability: tuple[int, int] | int | str = (8, 0),
    alignment: int = 1,
    batch: bool = False,
    wide: bool = False,
    deterministic: bool = False,
    interpretable: bool | None = None,
    verify: bool | None = None,
    summary: str = "",
) -> Variant:
    """Add a kernel of one's own to the choice.

    Args:
        name: with a dot, so that it never meets a shipped one: "me.tutorial".
        recipe: recipe(call, tile) -> KernelCall or Recipe: what to launch, as data.
        launch: instead of a recipe, a callable launch(a, b, out, *, alpha, beta, c, bias) that launches by itself, over tensors of
            shape (M, K), (K, N), (M, N), each with a leading batch where that is not 1. With epilogue="full" it is given
            activation= too. Such a variant cannot be compiled ahead, gated or interpreted.
        dtypes: of the inputs, e.g. ["fp16", "bf16"]; "fp32" means exact products, "tf32" fp32 inputs rounded to TF32. The output is
            of the inputs' type (fp8: bf16, int8: int32).
        layouts: of A and B: "nn", "nt" (B stored (N, K)), "tn", "tt"; "s" for an operand without a unit stride.
        epilogue: "none", "alpha_beta" or "full"; C and bias come with strides, 0 where they are broadcast.
        candidates: the tiles it may run with.
        kernels: the jitted functions a recipe may launch; found by calling it on a small problem where not given.
        capability: the least compute capability: (9, 0), 90 or "sm_90".
        alignment: bytes to which lines of A, B and out must be aligned.
        batch: it handles a batch.
        wide: it handles operands of more than 2^31 elements.
        deterministic: it repeats bit for bit.
        interpretable: it runs on CPU tensors: a recipe through the interpreter (the default), a launch by itself (not the default).
        verify: run a quick check now, and warn and quarantine the variant where it is wrong. By default where that is cheap: on a
            GPU that is already in use, or through the interpreter on a machine without one.
        summary: one sentence.

    Raises:
        ArgumentError: a declaration cannot be used, or the name is taken.
    """
    source = recipe if recipe is not None else launch
    if source is None or (recipe is not None and launch is not None):
        given = "both a recipe and a launch" if source is not None else "neither a recipe nor a launch"
        raise ArgumentError(f"variant {name!r} has {given}", "exactly one of the two")
    _check_name(name)
    declared = declare(name, dtypes, layouts, epilogue, candidates, capability, alignment, batch, wide, opaque=launch is not None)
    if recipe is not None:
        found = tuple(kernels) if kernels is not None else _find_kernels(name, recipe, declared)
    else:
        found = tuple(kernels) if kernels is not None else (launch,)
    variant = Variant(
        name=name,
        summary=summary or (inspect.getdoc(source) or "registered by the user").splitlines()[0],
        supports=declared.supports,
        space=declared.space,
        recipe=recipe,
        fits=declared.fits,
        launch=OpaqueLaunch(launch, epilogue == "full") if launch is not None else None,
        kernels=found,
        deterministic=deterministic,
        interpretable=(recipe is not None) if interpretable is None else interpretable,
        origin="user",
    )
    _add(variant, _origin(source))
    if _checkable(variant) if verify is None else verify:
        _quick_check(variant)
    return variant


def _checkable(variant: Variant) -> bool:
    """Whether a quick check costs little and does not wake a device that the process has not touched."""
    from torch import cuda

    initialized: Callable[[], bool] = cuda.is_initialized
    return initialized() if cuda.is_available() else variant.interpretable


def _quick_check(variant: Variant) -> None:
    from minblas.check import check

    report = check(variant, quick=True)
    if report.wrong:
        warnings.warn(f"{report}", RuntimeWarning, stacklevel=3)


def _add(variant: Variant, origin: str) -> None:
    """Put a variant into the registry under a name that is free."""
    from minblas import dispatch

    name = variant.name
    if any(known.name == name for known in dispatch.registry()):
        raise ArgumentError(
            f"variant {name!r} is already registered from {_ORIGINS.get(name, 'elsewhere')}",
            f"another name for the one from {origin}",
            f"or minblas.unregister({name!r}) first",
        )
    dispatch.register(variant)  # refuses the name by itself, should another thread have been faster
    _ORIGINS[name] = origin
    log.get("register").info("%s registered from %s", name, origin)


def _check_name(name: str) -> None:
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) < 2 or not all(map(_is_word, parts)):
        last = parts[-1] if parts and _is_word(parts[-1]) else "tutorial"
        raise ArgumentError(f"a variant's name is {name!r}", "words with a dot between", f"for example 'me.{last}'")


def _is_word(part: str) -> bool:
    return bool(part) and part.replace("_", "").replace("-", "").isalnum()


def _find_kernels(name: str, recipe: RecipeMaker, declared: Declared) -> tuple[Any, ...]:
    """The kernels the recipe launches on a small problem, over all its candidates."""
    from heuristics.archs import ARCHS

    device = replace(next(iter(ARCHS.values())), capability=max(declared.capability, (9, 0)))
    call = GemmCall.of(sample_problem(declared), device)
    found: dict[int, Any] = {}
    for tile in declared.candidates:
        try:
            made = recipe(call, tile)
        except Exception as error:  # the user's code; the registration is where its mistakes belong
            raise ArgumentError(
                f"{name}: the recipe failed on {sample_problem(declared).describe()} with tile {tile.describe()}: {error!r}",
                "a KernelCall or Recipe for every candidate",
            ) from error
        calls: Iterable[Any] = made.calls if isinstance(made, Recipe) else (made,)
        for launched in calls:
            if not isinstance(launched, KernelCall):
                raise ArgumentError(
                    f"{name}: the recipe returned {type(launched).__name__}", "a minblas.KernelCall or a Recipe of them"
                )
            found[id(launched.kernel)] = launched.kernel
    return tuple(found.values())


def _origin(source: Any) -> str:
    """Where a registered function is written."""
    plain = inspect.unwrap(getattr(source, "func", source))
    code = getattr(plain, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}"
        if code is not None
        else f"{type(source).__module__}.{type(source).__qualname__}"
    )


def load_entry_points() -> None:
    """Take in what installed packages offer in the group "minblas.variants". Done once; a broken one is said and skipped.

    An entry point names a Variant, a list of them, or a callable without arguments that registers what it has.
    """
    global _loaded
    with _LOCK:
        if _loaded:
            return
        _loaded = True  # first: what is loaded registers itself, and registering looks at the registry
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            _take_in(point.load(), f"{point.value} ({point.dist.name if point.dist else 'entry point'})")
        except Exception as error:  # another package's code may fail in any way; ours must not with it
            message = (
                f"entry point {point.name} = {point.value} of group {ENTRY_POINT_GROUP} is skipped: {type(error).__name__}: {error}"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def _take_in(loaded: Any, origin: str) -> None:
    if callable(loaded) and not isinstance(loaded, Variant):
        loaded()
        return
    for variant in (loaded,) if isinstance(loaded, Variant) else tuple(loaded):
        if not isinstance(variant, Variant):
            raise TypeError(f"{type(variant).__name__} is not a Variant")
        _check_name(variant.name)
        _add(replace(variant, origin="user"), origin)
