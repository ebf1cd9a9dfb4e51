"""What failed in this process and is passed over from then on. Leaf: imports the kernel vocabulary only."""

from __future__ import annotations

import threading
from typing import Final

from kernel_zoo.spec import Arch, GemmProblem, TileConfig


class Quarantine:
    """Picks that failed to compile or launch, by variant, tile, device and what else decides the binary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[tuple[object, ...], str] = {}

    @staticmethod
    def _key(problem: GemmProblem, arch: Arch, name: str, tile: TileConfig | None) -> tuple[object, ...]:
        return (name, tile, arch.name, problem.dtype, problem.out.dtype, problem.precision, problem.layout)

    def add(self, problem: GemmProblem, arch: Arch, name: str, tile: TileConfig | None, error: Exception) -> None:
        """Put a pick in; without a tile, all the variant's picks."""
        with self._lock:
            self._failures[self._key(problem, arch, name, tile)] = f"{type(error).__name__}: {error}"

    def holds(self, problem: GemmProblem, arch: Arch, name: str, tile: TileConfig | None) -> bool:
        """Whether a pick is in."""
        return bool(self._failures) and any(self._key(problem, arch, name, each) in self._failures for each in (tile, None))

    def forgive(self, name: str | None = None) -> None:
        """Let a variant's picks out, or all."""
        with self._lock:
            self._failures = {key: why for key, why in self._failures.items() if name is not None and key[0] != name}

    def as_dict(self) -> dict[str, str]:
        """What is in, readable."""
        with self._lock:
            return {
                f"{key[0]} {key[1].describe() if isinstance(key[1], TileConfig) else ''}".strip(): why
                for key, why in self._failures.items()
            }


QUARANTINE: Final = Quarantine()
