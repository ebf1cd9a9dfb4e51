"""Devices: what the choice knows of the one a tensor lives on, and its current stream. Touches CUDA only when asked about a GPU."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from heuristics import archs
from kernel_zoo.spec import Arch
from minblas import settings
from minblas.errors import SettingsError

if TYPE_CHECKING:
    import torch

_FOUND: Final[dict[int, Arch]] = {}
_LOCK: Final = threading.Lock()


def arch_of(device: torch.device) -> Arch:
    """The device as the choice sees it: a GPU's own figures, or, for the CPU, the device that options(arch=...) names."""
    if device.type != "cuda":
        return settings.named_arch(settings.current().arch)
    index = index_of(device)
    found = _FOUND.get(index)
    if found is None:
        with _LOCK:
            found = _FOUND.setdefault(index, _measure(index))
    return found


def budgeted(arch: Arch) -> Arch:
    """A device as the choice is to see it under options(sm_count=...): fewer SMs and their arithmetic; memory and L2 stay whole.

    Raises:
        SettingsError: it has fewer SMs than that.
    """
    count = settings.current().sm_count
    if count is None or count == arch.sm_count:
        return arch
    if count > arch.sm_count:
        remedy = "leave sm_count (MINBLAS_SM_COUNT) away for the whole device"
        raise SettingsError(f"sm_count is {count}", f"1 to {arch.sm_count}, the SMs of {arch.name}", remedy)
    rates = {dtype: rate * count / arch.sm_count for dtype, rate in arch.tflops.items()}
    sources = {**arch.sources, "sm_count": f"options(sm_count={count}), of the device's {arch.sm_count}"}
    return replace(arch, sm_count=count, tflops=rates, sources=sources)


def budget_note(arch: Arch, whole: Arch) -> str:
    """What a choice under an SM budget is, and is not."""
    return (
        f"SM budget: chosen as for {arch.sm_count} of the {whole.sm_count} SMs (options(sm_count=...)); a target, not a fence: "
        "resident programs keep to it, kernels of one program a tile may spread over more"
    )


def index_of(device: torch.device) -> int:
    """The number of a GPU; the current one's where the device names none."""
    import torch

    index: int | None = device.index  # torch's types leave the None out
    return int(torch.cuda.current_device()) if index is None else index


def _measure(index: int) -> Arch:
    """A GPU's figures from its driver, with the rates and bandwidth of the listed device most like it."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    name = archs.device_name(properties.name)
    listed = archs.ARCHS.get(name) or archs.closest(capability, properties.multi_processor_count)
    sms = properties.multi_processor_count
    if name == listed.name and sms != listed.sm_count:
        name = f"{name}-{sms}sm"  # a slice of a GPU, or another cut of the chip: its measurements are its own
    share = sms / listed.sm_count
    driver = "the driver's device properties"
    figures: dict[str, Any] = {
        "capability": capability,
        "sm_count": sms,
        "smem_per_block": getattr(properties, "shared_memory_per_block_optin", listed.smem_per_block),
        "smem_per_sm": getattr(properties, "shared_memory_per_multiprocessor", listed.smem_per_sm),
        "registers_per_sm": getattr(properties, "regs_per_multiprocessor", listed.registers_per_sm),
        "threads_per_sm": getattr(properties, "max_threads_per_multi_processor", listed.threads_per_sm),
        "l2_bytes": getattr(properties, "L2_cache_size", listed.l2_bytes),
    }
    rates = listed.tflops if share == 1 else {dtype: rate * share for dtype, rate in listed.tflops.items()}
    sources = {**listed.sources, **dict.fromkeys(figures, driver)}
    return replace(listed, name=name, tflops=rates, sources=sources, **figures)


def stream(device: torch.device) -> int:
    """The raw handle of the device's current stream; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    import torch

    return int(torch._C._cuda_getCurrentRawStream(index_of(device)))


def is_lost(device: torch.device) -> bool:
    """Whether a GPU has met an error that stays: every later call of this process fails. Waits for what is running."""
    if device.type != "cuda":
        return False
    import torch

    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def precision_setting(device_type: str) -> str:
    """How torch's own settings let fp32 products be formed on a kind of device: "ieee" or "tf32".

    The getter resolves both of torch's interfaces and never raises; the older properties raise once the newer ones were set.
    A CPU's "bf16" is read as TF32: it is the nearest that the kernels offer.
    """
    import torch

    chosen = torch._C._get_fp32_precision_getter("cuda" if device_type == "cuda" else "mkldnn", "matmul")
    return "tf32" if chosen in ("tf32", "bf16") else "ieee"
