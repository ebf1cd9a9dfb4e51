"""What the runtime did: calls by variant, what fell to aten and why, cold calls, compile time, the plan cache.

Warm calls are counted on their plan (one attribute); the totals are put together when asked for. Leaf: standard library only.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the process started or the last `stats(reset=True)`.

    Attributes:
        calls: products computed, by variant.
        aten_reasons: why aten served, by reason; their sum is calls["aten"].
        warm_calls: calls served by a plan of the cache.
        cold_calls: calls that had to choose, and perhaps compile.
        compiled: binaries compiled or loaded from triton's disk cache.
        compile_seconds: time spent in that.
        plans: plans in the cache now.
        evictions: plans dropped because the cache was full.
        quarantined: variants and tiles that failed to compile or launch, with the error, and are passed over.
        tunes: problems tuned when they were first met (options(tune="first_use")).
        tune_seconds: time spent in that, tries that came to nothing included.
        accelerated: what `accelerate` served, by aten's op and variant; these are in `calls` too.
        left_to_torch: what it left to torch's own kernels, by aten's op and reason; these are not.
        notes: what the counts cannot show.
    """

    calls: dict[str, int]
    aten_reasons: dict[str, int]
    warm_calls: int
    cold_calls: int
    compiled: int
    compile_seconds: float
    plans: int
    evictions: int
    quarantined: dict[str, str]
    tunes: int = 0
    tune_seconds: float = 0.0
    accelerated: dict[str, dict[str, int]] = field(default_factory=dict)
    left_to_torch: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        total = sum(self.calls.values())
        shares = ", ".join(f"{name} {count}" for name, count in sorted(self.calls.items(), key=lambda item: -item[1])) or "none"
        lines = [
            f"{total} calls: {shares}",
            f"{self.warm_calls} warm, {self.cold_calls} cold; {self.compiled} binaries in {self.compile_seconds:.2f} s; "
            f"{self.plans} plans, {self.evictions} evicted",
        ]
        lines += [f"{self.tunes} problems tuned on first use in {self.tune_seconds:.2f} s"] if self.tune_seconds else []
        lines += [f"aten, {count} calls: {reason}" for reason, count in sorted(self.aten_reasons.items())]
        lines += [f"accelerate served {op}: {_by_count(found)}" for op, found in sorted(self.accelerated.items())]
        lines += [f"accelerate left {op} to torch: {_by_count(found)}" for op, found in sorted(self.left_to_torch.items())]
        lines += [f"quarantined {what}: {why}" for what, why in sorted(self.quarantined.items())]
        return "\n".join([*lines, *self.notes])


def _by_count(found: Mapping[str, int]) -> str:
    return "; ".join(f"{count} {name}" for name, count in sorted(found.items(), key=lambda item: -item[1]))


def nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Counts by two names as a dict of dicts."""
    found: dict[str, dict[str, int]] = {}
    for (outer, inner), count in sorted(dict(counts).items()):  # a copy: other threads count on
        found.setdefault(outer, {})[inner] = count
    return found


class Counters:
    """Totals that do not sit on a live plan. Every method takes the lock: none is called on the warm path.

    `served` (aten's op, variant) and `left` (op, reason) are `accelerate`'s own, counted call by call; they stay the same objects.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.served: Counter[tuple[str, str]] = Counter()
        self.left: Counter[tuple[str, str]] = Counter()
        self.reset()

    def reset(self) -> None:
        """Forget all counts."""
        with self._lock:
            self.calls: Counter[str] = Counter()
            self.reasons: Counter[str] = Counter()
            self.warm = 0
            self.cold = 0
            self.compiled = 0
            self.compile_seconds = 0.0
            self.evictions = 0
            self.tunes = 0
            self.tune_seconds = 0.0
            self.served.clear()
            self.left.clear()

    def add_calls(self, variant: str, reason: str, count: int, *, warm: bool) -> None:
        """Count calls of a variant; `reason` says why where it is aten."""
        if not count:
            return
        with self._lock:
            self.calls[variant] += count
            if variant == "aten":
                self.reasons[reason] += count
            if warm:
                self.warm += count
            else:
                self.cold += count

    def add_compile(self, seconds: float) -> None:
        """Count one binary."""
        with self._lock:
            self.compiled += 1
            self.compile_seconds += seconds

    def add_tune(self, seconds: float, *, done: bool) -> None:
        """Count the time of a tune on first use, and the tune where it came to something."""
        with self._lock:
            self.tunes += done
            self.tune_seconds += seconds

    def add_evictions(self, count: int) -> None:
        """Count plans that were dropped to make room."""
        with self._lock:
            self.evictions += count


COUNTERS: Final = Counters()
