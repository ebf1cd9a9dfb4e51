"""Every variant at real tiles, and every packaged row's binary, launched as the runtime launches them."""

import pytest
import torch

from kernel_zoo import catalog
from kernel_zoo.matrices import matrix
from tests.gpu import planned
from tests.gpu.support import gpu_arch, run

ARCH = gpu_arch()
KERNELS = planned.all_kernel_cases(ARCH)
ROWS = planned.table_cases(ARCH)


@pytest.mark.parametrize("case", KERNELS, ids=[f"{case.variant.name}-{i}" for i, case in enumerate(KERNELS)])
def test_a_variant_is_right(case):
    verdict, _ = run(case)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"


@pytest.mark.parametrize(
    "case", ROWS, ids=[f"{case.variant.name}-{case.problem.m}x{case.problem.n}x{case.problem.k}-{i}" for i, case in enumerate(ROWS)]
)
def test_a_packaged_rows_binary_is_right(case):
    assert case.variant.refusal(case.problem, case.arch, case.tile) is None
    verdict, _ = run(case)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"


@pytest.mark.parametrize("case", [case for case in KERNELS if case.problem.out.strides[0] or case.problem.batch == 1][::8])
def test_results_repeat_bit_for_bit(case):
    first, second = (matrix(run(case, 3)[1]["OUT"], case.problem.out, case.problem.batch).contiguous() for _ in range(2))
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    differs = (first.view(bits) != second.view(bits)).nonzero()
    assert not len(differs), f"{len(differs)} elements differ, first at {differs[0].tolist()}: {case.describe()}"


def test_every_variant_is_among_the_cases():
    assert {case.variant.name for case in KERNELS} == {variant.name for variant in catalog.VARIANTS}
