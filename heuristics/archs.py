"""Devices as data: what the model needs to know of each GPU, and where each figure comes from.

Rates are dense (no structured sparsity) at the boost clock, in 1e12 operations a second; with fp32 accumulation where a GPU
accumulates in fp16 faster. The first device listed for a compute capability stands for that capability.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Final

from kernel_zoo.spec import Arch

_GUIDE: Final = "CUDA C++ Programming Guide, technical specifications per compute capability"
_KIB: Final = 1024
_MIB: Final = 1024 * 1024


def _rates(half: float, fp8: float, int8: float, tf32: float, fp32: float, fp64: float) -> dict[str, float]:
    return {"fp16": half, "bf16": half, "fp8e4m3": fp8, "fp8e5m2": fp8, "int8": int8, "tf32": tf32, "fp32": fp32, "fp64": fp64}


def _arch(
    name: str, capability: tuple[int, int], sms: int, smem_kib: int, threads: int, l2_mib: int, clock: float, bandwidth: float,
    tflops: dict[str, float], source: str, l2_source: str = "",
) -> Arch:  # fmt: skip
    """A device; a block may use all but 1 KiB of an SM's shared memory on every capability listed here."""
    figures = dict.fromkeys(("smem_per_block", "smem_per_sm", "registers_per_sm", "threads_per_sm"), _GUIDE)
    figures |= dict.fromkeys(("sm_count", "clock_ghz", "bandwidth_gbps", "tflops"), source)
    figures["l2_bytes"] = l2_source or source
    smem = smem_kib * _KIB
    return Arch(name, capability, sms, smem - _KIB, smem, 65536, threads, l2_mib * _MIB, clock, bandwidth, tflops, figures)


_HOPPER: Final = "NVIDIA H100 Tensor Core GPU Architecture whitepaper (2022)"
_H200: Final = "NVIDIA H200 data sheet (SXM5, 141 GB HBM3e)"
_AMPERE: Final = "NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020); bandwidth: A100 80 GB data sheet"
_L4: Final = "NVIDIA L4 data sheet, halved where it counts sparsity"
_ADA: Final = "NVIDIA Ada GPU Architecture whitepaper (2022), appendix A"
_B200: Final = "NVIDIA Blackwell Architecture Technical Brief (HGX B200, per GPU)"
_RTX50: Final = "NVIDIA RTX Blackwell GPU Architecture whitepaper (2025), appendix A"

_HOPPER_SXM: Final = _rates(989.4, 1978.9, 1978.9, 494.7, 66.9, 66.9)

ARCHS: Final[dict[str, Arch]] = {
    arch.name: arch
    for arch in (
        _arch("h200", (9, 0), 132, 228, 2048, 50, 1.83, 4800, _HOPPER_SXM, _H200, _HOPPER),
        _arch("h100-sxm", (9, 0), 132, 228, 2048, 50, 1.83, 3352, _HOPPER_SXM, _HOPPER),
        _arch("h100-pcie", (9, 0), 114, 228, 2048, 50, 1.755, 2039, _rates(756.0, 1513.0, 1513.0, 378.0, 51.2, 51.2), _HOPPER),
        _arch("a100", (8, 0), 108, 164, 2048, 40, 1.41, 2039, _rates(311.9, 0.0, 623.8, 155.9, 19.5, 19.5), _AMPERE),
        _arch("l4", (8, 9), 58, 100, 1536, 48, 2.04, 300, _rates(121.0, 242.0, 242.0, 60.5, 30.3, 0.47), _L4),
        _arch("rtx4090", (8, 9), 128, 100, 1536, 72, 2.52, 1008, _rates(165.2, 330.3, 660.6, 82.6, 82.6, 1.29), _ADA),
        _arch("b200", (10, 0), 148, 228, 2048, 126, 1.85, 8000, _rates(2250.0, 4500.0, 4500.0, 1125.0, 75.0, 37.0), _B200),
        _arch("rtx5090", (12, 0), 170, 100, 1536, 96, 2.407, 1792, _rates(209.5, 419.0, 838.0, 104.8, 104.8, 1.64), _RTX50),
    )
}

#: Names that drivers report for the devices above, matched whole: an "RTX 4090 D" or a laptop part is another device.
_DRIVER_NAMES: Final[dict[str, str]] = {
    "h200": r"H200( NVL)?",
    "h100-sxm": r"H100( SXM5)?( 80GB)?( HBM3)?|H100-SXM5-80GB",
    "h100-pcie": r"H100[ -]PCIe(-80GB)?",
    "a100": r"A100[ -](SXM4|PCIE|PCIe)-(40|80)GB",
    "l4": r"L4",
    "rtx4090": r"(GeForce )?RTX 4090",
    "b200": r"B200",
    "rtx5090": r"(GeForce )?RTX 5090",
}


@lru_cache(maxsize=256)
def device_name(gpu_name: str) -> str:
    """The project's name of a device that its driver calls `gpu_name`; an unlisted one keeps its own, in lower case."""
    if gpu_name in ARCHS:
        return gpu_name
    bare = gpu_name.removeprefix("NVIDIA ").strip()
    for name, pattern in _DRIVER_NAMES.items():
        if re.fullmatch(pattern, bare):
            return name
    return re.sub(r"[^a-z0-9]+", "-", bare.lower()).strip("-")


def names() -> tuple[str, ...]:
    """What `get_arch` knows: the devices, then the capabilities."""
    return (*ARCHS, *_by_capability())


def _by_capability() -> dict[str, Arch]:
    found: dict[str, Arch] = {}
    for arch in ARCHS.values():
        found.setdefault(f"sm_{arch.cc}", arch)
    return found


def get_arch(name: str) -> Arch:
    """The device of that name ("h200"), or the one that stands for a capability ("sm_90").

    Raises:
        ValueError: neither is known; the message gives the nearest names.
    """
    wanted = name.strip().lower()
    if wanted in ARCHS:
        return ARCHS[wanted]
    by_capability = _by_capability()
    if wanted in by_capability:
        return by_capability[wanted]
    known = names()
    near = difflib.get_close_matches(wanted, known, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"device {name!r} is not known; {hint}known: {', '.join(known)}")


def closest(capability: tuple[int, int], sm_count: int) -> Arch:
    """The listed device most like an unlisted one: of its capability or the next older one, nearest in SM count."""
    older = [arch.capability for arch in ARCHS.values() if arch.capability <= capability]
    nearest = max(older) if older else min(arch.capability for arch in ARCHS.values())
    return min((arch for arch in ARCHS.values() if arch.capability == nearest), key=lambda arch: abs(arch.sm_count - sm_count))
