"""PyTorch's own samples of everything that comes down to a product, inside accelerate(), forward and backward, on the GPU.

bf16 takes every sample, contiguous and strided; fp32 and fp16 half of them, by turns contiguous and strided (on the CPU fp32 takes
every one). A first round, in which torch's kernels stand in, tells what is needed; that is compiled in parallel before anything is
judged.
"""

from __future__ import annotations

import pytest
import torch

import minblas
from minblas import accelerate_product
from tests.minblas import opinfo_support as support

OPS = support.op_infos(support.NAMES)
CASES = [
    (torch.bfloat16, "contiguous"),
    (torch.bfloat16, "strided"),
    (torch.float32, "turns"),
    (torch.float16, "turns"),
]


def samples(name, dtype, layout):
    torch.manual_seed(0)
    return list(support.samples(OPS[name], "cuda", dtype, layout))


@pytest.fixture(scope="module", autouse=True)
def ready():
    """What every sample needs, compiled and loaded."""
    problems = []
    make_plan = accelerate_product.make_plan

    def noting(call):
        plan = make_plan(call)
        problems.append(plan.problem)
        return plan

    with pytest.MonkeyPatch.context() as patch, minblas.options(on_cold="aten"), minblas.accelerate(devices="cuda"):
        patch.setattr(accelerate_product, "make_plan", noting)
        for name in support.NAMES:
            for case in CASES:
                for sample in samples(name, *case):
                    output = support.run(OPS[name], sample).output
                    support.run(OPS[name], sample, torch.ones_like(output))
    report = minblas.warmup(dict.fromkeys(problem for problem in problems if problem is not None), device="cuda")
    print(f"\ntests/gpu/test_opinfo.py: {report}")
    torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def _nothing_remembered():
    accelerate_product.CACHE.clear()
    minblas.stats(reset=True)
    yield
    accelerate_product.CACHE.clear()


def test_the_operations_are_all_there():
    assert set(OPS) == set(support.NAMES)


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("name", support.NAMES)
def test_torchs_samples(name, dtype, layout, monkeypatch):
    verdicts = support.judge(monkeypatch)
    ours = sum(support.check(OPS[name], sample, "cuda", verdicts) for sample in samples(name, dtype, layout))
    stats = minblas.stats()
    assert ours > 0
    assert sum(sum(found.values()) for found in stats.accelerated.values()) == ours == len(verdicts), stats
    assert {reason for found in stats.left_to_torch.values() for reason in found} <= support.FAIR, stats
    assert "aten" not in stats.calls
    assert not stats.quarantined


@pytest.mark.parametrize("name", [name for name in support.WITH_OUT if name != "matmul"])
def test_torchs_samples_into_out(name, monkeypatch):
    verdicts = support.judge(monkeypatch)
    assert sum(support.check_out(OPS[name], sample, "cuda", verdicts) for sample in samples(name, torch.bfloat16, "contiguous")) > 0
    assert any(op.endswith(("out", "_")) for op in minblas.stats().accelerated), minblas.stats()
