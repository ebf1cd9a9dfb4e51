"""What a user asks of a running process: which variants there are, what has been served, and taking a variant out again."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Final

from kernel_zoo.spec import Variant
from minblas import dispatch
from minblas.cache import CACHE
from minblas.stats import COUNTERS, Stats, nested

_UNREACHED: Final = (
    "torch._inductor.config.cpp_wrapper is set: what inductor compiles so calls aten's kernels past the dispatcher, as AOTInductor "
    "does; accelerate() does not see these products, and they are in no count"
)


def stats(*, reset: bool = False) -> Stats:
    """Calls by variant, what fell to aten and why, cold calls, compile time, the plan cache, and what `accelerate` did.

    `reset` starts counting anew.
    """
    calls, reasons, warm = Counter(COUNTERS.calls), Counter(COUNTERS.reasons), COUNTERS.warm
    plans = [entry for entry in CACHE.plans() if entry.variant != "left"]  # accelerate's notes of what is not ours are no plans
    for plan in plans:
        calls[plan.variant] += plan.calls
        warm += plan.calls
        if plan.variant == "aten":
            reasons[plan.reason] += plan.calls
    found = Stats(
        calls={name: count for name, count in calls.items() if count},
        aten_reasons={reason: count for reason, count in reasons.items() if count},
        warm_calls=warm,
        cold_calls=COUNTERS.cold,
        compiled=COUNTERS.compiled,
        compile_seconds=COUNTERS.compile_seconds,
        plans=len(plans),
        evictions=COUNTERS.evictions,
        quarantined=dispatch.QUARANTINE.as_dict(),
        tunes=COUNTERS.tunes,
        tune_seconds=COUNTERS.tune_seconds,
        accelerated=nested(COUNTERS.served),
        left_to_torch=nested(COUNTERS.left),
        notes=_notes(),
    )
    if reset:
        COUNTERS.reset()
        for plan in plans:
            plan.calls = 0
    return found


def _notes() -> tuple[str, ...]:
    inductor = sys.modules.get("torch._inductor.config")  # not imported for this, nor is accelerate
    return (_UNREACHED,) if getattr(inductor, "cpp_wrapper", False) and "minblas.accelerate" in sys.modules else ()


def variants() -> tuple[Variant, ...]:
    """Every variant, the zoo's first: its name, summary, source digest and what it supports."""
    return dispatch.registry()


def unregister(name: str) -> None:
    """Remove a registered variant; plans that use it are forgotten.

    Raises:
        UnknownVariantError: no registered variant has that name.
    """
    dispatch.unregister(name)
