"""Which variant serves a problem: the options as a policy, the choice, and what to do when a pick fails.

The choice itself is `heuristics.choose`, a pure function; here it gets its arguments. Selecting needs neither torch nor a GPU; only
`resolve`, which also makes the pick ready, does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from heuristics import choose
from heuristics.choose import Policy, Selection
from kernel_zoo import catalog
from kernel_zoo.spec import Arch, GemmProblem, TileConfig
from minblas import device as devices
from minblas import errors, log, settings
from minblas.failures import QUARANTINE
from minblas.registry import forget_plans, get, register, registry, resources, tables, unregister

if TYPE_CHECKING:
    import torch

    from minblas.launch import Prepared

_LOG: Final = log.get("dispatch")
_MOST_FAILURES: Final = 3  # tiles of one variant that are tried before the next variant is
_SKIPPED: Final = ("every pick before it failed", "every pick before it failed or spills registers")
_MOST_SPILLING: Final = 3  # picks that are passed over because they spill; then the best of them serves after all


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
    problem: GemmProblem,
    device: torch.device | Arch,
    variant: str | None = None,
    tile: TileConfig | None = None,
    *,
    interpreted: bool = False,
) -> Selection:
    """What would serve a problem on a device, and why.

    Args:
        problem: the call.
        device: where, as it is or as the choice sees it.
        variant: forces one by name.
        tile: forces a tile.
        interpreted: the operands are a CPU's: only what can be interpreted there is considered, and what launches by itself.

    Raises:
        UnknownVariantError: the forced variant does not exist.
        VariantError: the forced variant or tile cannot serve the problem, or not there; the message is its refusal.
        NoVariantError: nothing can.
    """
    whole = device if isinstance(device, Arch) else devices.arch_of(device)
    arch = devices.budgeted(whole)
    if tile is not None and not isinstance(tile, TileConfig):
        raise errors.ArgumentError(f"tile is {tile!r}", "a minblas.TileConfig", "for example minblas.TileConfig(128, 128, 64)")
    wishes = policy(variant, tile)
    for name in (*wishes.exclude, *((wishes.variant,) if wishes.variant is not None else ())):
        get(name)
    if interpreted:
        wishes = _interpretable(wishes)
    try:
        chosen = choose.choose(problem, arch, registry(), tables(arch), resources(arch), wishes)
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
    return chosen if arch is whole else replace(chosen, notes=(*chosen.notes, devices.budget_note(arch, whole)))


def _interpretable(wishes: Policy) -> Policy:
    """The same without the kernels that only a GPU runs.

    Raises:
        VariantError: one of them is forced.
    """
    gpu_only = {variant.name for variant in registry() if variant.recipe is not None and not variant.interpretable}
    if wishes.variant in gpu_only:
        given, needed = f"{wishes.variant} is forced and the operands are on a CPU", "CUDA tensors: it cannot be interpreted"
        raise errors.VariantError(given, needed, "leave variant= away, or move the operands to a GPU")
    return replace(wishes, exclude=wishes.exclude | gpu_only)


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

    A pick of the zoo that nobody measured gives way to the next kernel where it turns out to spill registers, as it may under a
    version of triton, or an alignment, that the resource data do not know.

    Raises:
        LaunchError: a forced pick, or everything, failed.
        ColdCallError: a kernel would have to be compiled or loaded where that is not allowed.
    """
    from minblas import launch

    arch = devices.budgeted(devices.arch_of(device))
    interpreted = device.type != "cuda"
    selection = select(problem, arch, variant, tile, interpreted=interpreted)
    if settings.current().tune == "first_use":
        from minblas.first_use import FIRST_USE

        again = partial(select, problem, arch, variant, tile, interpreted=interpreted)
        selection = FIRST_USE.improve(selection, device, again)
    forced = selection.rung == "forced"
    failures: Counter[str] = Counter()
    spilling: list[Resolved] = []
    for name, candidate_tile in _candidates(selection):
        chosen = get(name)
        if not forced and (failures[name] >= _MOST_FAILURES or QUARANTINE.holds(problem, arch, name, candidate_tile)):
            continue
        if spilling and (name == choose.NET or len(spilling) == _MOST_SPILLING):
            break
        if not launch.is_ready(chosen, problem, candidate_tile, arch, device):
            if spilling and not _may_compile(device):
                break
            stand_in = _cold(problem, device, name, forced)
            if stand_in is not None:
                return stand_in
        try:
            prepared = launch.prepare(chosen, problem, candidate_tile, arch, device, forced=forced)
        except Exception as error:  # the compiler, the driver and recipes raise anything; a net is there to catch it
            report_failure(problem, arch, name, candidate_tile, error, forced)
            failures[name] += 1
            continue
        reason = prepared.reason or (selection.reason if name == selection.variant else _SKIPPED[bool(spilling)])
        what = f"{prepared.variant} {candidate_tile.describe() if candidate_tile else ''}".strip()
        _LOG.info("%s: %s (%s)", problem.describe(), what, selection.rung)
        found = Resolved(prepared.variant, candidate_tile, prepared, selection.rung, reason, forced)
        if not prepared.spills or selection.rung in ("forced", "exact") or chosen.origin == "user":
            return found
        spilling.append(found)
        log.once("dispatch", "%s spills registers on %s (%d words) and is passed over", what, arch.name, prepared.spills)
    if spilling:
        return spilling[0]
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


def _may_compile(device: torch.device) -> bool:
    """Whether a kernel may be compiled and loaded now."""
    import torch

    with torch.cuda.device(device):
        return settings.current().on_cold == "compile" and not torch.cuda.is_current_stream_capturing()


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
    """Remember that a pick failed (without a tile: that the variant did), and say so once.

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


__all__ = [
    "QUARANTINE",
    "Resolved",
    "forget_plans",
    "get",
    "policy",
    "register",
    "registry",
    "report_failure",
    "resolve",
    "resources",
    "select",
    "tables",
    "unregister",
]
