"""Which variant serves a problem: the registry, the tables, the options as a policy, and what to do when a pick fails.

The choice itself is `heuristics.choose`, a pure function; here it gets its arguments. Selecting needs neither torch nor a GPU; only
`resolve`, which also makes the pick ready, does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heuristics import choose, store
from heuristics.choose import Policy, Selection
from heuristics.table import HeuristicTable
from kernel_zoo import catalog
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant
from minblas import device as devices
from minblas import errors, log, settings
from minblas.cache import CACHE
from minblas.failures import Quarantine

if TYPE_CHECKING:
    import torch

    from minblas.launch import Prepared

_LOG: Final = log.get("dispatch")
_LOCK: Final = threading.RLock()
_registered: tuple[Variant, ...] = ()
_entry_points_loaded = False
_tables: dict[str, tuple[HeuristicTable, ...]] = {}


def registry() -> tuple[Variant, ...]:
    """Every variant: the zoo's in its own order, then the registered ones. Loads the entry points of packages the first time."""
    _load_entry_points()
    return catalog.VARIANTS + _registered


def _load_entry_points() -> None:
    global _entry_points_loaded
    if _entry_points_loaded:
        return
    with _LOCK:
        if not _entry_points_loaded:
            _entry_points_loaded = True
            from minblas.register import load_entry_points

            load_entry_points()


def get(name: str) -> Variant:
    """The variant of that name.

    Raises:
        UnknownVariantError: there is none; the message has the nearest names.
    """
    known = {variant.name: variant for variant in registry()}
    if name not in known:
        raise errors.UnknownVariantError(
            f"variant is {name!r}", "a variant's name (minblas.variants() lists them)", errors.suggestion(name, known)
        )
    return known[name]


def register(variant: Variant) -> None:
    """Add a variant.

    Raises:
        ArgumentError: the name is taken.
    """
    global _registered
    with _LOCK:
        for other in catalog.VARIANTS + _registered:
            if other.name == variant.name:
                raise errors.ArgumentError(
                    f"a variant named {variant.name!r} exists: {other.summary}",
                    "a name of its own",
                    "unregister it first, or choose another",
                )
        _registered = (*_registered, variant)
    forget_plans()


def unregister(name: str) -> None:
    """Remove a registered variant.

    Raises:
        UnknownVariantError: no registered variant has that name; the zoo's own cannot be removed.
    """
    global _registered
    with _LOCK:
        left = tuple(variant for variant in _registered if variant.name != name)
        if len(left) == len(_registered):
            known = [variant.name for variant in _registered] or ["none"]
            remedy = errors.suggestion(name, known)
            raise errors.UnknownVariantError(
                f"no registered variant is named {name!r}", "a name that register_variant was given", remedy
            )
        _registered = left
    QUARANTINE.forgive(name)
    forget_plans()


def forget_plans() -> None:
    """Forget what was chosen before: a table or the registry has changed."""
    with _LOCK:
        _tables.clear()
    CACHE.clear()


def tables(arch: Arch) -> tuple[HeuristicTable, ...]:
    """The user's tables, then the packaged ones, that say something about a device."""
    found = _tables.get(arch.name)
    if found is None:
        found = (*store.user_tables(arch), *store.packaged_tables(arch))
        with _LOCK:
            _tables[arch.name] = found
    return found


def policy(variant: str | None = None, tile: TileConfig | None = None) -> Policy:
    """A call's wishes over those of the options in force."""
    options = settings.current()
    return Policy(
        variant=variant or options.variant,
        tile=tile,
        prefer=options.prefer,
        exclude=options.exclude,
        workspace_limit=options.workspace_limit,
    )


def select(
    problem: GemmProblem, device: torch.device | Arch, variant: str | None = None, tile: TileConfig | None = None
) -> Selection:
    """What would serve a problem on a device, and why.

    Raises:
        UnknownVariantError: the forced variant does not exist.
        VariantError: the forced variant or tile cannot serve the problem; the message is its refusal.
        NoVariantError: nothing can.
    """
    arch = device if isinstance(device, Arch) else devices.arch_of(device)
    wishes = policy(variant, tile)
    for name in (*wishes.exclude, *((wishes.variant,) if wishes.variant is not None else ())):
        get(name)
    try:
        return choose.choose(problem, arch, registry(), tables=tables(arch), policy=wishes)
    except choose.ForcedVariantError as error:
        refusal = error.refusal
        given = f"{error.variant} cannot serve {problem.describe()} on {arch.name}: {refusal.given}"
        refused = errors.VariantError(given, refusal.needed, "minblas.explain shows which variants can serve it")
        refused.refusal = error.refusal
        raise refused from None
    except choose.NoVariantError as error:
        raise errors.NoVariantError(
            str(error), remedy="allow more variants (options(exclude=...)), or change the operands"
        ) from None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A pick that is ready to run.

    Attributes:
        variant: what runs.
        tile: its tile.
        rung: how it was chosen.
        reason: why, where it is aten.
        forced: the caller or the options named it.
        provisional: aten stands in until the pick's kernel is compiled.
    """

    variant: str
    tile: TileConfig | None
    prepared: Prepared
    rung: str
    reason: str = ""
    forced: bool = False
    provisional: bool = False


def resolve(problem: GemmProblem, device: torch.device, variant: str | None = None, tile: TileConfig | None = None) -> Resolved:
    """Select, then make ready; a pick that fails is quarantined and the next ranked one is tried, down to aten.

    Raises:
        LaunchError: a forced pick, or everything, failed.
        ColdCallError: a kernel would have to be compiled or loaded where that is not allowed.
    """
    from minblas import launch

    arch = devices.arch_of(device)
    selection = select(problem, arch, variant, tile)
    forced = selection.rung == "forced"
    for name, candidate_tile in _candidates(selection):
        chosen = get(name)
        if not forced and QUARANTINE.holds(problem, arch, name, candidate_tile):
            continue
        if not launch.is_ready(chosen, problem, candidate_tile, arch, device):
            stand_in = _cold(problem, device, name, forced)
            if stand_in is not None:
                return stand_in
        try:
            prepared = launch.prepare(chosen, problem, candidate_tile, arch, device, forced=forced)
        except Exception as error:  # the compiler, the driver and recipes raise anything; a net is there to catch it
            report_failure(problem, arch, name, candidate_tile, error, forced)
            continue
        reason = prepared.reason or (selection.reason if name == selection.variant else "every pick before it failed")
        _LOG.info(
            "%s: %s %s (%s)",
            problem.describe(),
            prepared.variant,
            candidate_tile.describe() if candidate_tile else "",
            selection.rung,
        )
        return Resolved(prepared.variant, candidate_tile, prepared, selection.rung, reason, forced)
    raise errors.LaunchError(f"every variant failed on {problem.describe()}", remedy="minblas.stats() has each failure")


def _candidates(selection: Selection) -> Iterator[tuple[str, TileConfig | None]]:
    """The pick; then, worked out only where it failed, what was ranked behind it, and the net unless it is excluded."""
    seen = [(selection.variant, selection.tile)]
    yield seen[0]
    if selection.problem.batch_invariant:
        return  # another kernel would give a row other bits
    net = [] if choose.NET in settings.current().exclude else [(choose.NET, None)]
    for pick in [*((candidate.variant, candidate.tile) for candidate in selection.ranked), *net]:
        if pick not in seen:
            seen.append(pick)
            yield pick


def _cold(problem: GemmProblem, device: torch.device, name: str, forced: bool) -> Resolved | None:
    """What to do about a pick that is not compiled: None to go on and compile it.

    Raises:
        ColdCallError: compiling is not allowed here.
    """
    import torch

    from minblas import launch

    on_cold = settings.current().on_cold
    what = f"{problem.describe()} needs {name}, which is not compiled and loaded yet"
    if on_cold == "aten" and not forced:
        prepared = launch.Opaque(catalog.get("aten"), problem, device)
        return Resolved("aten", None, prepared, "default", "the pick is not compiled (on_cold='aten')", provisional=True)
    if on_cold == "raise":
        raise errors.ColdCallError(what, "a warm call (on_cold='raise')", "call minblas.warmup for this shape first")
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            remedy = "call minblas.warmup, or this very call once, before the capture"
            raise errors.ColdCallError(
                f"{what}, and a CUDA graph is being captured", "loaded kernels: a module cannot be loaded during capture", remedy
            )
    return None


def report_failure(problem: GemmProblem, arch: Arch, name: str, tile: TileConfig | None, error: Exception, forced: bool) -> None:
    """Remember that a pick failed, and say so once.

    Raises:
        LaunchError: it was forced, or was the last resort.
    """
    what = f"{name} {tile.describe() if tile else ''}".strip()
    if forced or name == "aten":
        raise errors.LaunchError(
            f"{what} failed on {problem.describe()}: {type(error).__name__}: {error}",
            remedy="leave variant= away to let another serve",
        ) from error
    QUARANTINE.add(problem, arch, name, tile, error)
    log.once("dispatch", "%s failed on %s and is passed over from now on: %s: %s", what, arch.name, type(error).__name__, error)


QUARANTINE: Final = Quarantine()
