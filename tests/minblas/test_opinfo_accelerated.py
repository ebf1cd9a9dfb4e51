"""PyTorch's own samples of everything that comes down to a product, inside accelerate(), forward and backward, on a CPU.

fp32 takes every sample, contiguous and strided; fp16 and bf16 share them, by turns contiguous and strided: through the interpreter
a product takes a tenth of a second.
"""

from __future__ import annotations

import pytest
import torch

import minblas
from tests.minblas import opinfo_support as support

OPS = support.op_infos(support.NAMES)
CASES = [
    (torch.float32, "contiguous"),
    (torch.float32, "strided"),
    (torch.float16, "turns"),
    (torch.bfloat16, "turns"),
]

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def test_the_operations_are_all_there():
    assert set(OPS) == set(support.NAMES)


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("name", support.NAMES)
def test_torchs_samples(name, dtype, layout, monkeypatch):
    verdicts = support.judge(monkeypatch)
    ours = sum(support.check(OPS[name], sample, "cpu", verdicts) for sample in support.samples(OPS[name], "cpu", dtype, layout))
    stats = minblas.stats()
    assert ours > 0
    assert sum(sum(found.values()) for found in stats.accelerated.values()) == ours == len(verdicts), stats
    assert {reason for found in stats.left_to_torch.values() for reason in found} <= support.FAIR, stats
    assert "aten" not in stats.calls
    assert not stats.quarantined


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")  # by torch's own matmul with a vector
@pytest.mark.parametrize("name", support.WITH_OUT)
def test_torchs_samples_into_out(name, monkeypatch):
    verdicts = support.judge(monkeypatch)
    found = support.samples(OPS[name], "cpu", torch.float32, "contiguous")
    assert sum(support.check_out(OPS[name], sample, "cpu", verdicts) for sample in found) > 0
    assert any(op.endswith(("out", "_")) for op in minblas.stats().accelerated), minblas.stats()
