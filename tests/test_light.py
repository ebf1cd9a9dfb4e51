"""The light job asks for what the package needs without torch and triton, and refuses to pass where either is there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from heuristics.archs import ARCHS
from kernel_zoo.triton_compat import GATED
from tests.light import check

ROOT = Path(__file__).resolve().parent.parent


def test_it_refuses_to_run_where_torch_is_installed():
    done = subprocess.run([sys.executable, "tests/light/check.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "torch and triton can be imported" in done.stdout


def test_it_asks_about_every_device():
    assert set(check.DEVICES) == set(ARCHS)


def test_its_dependencies_are_the_packages_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]} - {"torch", "triton"}
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "VENVLIGHT)/constraints.txt 'pip" in line)
    assert set(line.split("'pip>=25.3' ")[1].split()) == needed


def test_the_gated_versions_are_those_the_gate_runs_on():
    pinned = re.search(r"^triton==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    other = re.search(r"gate on triton (\S+)'", (ROOT / "Makefile").read_text())
    assert set(GATED) == {pinned[1], other[1]}
