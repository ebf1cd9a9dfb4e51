"""The examples run as a user would run them, on a machine without a GPU, and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROMISES = {
    "01_gemm.py": ["gemm: largest error", "in place: the same bits", "with bias and gelu: (64, 64)", "explain: "],
    "02_register.py": [
        "me.tutorial (CPU",
        ", 0 wrong",
        "not tuned: tuning measures time",
        "forced: largest error",
        "inputs are bf16",
    ],
    "03_sweep.py": ["4 rows from", "ok, ", "not timed"],
}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example(name, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for promise in PROMISES[name]:
        assert promise in done.stdout
