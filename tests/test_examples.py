"""The examples run as a user would run them, on a machine without a GPU, and say what they promise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.processes import ROOT, environment

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
    "04_transformer.py": [
        "eager     torch    losses",
        "compiled  minblas  losses",
        "the same losses within",
        "\n198 calls: ",  # every product: two modes, each of 2 steps of 33 and 3 of 11
        "No tokens per second: a CPU says nothing about speed.",
    ],
    "05_linear_layer.py": [
        "6 binaries for 1 pick of 6 shapes",
        "2 layers adopted",
        "3 rows one by one: the same bits",
        "as a linear method: the same bits",
    ],
}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("[0-9]*.py")))
def test_example(name, tmp_path):
    variables = environment(CUDA_VISIBLE_DEVICES="", XDG_DATA_HOME=str(tmp_path))
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for promise in PROMISES[name]:
        assert promise in done.stdout, done.stdout
    if name == "04_transformer.py":
        assert without_numbers(done.stdout) in without_numbers((ROOT / "README.md").read_text(encoding="utf-8"))


def without_numbers(text):
    """What a page shows of an example is what it prints, but for digits that another CPU may round otherwise."""
    return re.sub(r"\d[\d.,e+-]*", "#", text)
