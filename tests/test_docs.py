"""The pages: what they show runs, what they name exists, and what can be set is on one of them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields

import pytest

import minblas
from minblas import settings
from tests.processes import ROOT, environment

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
SNIPPETS = {page: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for page, text in TEXTS.items()}
#: What a reader has: a model, a kernel of Triton's tutorial, a mesh. Only a GPU is missing, and so nothing can be tuned.
READER = """
import runpy, torch, triton, minblas
x, weight, bias, tokens = torch.randn(6, 8), torch.randn(8, 8), torch.randn(8), torch.randn(6, 8)
model = torch.nn.Sequential()
model.add_module("up", torch.nn.Linear(8, 16))
model.add_module("down", torch.nn.Linear(16, 8))
"""
KERNEL = f"""
matmul_kernel = runpy.run_path({str(ROOT / "examples" / "02_register.py")!r}, run_name="example")["matmul_kernel"]
minblas.tune = lambda *shapes, **keywords: None
"""
MESH = """
import torch.distributed
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
"""
LAST = """
minblas.accelerate.disable()
assert sum(minblas.stats().accelerated["addmm"].values()) >= 2, minblas.stats()
"""
CALLS = """
exact = torch.nn.functional.linear(x, weight, bias).relu()
for result in layer(x), torch.export.load("layer.pt2").module()(x):
    torch.testing.assert_close(result, exact)
assert step(x).shape == x.shape
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("README.md", READER + KERNEL, LAST), ("docs/pytorch.md", READER + MESH, LAST + CALLS)],
    ids=["README", "pytorch"],
)
def test_what_a_page_shows_runs(name, before, after, tmp_path):
    shown = "\n".join(SNIPPETS[ROOT / name])
    assert shown.count("minblas.") >= 8
    small = shown.replace('torch.randn(4096, 4096, device="cuda"', 'torch.randn(48, 48, device="cpu"')
    small = small.replace("dynamic=True)", 'dynamic=True, backend="aot_eager")')  # inductor needs a C++ compiler
    script = tmp_path / "shown.py"
    script.write_text(before + small + after, encoding="utf-8")
    variables = environment(CUDA_VISIBLE_DEVICES="", XDG_DATA_HOME=str(tmp_path))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    for snippet in SNIPPETS[page]:
        ast.parse(snippet)
    for name in re.findall(r"\bminblas\.([a-z_]+)\b(?!\.py)", TEXTS[page]):
        assert name in dir(minblas) or (ROOT / "minblas" / f"{name}.py").exists() or name == "gemm_out", name
    for name in re.findall(r"\bMINBLAS_[A-Z_]*[A-Z]\b", TEXTS[page]):
        assert name in {*settings._PARSERS, *settings._ELSEWHERE}, name
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXTS[page]):
        assert (page.parent / target).exists(), target


def test_all_that_can_be_set_is_on_a_page():
    page = TEXTS[ROOT / "docs" / "choosing.md"]
    missing = [entry.name for entry in fields(settings.Options) if entry.name != "token" and f"`{entry.name}" not in page]
    missing += [name for name in settings._ELSEWHERE if name not in page]
    assert not missing
