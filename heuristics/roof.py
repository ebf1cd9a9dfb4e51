"""What a device could reach at best: its rate for a problem's products, the roofline, and a library's distance from it."""

from __future__ import annotations

from typing import Final

from kernel_zoo.spec import Arch, GemmProblem

EMULATION: Final = {"tf32": ("tf32", 1), "tf32x3": ("tf32", 3), "bf16x3": ("bf16", 3), "bf16x6": ("bf16", 6)}
NET_LAUNCH_US: Final = 2.0

#: cuBLAS's share of the roof by class, measured on one H200; for the net's estimate only.
_NET_SHARE: Final = {
    "large": 0.88, "square": 0.73, "prefill": 0.70, "decode": 0.68, "gemv": 0.62, "split-K": 0.55, "ragged": 0.28, "batched": 0.73,
}  # fmt: skip


def peak(dtype: str, precision: str, arch: Arch) -> float:
    """The device's peak for products of that kind, in 1e12 operations a second; a slow fallback where it has no such unit."""
    if dtype == "fp32":
        name, parts = EMULATION.get(precision, ("fp32", 1))
        return arch.tflops.get(name, 0.0) / parts or arch.tflops["fp32"]
    return arch.tflops.get(dtype, 0.0) or arch.tflops["fp32"] / 4


def rate(problem: GemmProblem, arch: Arch) -> float:
    """The device's peak for the problem's products, in 1e12 operations a second."""
    return peak(problem.dtype, problem.precision, arch)


def roof_us(problem: GemmProblem, arch: Arch) -> tuple[float, str]:
    """The least time the device allows, and what sets it: "memory" or "compute"."""
    compute = problem.flops / (rate(problem, arch) * 1e6)
    memory = problem.least_bytes / (arch.bandwidth_gbps * 1e3)
    return (compute, "compute") if compute > memory else (memory, "memory")


def ridge(problem: GemmProblem, arch: Arch) -> float:
    """Operations a byte at which the device's arithmetic and memory take equally long."""
    return rate(problem, arch) * 1e3 / arch.bandwidth_gbps


def library_us(problem: GemmProblem, arch: Arch) -> float:
    """A library's own choice, without its launch: the roof over the share of it that cuBLAS reaches on average."""
    return roof_us(problem, arch)[0] / _NET_SHARE[problem.shape_class]
