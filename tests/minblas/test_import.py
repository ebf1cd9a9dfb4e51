"""Importing minblas: cheap, quiet, and clear where something else hides its rooms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import minblas

ROOT = Path(minblas.__file__).resolve().parent.parent


def run(code: str, *, cwd: Path = ROOT, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (path, str(ROOT))))
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def test_all_is_sorted_and_is_the_namespace():
    assert list(minblas.__all__) == sorted(minblas.__all__)
    assert set(minblas.__all__) == set(minblas._HOMES)
    assert set(minblas.__all__) <= set(dir(minblas))
    for name in minblas.__all__:
        assert getattr(minblas, name) is not None


def test_unknown_attribute():
    with pytest.raises(AttributeError, match=r"minblas.*no attribute 'gem'"):
        minblas.gem


@pytest.mark.parametrize("name", ["accelerate", "plan", "explain", "check", "tune", "warmup"])
def test_a_submodule_never_hides_the_function_of_its_name(name):
    done = run(
        f"import importlib, minblas; importlib.import_module('minblas.{name}'); assert callable(minblas.{name}), minblas.{name}"
    )
    assert done.returncode == 0, done.stderr


def test_import_touches_nothing():
    code = """
import sys, minblas
assert "torch" not in sys.modules and "triton" not in sys.modules
assert not [name for name in sys.modules if name.startswith("kernel_zoo.kernels")]
import minblas.api, minblas.torch_names, minblas.launch_cuda, torch
assert not torch.cuda.is_initialized()
from minblas.binaries import BINARIES
from minblas.stats import COUNTERS
assert not BINARIES._loaded and COUNTERS.compiled == 0
import os
child = os.fork()
if child == 0:
    ok = minblas.gemm(torch.eye(3), torch.eye(3), variant="aten").equal(torch.eye(3))
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = run(code, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_explaining_sizes_needs_no_torch():
    code = "import sys, minblas; s = minblas.explain(512, 512, 512, dtype='fp32', arch='a100'); assert 'torch' not in sys.modules"
    done = run(f"{code}; print(s.variant)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("package", ["kernel_zoo", "heuristics"])
@pytest.mark.parametrize("as_package", [True, False])
def test_a_foreign_module_is_named(tmp_path, package, as_package):
    if as_package:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    else:
        (tmp_path / f"{package}.py").write_text("")
    done = run("import minblas", cwd=tmp_path, path=str(tmp_path))
    assert done.returncode != 0
    assert f"ImportError: minblas needs its own package '{package}', but Python finds another at {tmp_path}" in done.stderr
    assert "rename" in done.stderr


def test_a_bench_of_the_users_own_is_no_obstacle(tmp_path):
    (tmp_path / "bench.py").write_text("")
    done = run("import minblas; from minblas.versions import shadowed; print(shadowed('bench'))", cwd=tmp_path, path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "bench.py")


def test_show_versions(capsys):
    minblas.show_versions()
    shown = capsys.readouterr().out
    for name in ("python", "torch", "triton", "variants", "options"):
        assert name in shown
