"""Sharding rules: each is true of the mathematics; and a tensor-parallel MLP on two real processes is the single process's."""

import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("torch.distributed.tensor", reason="this torch is built without torch.distributed")
from torch.distributed.tensor import Partial, Replicate, Shard

from minblas import sharding
from minblas.errors import OperandError
from tests.processes import ROOT, environment

RANKS = 2

SHAPES = {
    # a, b, c, bias: as the kernel reads a and b, before trans_a and trans_b store them otherwise
    "matrices": ((4, 6), (6, 8), (4, 8), (8,)),
    "c is a row": ((4, 6), (6, 8), (1, 8), (4, 1)),
    "c is a column": ((4, 6), (6, 8), (4, 1), (1, 8)),
    "batch": ((2, 4, 6), (2, 6, 8), (2, 4, 8), (8,)),
    "one b for the batch": ((2, 4, 6), (6, 8), (4, 8), (2, 1, 8)),
    "a is broadcast": ((1, 4, 6), (2, 6, 8), (2, 4, 8), (1,)),
    "two batch dimensions": ((2, 1, 4, 6), (4, 6, 8), (4, 4, 8), (2, 4, 1, 8)),
}


def described(tensor):
    """What a rule reads of an operand."""
    return None if tensor is None else SimpleNamespace(shape=tensor.shape, tensor_meta=SimpleNamespace(dtype=tensor.dtype))


def stored(shape, transposed):
    tensor = torch.randn(shape, dtype=torch.float64)
    return tensor.mT.contiguous() if transposed else tensor


def parts(tensor, placement):
    """A tensor as its ranks hold it."""
    if isinstance(placement, Shard):
        return tensor.chunk(RANKS, placement.dim)
    if isinstance(placement, Replicate):
        return [tensor] * RANKS
    noise = torch.randn_like(tensor)
    return [noise, tensor - noise]


def whole(found, placement):
    if isinstance(placement, Shard):
        return torch.cat(found, placement.dim)
    if isinstance(placement, Partial):
        return sum(found)
    torch.testing.assert_close(*found, rtol=0, atol=0)
    return found[0]


def gemm64(call, a, b, c, bias):
    """The contract, in float64."""
    a = a.mT if call["trans_a"] else a
    b = b.mT if call["trans_b"] else b
    result = call["alpha"] * (a @ b)
    result = result if c is None else result + call["beta"] * c
    result = result if bias is None else result + bias
    return torch.relu(result) if call["activation"] == "relu" else result


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_every_rule_is_true(shapes, activation):
    a_shape, b_shape, c_shape, bias_shape = SHAPES[shapes]
    for trans_a, trans_b, with_c, with_bias in itertools.product([False, True], repeat=4):
        operands = {
            "a": stored(a_shape, trans_a),
            "b": stored(b_shape, trans_b),
            "c": torch.randn(c_shape, dtype=torch.float64) if with_c else None,
            "bias": torch.randn(bias_shape, dtype=torch.float64) if with_bias else None,
        }
        call = {"trans_a": trans_a, "trans_b": trans_b, "activation": activation, "alpha": 1.5, "beta": -0.5}
        expected = gemm64(call, **operands)
        found = sharding.rules(call | {name: described(tensor) for name, tensor in operands.items()})
        kinds = {type(placement) for placement, _ in found}
        assert kinds == ({Replicate, Shard} if activation else {Replicate, Shard, Partial})
        assert {placement.dim for placement, _ in found if isinstance(placement, Shard)} == set(range(expected.dim()))
        for placement, placed in found:
            assert set(placed) == {name for name, tensor in operands.items() if tensor is not None}
            split = {name: parts(tensor, placed[name]) for name, tensor in operands.items() if tensor is not None}
            local = [gemm64(call, *(split[name][rank] if name in split else None for name in operands)) for rank in range(RANKS)]
            torch.testing.assert_close(whole(local, placement), expected, msg=f"{placement} from {placed}, {call}")


def test_partial_sums_want_an_addend_that_can_be_divided():
    """DTensor divides a whole addend by the number of ranks: of an integer that would make a fraction."""
    a, b = torch.ones(2, 4, dtype=torch.int8), torch.ones(4, 2, dtype=torch.int8)
    bias = torch.ones(2, dtype=torch.int32)
    without = sharding.rules({"a": described(a), "b": described(b)})
    beside = sharding.rules({"a": described(a), "b": described(b), "bias": described(bias)})
    assert any(isinstance(placement, Partial) for placement, _ in without)
    assert not any(isinstance(placement, Partial) for placement, _ in beside)


def test_a_torch_without_the_experimental_function_is_told_apart(monkeypatch):
    import torch.distributed.tensor.experimental as experimental

    monkeypatch.delattr(experimental, "register_sharding")
    monkeypatch.setattr(sharding, "_registered", False)
    with pytest.raises(OperandError, match=r"register_sharding.*to_local\(\)"):
        sharding.ensure_registered()
    assert not sharding._registered


def check_world(tmp_path, device, *dtypes):
    """Run tests/minblas/tensor_parallel.py, a process for each rank; none outlives the test."""
    script, store = ROOT / "tests" / "minblas" / "tensor_parallel.py", tmp_path / "store"
    variables = environment(OMP_NUM_THREADS="1")
    commands = [[sys.executable, str(script), str(rank), str(RANKS), str(store), device, *dtypes] for rank in range(RANKS)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, cwd=ROOT, env=variables, **pipes) for command in commands]
    try:
        answers = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, answers, strict=True):
        assert rank.returncode == 0, errors[-4000:]
    for output, _ in answers:
        counted = json.loads(output.splitlines()[-1])
        assert list(counted) == list(dtypes)
        for parts_of in counted.values():
            assert parts_of["products"] > 15
            assert sum(parts_of["op"].values()) == 6
            assert sum(parts_of["accelerate"].values()) == 6


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_are_one(tmp_path):
    check_world(tmp_path, "cpu", "float32", "bfloat16")


def test_plain_calls_do_not_import_distributed():
    code = (
        "import sys, torch, minblas\n"
        "minblas.gemm(torch.ones(4, 4), torch.ones(4, 4))\n"
        "sys.exit(any(name.startswith(('torch.distributed.tensor', 'minblas.sharding')) for name in sys.modules))\n"
    )
    before = "import sys, torch; sys.exit(any(name.startswith('torch.distributed.tensor') for name in sys.modules))"
    if subprocess.run([sys.executable, "-c", before], check=False, timeout=120).returncode:
        pytest.skip("this torch imports torch.distributed.tensor by itself")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
