"""torch.export: the op stays one node, with gemm's arguments; a program is saved, and loaded and run by another process."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export, save

import minblas
from minblas.op import GEMM, GEMM_OUT
from tests.minblas.test_import import run

pytestmark = pytest.mark.filterwarnings("ignore")


class Layer(torch.nn.Module):
    """A linear layer and its activation in one product."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, 16))
        self.bias = torch.nn.Parameter(torch.randn(5))

    def forward(self, x):
        return minblas.gemm(x, self.weight, bias=self.bias, trans_b=True, activation="gelu") * 2


class Into(torch.nn.Module):
    """A product that is written into one of several rows of a buffer."""

    def forward(self, x, weight, buffer):
        minblas.gemm(x, weight, out=buffer[1])
        return buffer + 1


def products(program):
    return [node.target for node in program.graph.nodes if node.target in (GEMM, GEMM_OUT)]


@pytest.fixture(autouse=True)
def _quick():
    torch.manual_seed(19)
    with minblas.options(interpret_cap=0):
        yield


@pytest.mark.parametrize("strict", [False, True])
def test_one_node_for_every_size(strict):
    layer, rows = Layer(), Dim("rows", min=2, max=4096)
    program = export(layer, (torch.randn(9, 16),), dynamic_shapes=({0: rows},), strict=strict)
    assert products(program) == [GEMM]
    (node,) = [node for node in program.graph.nodes if node.target is GEMM]
    assert node.args[7] is True  # trans_b
    assert "gelu" in node.args
    assert products(program.run_decompositions()) == [GEMM]
    for m in (9, 64):
        x = torch.randn(m, 16)
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_written_into_a_buffer(strict):
    x, weight, buffer = torch.randn(9, 16), torch.randn(16, 5), torch.randn(2, 9, 5)
    rows = Dim("rows", min=2, max=64)
    shapes = ({0: rows}, None, {1: rows})
    program = export(Into(), (x, weight, buffer.clone()), dynamic_shapes=shapes, strict=strict)
    program = program.run_decompositions()
    for m in (9, 12):
        x, ours = torch.randn(m, 16), torch.randn(2, m, 5)
        theirs = ours.clone()
        torch.testing.assert_close(program.module()(x, weight, ours), Into()(x, weight, theirs))
        torch.testing.assert_close(ours, theirs)


def test_another_process(tmp_path):
    """It imports minblas.op first, or torch does not know the op: then torch's log names it."""
    layer, x = Layer(), torch.randn(9, 16)
    save(export(layer, (x,), dynamic_shapes=({0: Dim("rows", min=2, max=64)},)), tmp_path / "layer.pt2")
    torch.save((x, layer(x).detach()), tmp_path / "expected.pt")
    code = f"""
import torch
try:
    torch.export.load({str(tmp_path / "layer.pt2")!r})
except RuntimeError:
    pass
else:
    raise SystemExit("loaded without the op")
import minblas.op
program = torch.export.load({str(tmp_path / "layer.pt2")!r})
x, expected = torch.load({str(tmp_path / "expected.pt")!r})
torch.testing.assert_close(program.module()(x), expected)
torch.testing.assert_close(program.module()(x[:4]), expected[:4])
"""
    done = run(code, MINBLAS_INTERPRET_CAP="0")
    assert done.returncode == 0, done.stderr
    assert "failed to resolve torch.ops.minblas.gemm.default" in done.stderr
