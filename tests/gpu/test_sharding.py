"""The tensor-parallel world of tests/minblas/test_sharding.py, with NCCL between two GPUs."""

from __future__ import annotations

import pytest
import torch

from tests.minblas.test_sharding import RANKS, check_world


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason=f"needs {RANKS} GPUs")
@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch has no NCCL")
def test_two_gpus_are_one(tmp_path):
    check_world(tmp_path, "cuda", "float32", "bfloat16", "float16")
