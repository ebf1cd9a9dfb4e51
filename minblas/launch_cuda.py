"""Compiled kernels on a GPU, launched directly where that was found to do as triton does, else through triton's JIT.

A direct launch skips triton's specialisation guards, so a plan may only be used for operands of the alignment and strides it was
made for: the plan cache's key, a route's check and the plan's own see to that.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from kernel_zoo import build
from kernel_zoo.spec import Arch, KernelCall, Recipe, Resources, Variant
from minblas.binaries import BINARIES
from minblas.counters import ZEROED
from minblas.launch import Prepared, Slots
from minblas.launch_adapters import DirectLaunch, RunLaunch, launch_hooks
from minblas.launch_arguments import as_triton_takes_them, values_of
from minblas.launch_check import adapter_for, has_descriptors


class TritonLaunch:
    """One launch through triton's own JIT: slower on the host, and right for any triton."""

    __slots__ = ("_call", "_options")

    def __init__(self, call: KernelCall, cc: int) -> None:
        self._call = call
        self._options = build.specialise(call).options(cc)

    def __call__(self, slots: Slots, alpha: float, beta: float) -> None:
        """Launch on the current stream."""
        call = self._call
        given = as_triton_takes_them(call, slots, alpha, beta)
        call.kernel[call.grid](*given, **call.constants, **self._options)


class Compiled(Prepared):
    """A recipe compiled and loaded on one GPU."""

    def __init__(self, variant: Variant, recipe: Recipe, arch: Arch, device: torch.device) -> None:
        self.variant = variant.name
        self.workspace_bytes = recipe.workspace_bytes
        self.counters = recipe.counters
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self.index: int = self._device.index
        started = time.perf_counter()
        self._binaries = [BINARIES.get(build.specialise(call), self.index, arch) for call in recipe.calls]
        self.compile_seconds = time.perf_counter() - started
        pairs = zip(recipe.calls, self._binaries, strict=True)
        self._launches = [self._launch(call, binary, arch) for call, binary in pairs]

    def _launch(self, call: KernelCall, binary: Any, arch: Arch) -> DirectLaunch | TritonLaunch:
        scratch = getattr(binary.metadata, "global_scratch_size", 0) or getattr(binary.metadata, "profile_scratch_size", 0)
        adapter = adapter_for(has_descriptors(call), arch, self._device)
        if scratch or adapter is None:
            return TritonLaunch(call, arch.cc)
        try:
            return adapter(call, binary, self.index)
        except LookupError:  # this kernel is made in another way than those of the check
            return RunLaunch(call, binary, self.index)

    @property
    def direct(self) -> tuple[DirectLaunch, ...]:
        """The launches, where all of them take addresses."""
        launches = tuple(launch for launch in self._launches if isinstance(launch, DirectLaunch))
        return launches if len(launches) == len(self._launches) else ()

    def __call__(self, slots: Slots, alpha: complex, beta: complex) -> None:
        """Launch every call of the recipe on the device's current stream."""
        if torch._C._cuda_getDevice() == self.index:
            self._launch_all(slots, float(alpha.real), float(beta.real))
            return
        with torch.cuda.device(self.index):
            self._launch_all(slots, float(alpha.real), float(beta.real))

    def _launch_all(self, slots: Slots, alpha: float, beta: float) -> None:
        if self.workspace_bytes:
            slots = {**slots, "WS": torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self._device)}
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        if self.counters:
            slots = {**slots, "COUNTERS": ZEROED.get(self.counters, self.index, stream)}
        values, hooks = values_of(slots, alpha, beta, stream), launch_hooks()
        for launch in self._launches:
            if isinstance(launch, TritonLaunch):
                launch(slots, alpha, beta)
            elif hooks:
                launch.hooked(slots, alpha, beta, stream, *hooks)
            else:
                launch.launch(values)

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Read from the binaries' machine code: slow."""
        return tuple(build.resources(binary) for binary in self._binaries)

    @property
    def spills(self) -> int:
        """Triton asks the driver when it loads a binary."""
        return sum(getattr(binary, "n_spills", 0) or 0 for binary in self._binaries)
