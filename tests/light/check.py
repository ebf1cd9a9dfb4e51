"""What works with neither torch nor triton nor a GPU: `python check.py`, with the Python of a venv that has the light dependencies.

Explains shapes for every device and verifies every packaged table through the installed `minblas` command; exit code 1, and the
command with what it said, where one does not answer.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DEVICES = ("h200", "h100-sxm", "h100-pcie", "a100", "l4", "rtx4090", "b200", "rtx5090")
TABLES = ("a100", "b200", "h200", "l4", "rtx4090", "rtx5090")  # an H100 borrows the H200's rows
SHAPES = (
    ("4096", "4096", "4096", "--dtype", "bf16", "--layout", "nt"),
    ("1024", "1024", "1024", "--dtype", "fp32"),
    ("1023", "511", "777", "--dtype", "fp16"),
)
FACTS = ("problem", "device", "variant", "tile", "rung", "reason", "estimate_us")


def run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """The installed command, from a folder that holds nothing of ours, with no tables of the user's."""
    with tempfile.TemporaryDirectory() as home:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("MINBLAS_", "PYTHONPATH"))}
        variables |= {"XDG_DATA_HOME": home, "PYTHONWARNINGS": "error"}
        command = [str(Path(sys.executable).with_name("minblas")), *words]
        return subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, timeout=60, check=False)


def explained(device: str, shape: tuple[str, ...], as_json: bool) -> str:
    """What is wrong with the explanation of a shape for a device; empty where nothing is."""
    words = ("explain", *shape, "--arch", device, *(("--json",) if as_json else ()))
    done = run(words)
    said = f"minblas {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    if done.returncode or done.stderr:
        return said
    if not as_json:
        return "" if device in done.stdout else said
    data = json.loads(done.stdout)
    missing = [fact for fact in FACTS if data.get(fact) in (None, "")]
    right = data["device"]["name"] == device and data["variant"] != "aten" and data["estimate_us"] > 0
    return "" if right and not missing else f"{said}missing: {missing}"


def verified() -> str:
    """What is wrong with the packaged tables; empty where every one passes."""
    done = run(("table", "verify", "--json"))
    said = f"minblas table verify: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    if done.returncode or done.stderr:
        return said
    report = json.loads(done.stdout)
    missing = {f"packaged {device}" for device in TABLES} - {table["name"] for table in report["tables"]}
    return "" if not missing and not report["findings"] else f"{said}missing: {sorted(missing)}"


def absent() -> str:
    """Empty where neither torch nor triton can be imported, and what is tested is the installed package."""
    present = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is not None]
    if present:
        return f"{' and '.join(present)} can be imported by {sys.executable}: this is to run where they cannot"
    for name in ("torch", "triton"):
        try:
            __import__(name)
        except ImportError:
            continue
        return f"import {name} works"
    origin = importlib.util.find_spec("minblas")
    installed = origin is not None and origin.origin is not None and Path(origin.origin).is_relative_to(sys.prefix)
    return "" if installed else f"minblas is not installed in {sys.prefix}: {origin}"


def main() -> int:
    """0 where everything answers."""
    start = time.perf_counter()
    faults = [absent()]
    if not faults[0]:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            asked = [(device, shape, True) for device in DEVICES for shape in SHAPES]
            asked += [(device, SHAPES[0], False) for device in DEVICES]
            faults += [*pool.map(lambda question: explained(*question), asked), verified()]
    faults = [fault for fault in faults if fault]
    print("\n".join([*faults, f"light: {len(faults)} faults, {len(DEVICES)} devices, {time.perf_counter() - start:.0f} s"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
