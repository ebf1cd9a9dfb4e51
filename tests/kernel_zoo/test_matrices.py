"""Operands as strided views of torch tensors."""

import pytest
import torch

from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.spec import ITEMSIZE, Operand


def test_every_dtype_has_its_torch_type_of_the_same_size():
    assert set(TORCH_DTYPES) == set(ITEMSIZE)
    assert all(TORCH_DTYPES[name].itemsize == size for name, size in ITEMSIZE.items())


@pytest.mark.parametrize("transposed", [False, True])
def test_a_view_starts_at_the_address_and_shares_memory(transposed):
    memory = torch.arange(200, dtype=torch.float32)
    operand = Operand("fp32", 3, 4, (20, 1, 5) if transposed else (20, 5, 1))
    view = matrix(memory[7:], operand, 2)
    assert view.shape == (2, 3, 4)
    assert view.data_ptr() == memory[7:].data_ptr()
    expected = [[[7 + 20 * b + (r + 5 * c if transposed else 5 * r + c) for c in range(4)] for r in range(3)] for b in range(2)]
    assert view.tolist() == expected


def test_strides_of_single_rows_and_matrices_mean_nothing():
    memory = torch.arange(4.0)
    assert matrix(memory, Operand("fp32", 1, 4, (10**9, 10**9, 1)), 1).tolist() == [[[0, 1, 2, 3]]]
    assert matrix(memory, Operand("fp32", 1, 4, (0, 0, 1)), 3)[2].tolist() == [[0, 1, 2, 3]]
