"""What there is to choose from: the variants, the zoo's and the registered ones, and the tables of a device.

Changing either forgets the plans that were made from it.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Final

from heuristics import store, toolchain
from heuristics.resources import ResourceTable, known
from heuristics.table import HeuristicTable
from kernel_zoo import catalog
from kernel_zoo.spec import Arch, Variant
from kernel_zoo.triton_compat import GATED
from minblas.cache import CACHE
from minblas.environment import version
from minblas.errors import ArgumentError, UnknownVariantError, suggestion
from minblas.failures import QUARANTINE

_LOCK: Final = threading.RLock()
_registered: tuple[Variant, ...] = ()
_whole: tuple[tuple[Variant, ...], ...] = (catalog.VARIANTS, (), catalog.VARIANTS)  # the zoo's, the registered ones, both
_entry_points_loaded = False
_tables: dict[tuple[str, int], tuple[HeuristicTable, ...]] = {}


def registry() -> tuple[Variant, ...]:
    """Every variant: the zoo's in its own order, then the registered ones. Loads the entry points of packages the first time."""
    global _whole
    _load_entry_points()
    zoo, added, whole = _whole  # one object until another is registered: a choice knows its variants by identity
    if zoo is not catalog.VARIANTS or added is not _registered:
        zoo, added = catalog.VARIANTS, _registered
        whole = zoo + added
        _whole = zoo, added, whole
    return whole


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
        raise UnknownVariantError(
            f"variant is {name!r}", "a variant's name (minblas.variants() lists them)", suggestion(name, known)
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
                raise ArgumentError(
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
            known = [variant.name for variant in _registered]
            remedy = suggestion(name, known) if known else "none is registered"
            raise UnknownVariantError(f"no registered variant is named {name!r}", "a name that register_variant was given", remedy)
        _registered = left
    QUARANTINE.forgive(name)
    forget_plans()


def exchange(variant: Variant) -> None:
    """Put another record in the place of a registered variant of that name, in one step; nothing happens where there is none."""
    global _registered
    with _LOCK:
        _registered = tuple(variant if old.name == variant.name else old for old in _registered)
    QUARANTINE.forgive(variant.name)
    forget_plans()


def forget_plans() -> None:
    """Forget what was chosen before: a table or the registry has changed."""
    with _LOCK:
        _tables.clear()
    CACHE.clear()


def read_tables_again() -> None:
    """A table got a row that no plan was made from."""
    with _LOCK:
        _tables.clear()


def tables(arch: Arch) -> tuple[HeuristicTable, ...]:
    """The user's tables, then the packaged ones, that say something about a device, as far as the triton that runs leaves them."""
    key = (arch.name, arch.sm_count)
    found = _tables.get(key)
    if found is None:
        with _LOCK:  # read inside it: what was read before a `forget_plans` must not be kept after it
            found = _tables.get(key)
            if found is None:
                stored = (*store.user_tables(arch), *store.packaged_tables(arch))
                found = _tables[key] = toolchain.under(version("triton"), stored, arch, GATED)
    return found


def resources(arch: Arch) -> ResourceTable | None:
    """What binaries need on a device, as the triton that runs compiles them; None where it is not known."""
    return known(arch.cc, _compiler())


@cache
def _compiler() -> str:
    """The version of triton that runs; where none is installed, the newest that packaged tables are gated on."""
    return version("triton") or GATED[-1]
