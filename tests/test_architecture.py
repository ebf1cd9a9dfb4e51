"""The floors, the layout, and what importing may not do."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("minblas", "kernel_zoo", "heuristics", "bench")


def modules():
    for package in PACKAGES:
        yield package
        for found in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            yield found.name


def python(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_go_down_only():
    pytest.importorskip("importlinter", reason="import-linter is a development dependency; a GPU machine may lack it")
    done = python("from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package):
    assert (ROOT / package / "py.typed").exists()


def test_the_top_level_is_fixed():
    known = {*PACKAGES, "tests", "examples", "docs"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py")) and not path.name.startswith(".")}
    assert folders - known == set()


def test_importing_compiles_nothing_and_touches_no_device():
    names = [name for name in modules() if not name.endswith("__main__")]
    done = python(
        "import importlib, triton\n"
        "def refuse(*args, **kwargs): raise SystemExit('compiled at import')\n"
        "triton.compile = refuse\n"
        "import triton.compiler\n"
        "triton.compiler.compile = refuse\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "import torch\n"
        "from triton.runtime.driver import driver\n"
        "assert not torch.cuda.is_initialized(), 'CUDA was initialised'\n"
        "assert driver._active is None, 'a triton driver was started'\n"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_child_process_can_use_the_device_after_an_import():
    # A driver context does not survive a fork: torch marks the child as spoilt where one existed before.
    done = python(
        "import minblas, bench.cli, os, torch\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(int(torch.cuda._is_in_bad_fork()))\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_choosing_needs_neither_torch_nor_triton():
    done = python(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "sys.modules['triton'] = None\n"
        "from kernel_zoo import catalog\n"
        "from kernel_zoo.spec import GemmProblem\n"
        "from heuristics import archs, choose\n"
        "problem = GemmProblem.of(4096, 4096, 4096, 'bf16', 'nt')\n"
        "print(choose.choose(problem, archs.get_arch('h200'), catalog.VARIANTS).variant)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != "aten"


@pytest.mark.parametrize("name", sorted(name for name in modules() if not name.endswith("__main__")))
def test_all_is_true(name):  # and sorted, which ruff sees to (RUF022)
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        return
    assert len(set(exported)) == len(exported)
    missing = [entry for entry in exported if not hasattr(module, entry)]
    assert missing == []


def test_every_module_says_what_it_is():
    silent = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
                silent.append(str(path.relative_to(ROOT)))
    assert silent == []
