"""The examples that show more on a GPU: three modes of the transformer, and a warm layer in a CUDA graph."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import ROOT, environment

PROMISES = {
    "04_transformer.py": [f"{mode:9} minblas  losses" for mode in ("eager", "compiled", "captured")]
    + ["training: ", "decoding: ", "accelerate served"],
    "05_linear_layer.py": [
        "rows one by one: the same bits",
        "as a linear method: the same bits",
        "replayed on other rows: the same bits",
    ],
}


@pytest.mark.parametrize("name", PROMISES)
def test_example(name, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / name)]
    variables = environment(XDG_DATA_HOME=str(tmp_path))
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=570, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
    for promise in PROMISES[name]:
        assert promise in done.stdout
