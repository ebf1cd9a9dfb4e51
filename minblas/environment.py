"""Where a measurement is taken: what a table's and a journal's header say."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from heuristics.table import Environment

if TYPE_CHECKING:
    import torch


def environment(device: torch.device) -> Environment:
    """The device, its driver, and the versions that decide what a kernel is compiled to."""
    import torch

    from minblas.device import arch_of

    arch = arch_of(device)
    on_gpu = device.type == "cuda"
    return Environment(
        gpu_name=torch.cuda.get_device_name(device) if on_gpu else f"none (CPU standing for {arch.name})",
        compute_capability=arch.capability,
        sm_count=arch.sm_count,
        driver=driver_version() if on_gpu else "",
        cuda=str(torch.version.cuda or ""),
        triton=version("triton"),
        torch=str(torch.__version__),
        python=platform.python_version(),
    )


def version(distribution: str) -> str:
    """A distribution's version; empty where it is not installed.

    Of a module that is imported, its own: with two on the path it need not be the installed one.
    """
    imported = getattr(sys.modules.get(distribution), "__version__", None)
    if isinstance(imported, str):
        return str(imported)  # torch's is of a class of its own
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def driver_version() -> str:
    """The NVIDIA kernel driver's version; empty without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
