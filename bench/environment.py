"""Where a measurement was taken, and what this machine can do: the header of every results file, and `minblas doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minblas.environment import version as installed_version

if TYPE_CHECKING:
    import torch

ROOT: Final = Path(__file__).resolve().parent.parent


def describe(device: torch.device) -> dict[str, Any]:
    """GPU, driver, torch, triton, commit and date, and the limits of a CUDA device."""
    from minblas.device import arch_of
    from minblas.environment import environment

    found = asdict(environment(device))
    found |= {"minblas": version("minblas"), "commit": commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    if device.type == "cuda":
        arch = arch_of(device)
        found |= {"arch": arch.name, "bandwidth_gbps": arch.bandwidth_gbps, "peak_tflops_bf16": arch.tflops.get("bf16")}
    return found


def version(distribution: str) -> str:
    """The installed version; "not installed" where there is none, "source" for the project run from its folder."""
    return installed_version(distribution) or ("source" if distribution == "minblas" else "not installed")


def commit() -> str:
    """The checkout's commit, with "+" where files differ from it; empty outside a checkout."""
    if not (ROOT / ".git").exists():
        return os.environ.get("MINBLAS_COMMIT", "")
    head = _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if head and changed else "")


def _output(*command: str) -> str:
    """What a command prints; empty where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: whether it is well, what was found, and what to do where it is not."""

    name: str
    ok: bool
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def examine() -> list[Finding]:
    """What works on this machine, and what is missing with its remedy."""
    findings = [
        Finding("python", True, platform.python_version()),
        _package("torch", "needed to multiply tensors: pip install 'torch>=2.11'"),
        _package("triton", "needed to compile and interpret kernels: pip install triton (Linux only)"),
        _triton_minor(),
        _package("pydantic", "needed to read tables: pip install pydantic"),
        _package("matplotlib", "needed for plots: pip install 'minblas[bench]'"),
        _compiler(),
        *_devices(),
        *_tables(),
    ]
    return [finding for finding in findings if finding is not None]


def _package(name: str, remedy: str) -> Finding:
    present = importlib.util.find_spec(name) is not None
    return Finding(name, present, version(name) if present else "not installed", "" if present else remedy)


def _triton_minor() -> Finding | None:
    """Whether the installed triton is one of the two minors that the kernels are gated on."""
    found = version("triton")
    if found == "not installed":
        return None
    from kernel_zoo.triton_compat import is_tested

    tested = is_tested(found)
    remedy = "" if tested else "kernels run through triton's own launch; tested: 3.6 and 3.7 (pip install 'triton>=3.6,<3.8')"
    return Finding("triton is a tested version", tested, found, remedy)


def _compiler() -> Finding:
    """Triton builds its launcher with a C compiler at the first launch on a GPU."""
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    return Finding(
        "C compiler", bool(found), found or "none", "" if found else "triton needs one to launch on a GPU: apt install gcc"
    )


def _devices() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    from minblas.device import arch_of
    from minblas.environment import driver_version

    if not torch.cuda.is_available():
        driver = driver_version()
        remedy = "to multiply fast, use a machine with an NVIDIA GPU; choosing, the interpreter and the compile gate work here"
        if driver and torch.version.cuda is None:
            remedy = "this torch is a CPU build: install the CUDA build of torch"
        return [Finding("CUDA device", False, f"driver {driver}" if driver else "no NVIDIA driver", remedy)]
    findings = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        arch = arch_of(device)
        found = f"{torch.cuda.get_device_name(device)}, {arch.cc / 10}, {arch.sm_count} SMs, taken as {arch.name}"
        old = arch.capability < (8, 0)
        findings.append(Finding(f"cuda:{index}", not old, found, "the kernels need compute capability 8.0 or newer" if old else ""))
    return findings


def _tables() -> list[Finding]:
    """The packaged tables and the user's own."""
    if importlib.util.find_spec("pydantic") is None:
        return []
    from bench.tables import census

    return [Finding(f"table {name}", not error, found, error) for name, found, error in census()]
