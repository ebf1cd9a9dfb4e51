"""The warp-specialised families beyond plain products: batches under one descriptor, transposed results, early starts."""

from itertools import pairwise

import pytest
import torch

from minblas import launch
from tests.gpu import planned
from tests.gpu.support import DEVICE, gpu_arch, run

ARCH = gpu_arch()
pytestmark = pytest.mark.skipif(ARCH.capability != (9, 0), reason="they multiply by Hopper's warpgroup instructions")
CASES = planned.gluon_cases(ARCH)
CHAINS = planned.chain_cases(ARCH)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.variant.name}-{case.tile.describe()}-{i}" for i, case in enumerate(CASES)])
def test_batches_and_transposed_results(case):
    verdict, _ = run(case)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"


@pytest.mark.parametrize("case", CHAINS, ids=[f"{case.variant.name}-{case.tile.describe()}" for case in CHAINS])
def test_each_product_sees_what_the_one_before_it_wrote(case):
    """A chain of products on one stream, each of the result before it: one that starts early must wait for it."""
    side = case.problem.m
    prepared = launch.prepare(case.variant, case.problem, case.tile, ARCH, DEVICE, forced=True)
    torch.manual_seed(7)
    right = torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) / side**0.5
    steps = [torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16)]
    steps += [torch.full_like(right, float("nan")) for _ in range(12)]
    for before, after in pairwise(steps):
        prepared({"A": before.view(-1), "B": right.view(-1), "OUT": after.view(-1)}, 1.0, 0.0)
    torch.cuda.synchronize()
    for before, after in pairwise(steps):
        wanted = before.double() @ right.double()
        assert torch.allclose(after.double(), wanted, rtol=2**-7, atol=2**-7 * float(wanted.abs().max()))
