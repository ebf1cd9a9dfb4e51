"""The plan cache: a bounded dict with second chances, and shorter ways to what is in it.

A hit is one dict lookup and takes no lock; inserting, evicting and clearing do. A plan whose `used` flag was set since the hand
last passed is kept once more. Clearing starts a new generation, so that a plan that was being made meanwhile is not stored.

A route leads to a plan from a key that is quicker to make than the plan's own and does not say all of it; the route finds out
the rest. Routes of one short key form a chain, newest first, and go when a plan that they lead to goes.
Imports neither torch nor triton.
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


class Leads(Protocol):
    """What the cache asks of a route."""

    plan: Any
    next: Any


#: Routes of one short key: dtypes, layouts, and states of a thread in which the same sizes are met.
MOST_ROUTES: Final = 16


class PlanCache:
    """Plans by key, routes by short key. `get` and `route` are the dicts' own methods."""

    def __init__(self, capacity: int | None = None) -> None:
        self._lock = threading.Lock()
        self._plans: dict[Hashable, Any] = {}
        self._routes: dict[Hashable, Any] = {}
        self._short: dict[Hashable, set[Hashable]] = {}
        self._capacity = capacity
        self.generation = 0
        self.get = self._plans.get
        self.route = self._routes.get

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

    def learn(self, key: Hashable, short: Hashable, plan: Cached, route: Leads) -> None:
        """Keep a route to the plan that is under `key`; none is kept to a plan that was dropped meanwhile."""
        with self._lock:
            if self._plans.get(key) is not plan:
                return
            route.plan, route.next = plan, self._routes.get(short)
            self._routes[short] = last = route
            for _ in range(MOST_ROUTES - 1):
                last = last.next if last is not None else None
            if last is not None:
                last.next = None
            self._short.setdefault(key, set()).add(short)

    def clear(self) -> None:
        """Forget every plan."""
        with self._lock:
            self.generation += 1
            for plan in self._plans.values():
                _retire(plan)
            self._plans.clear()
            self._routes.clear()
            self._short.clear()

    def drop_provisional(self) -> None:
        """Forget the plans that only stood in until a kernel was compiled."""
        with self._lock:
            for key in [key for key, plan in self._plans.items() if plan.provisional]:
                self._retire(key, self._plans.pop(key))

    def _evict_one(self) -> None:
        for key in self._hand():
            plan = self._plans.pop(key)
            if plan.used:
                plan.used = False
                self._plans[key] = plan
                continue
            self._retire(key, plan)
            COUNTERS.add_evictions(1)
            return

    def _retire(self, key: Hashable, plan: Cached) -> None:
        for short in self._short.pop(key, ()):
            self._routes.pop(short, None)
        _retire(plan)

    def _hand(self) -> Iterator[Hashable]:
        """Keys, oldest first; a second round ends, because the first took every flag down."""
        for _ in range(2):
            yield from list(self._plans)


def _retire(plan: Cached) -> None:
    """Move a plan's count to the totals."""
    count, plan.calls = plan.calls, 0
    COUNTERS.add_calls(plan.variant, plan.reason, count, warm=True)


CACHE: Final = PlanCache()
