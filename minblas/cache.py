"""The plan cache: a bounded dict with second chances.

A hit is one dict lookup and takes no lock; inserting, evicting and clearing do. A plan whose `used` flag was set since the hand
last passed is kept once more. Clearing starts a new generation, so that a plan that was being made meanwhile is not stored.
Leaf: standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Any, Final, Protocol

from minblas import settings
from minblas.stats import COUNTERS


class Cached(Protocol):
    """What the cache asks of a plan."""

    used: bool
    calls: int
    provisional: bool
    variant: str
    reason: str


class PlanCache:
    """Plans by key. `get` is the dict's own method."""

    def __init__(self, capacity: int | None = None) -> None:
        self._lock = threading.Lock()
        self._plans: dict[Hashable, Any] = {}
        self._capacity = capacity
        self.generation = 0
        self.get = self._plans.get

    @property
    def capacity(self) -> int:
        """The most plans kept."""
        if self._capacity is None:
            self._capacity = settings.plan_cache_size()
        return self._capacity

    def __len__(self) -> int:
        return len(self._plans)

    def plans(self) -> list[Cached]:
        """The plans kept now."""
        with self._lock:
            return list(self._plans.values())

    def put(self, key: Hashable, plan: Cached, generation: int) -> None:
        """Keep a plan that was begun in `generation`; one from before the last `clear` is stale and is not kept."""
        with self._lock:
            if generation != self.generation or key in self._plans:
                return
            while len(self._plans) >= self.capacity:
                self._evict_one()
            self._plans[key] = plan

    def clear(self) -> None:
        """Forget every plan."""
        with self._lock:
            self.generation += 1
            for plan in self._plans.values():
                _retire(plan)
            self._plans.clear()

    def drop_provisional(self) -> None:
        """Forget the plans that only stood in until a kernel was compiled."""
        with self._lock:
            for key in [key for key, plan in self._plans.items() if plan.provisional]:
                _retire(self._plans.pop(key))

    def _evict_one(self) -> None:
        for key in self._hand():
            plan = self._plans.pop(key)
            if plan.used:
                plan.used = False
                self._plans[key] = plan
                continue
            _retire(plan)
            COUNTERS.add_evictions(1)
            return

    def _hand(self) -> Iterator[Hashable]:
        """Keys, oldest first; a second round ends, because the first took every flag down."""
        for _ in range(2):
            yield from list(self._plans)


def _retire(plan: Cached) -> None:
    """Move a plan's count to the totals."""
    count, plan.calls = plan.calls, 0
    COUNTERS.add_calls(plan.variant, plan.reason, count, warm=True)


CACHE: Final = PlanCache()
