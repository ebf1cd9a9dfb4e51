"""Compiled kernels, loaded: one cache for the process, by specialisation and device."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from kernel_zoo import build, interpret
from kernel_zoo.spec import Arch, Recipe
from minblas.cache import CACHE
from minblas.errors import LaunchError
from minblas.stats import COUNTERS

if TYPE_CHECKING:
    import torch


class Binaries:
    """Loaded kernels by (specialisation, device index): a loaded function belongs to one device."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[build.Specialisation, int], Any] = {}
        self._lock = threading.RLock()

    def holds(self, recipe: Recipe, device: torch.device) -> bool:
        """Whether every launch of a recipe is loaded on a device."""
        import torch

        index = torch.cuda.current_device() if device.index is None else device.index
        return all((build.specialise(call), index) in self._loaded for call in recipe.calls)

    def get(self, spec: build.Specialisation, index: int, arch: Arch) -> Any:
        """The loaded kernel, compiled first where it must be. One at a time: triton's compiler is not made for threads.

        Raises:
            LaunchError: it needs more shared memory than the device has.
        """
        key = (spec, index)
        found = self._loaded.get(key)
        if found is not None:
            return found
        import torch

        # The interpreter patches triton's language while it runs: nothing may be compiled meanwhile.
        with self._lock, interpret.LOCK, torch.cuda.device(index):
            found = self._loaded.get(key)
            if found is None:
                started = time.perf_counter()
                found = build.compile_binary(spec, arch.cc)
                _check_shared(found, arch)
                found.run  # noqa: B018  (loads the module)
                self._loaded[key] = found
                COUNTERS.add_compile(time.perf_counter() - started)
                CACHE.drop_provisional()
        return found


def _check_shared(binary: Any, arch: Arch) -> None:
    needed = binary.metadata.shared
    if needed > arch.smem_per_block:
        raise LaunchError(
            f"{binary.metadata.name} takes {needed:,} bytes of shared memory", f"at most {arch.smem_per_block:,} on {arch.name}"
        )


BINARIES: Final = Binaries()
