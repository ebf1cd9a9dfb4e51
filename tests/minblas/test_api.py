"""gemm end to end on CPU tensors: scalars, empty shapes, NaN, layouts, dtypes, against float64."""

from __future__ import annotations

import itertools

import pytest
import torch

import minblas
from kernel_zoo import catalog
from tests.minblas.oracle import close, dirty

NAN = float("nan")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


def test_scalars_that_cannot_hide():
    a, b, c, bias = torch.randn(19, 37), torch.randn(37, 23), torch.randn(19, 23), 1e3 * torch.randn(23)
    for alpha, beta in itertools.product((0.0, 1.0, 1.2), (0.0, 1.0, -2.0)):
        close(minblas.gemm(a, b, alpha, beta, c, bias=bias), a, b, alpha, beta, c, bias)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "leaky_relu"])
def test_activations_come_last(activation):
    a, b, c, bias = torch.randn(9, 20), torch.randn(20, 17), torch.randn(9, 1), torch.randn(17)
    close(minblas.gemm(a, b, 0.7, 1.3, c, bias=bias, activation=activation), a, b, 0.7, 1.3, c, bias, activation)


@pytest.mark.parametrize(("alpha", "beta"), list(itertools.product((0.0, 1.0, 2.5), repeat=2)))
def test_nan_spreads_only_from_what_is_read(alpha, beta):
    def poisoned(*shape):
        return torch.full(shape, NAN)

    a, b, c = torch.randn(5, 18), torch.randn(18, 7), torch.randn(5, 7)
    assert minblas.gemm(poisoned(5, 18), b, alpha, beta, c).isnan().any() == (alpha != 0)
    assert minblas.gemm(a, poisoned(18, 7), alpha, beta, c).isnan().any() == (alpha != 0)
    assert minblas.gemm(a, b, alpha, beta, poisoned(5, 7)).isnan().any() == (beta != 0)
    assert minblas.gemm(a, b, alpha, beta, c, bias=poisoned(7)).isnan().all()


def test_a_fresh_out_is_never_read():
    a, b = torch.randn(33, 18), torch.randn(18, 17)
    target = torch.full((33, 17), NAN)
    close(minblas.gemm(a, b, out=target), a, b)


@pytest.mark.parametrize("shape", list(itertools.product((0, 3), (0, 4), (0, 5), (0, 2))))
def test_empty_in_every_combination(shape):
    m, n, k, batch = shape
    a, b, c = torch.randn(batch, m, k), torch.randn(batch, k, n), torch.randn(n)
    close(minblas.gemm(a, b, 1.5, 3.0, c), a, b, 1.5, 3.0, c)
    target = torch.full((batch, m, n), 7.0)
    assert minblas.gemm(a, b, out=target) is target
    close(target, a, b)


def test_k_zero_gives_the_epilogue_of_c_and_bias():
    c, bias = torch.ones(4, 5), torch.randn(5)
    a, b = torch.empty(4, 0), torch.empty(0, 5)
    close(minblas.gemm(a, b, 1.0, 3.0, c, bias=bias, activation="gelu"), a, b, 1.0, 3.0, c, bias, "gelu")
    assert minblas.gemm(a, b).eq(0).all()
    assert torch.equal(minblas.gemm(a.half(), b.half(), out=torch.full((4, 5), 7.0).half()), torch.zeros(4, 5).half())


def test_an_empty_operand_may_lie_past_its_storage():
    a = torch.empty(0, dtype=torch.bfloat16).as_strided((3, 0), (1, 1), 1)
    assert minblas.gemm(a, torch.empty(0, 4, dtype=torch.bfloat16)).eq(0).all()
    assert not minblas.stats().quarantined


@pytest.mark.parametrize("shape", list(itertools.product((1, 2), repeat=3)))
def test_tiny(shape):
    m, n, k = shape
    a, b = torch.randn(m, k), torch.randn(k, n)
    close(minblas.gemm(a, b), a, b)


@pytest.mark.parametrize(
    ("dtype", "transposed"), list(itertools.product((torch.float32, torch.float16, torch.bfloat16), (False, True)))
)
def test_dirty_neighbours_pitches_and_offsets(dtype, transposed):
    for pitch, offset in ((None, 0), (24, 1), (25, 4), (32, 8)):
        a = dirty(11, 19, dtype=dtype, pitch=pitch, offset=offset, transposed=transposed)
        b = dirty(19, 13, dtype=dtype, pitch=pitch, offset=offset)
        c, bias = dirty(11, 13, dtype=dtype, pitch=pitch, offset=offset), dirty(1, 13, dtype=dtype, offset=offset)[0]
        target = dirty(11, 13, dtype=dtype, pitch=pitch, offset=offset)
        result = minblas.gemm(a, b, 1.2, 2.0, c, bias=bias, out=target)
        assert result is target
        close(target, a, b, 1.2, 2.0, c, bias)
        storage = torch.tensor([], dtype=dtype).set_(target.untyped_storage())
        assert storage.isnan().sum() == storage.numel() - target.numel()


def test_aligned_and_unaligned_of_one_shape_in_both_orders():
    for order in ((0, 1, 4), (1, 0, 4)):
        for offset in order:
            a, b = dirty(16, 32, dtype=torch.float16, offset=offset), torch.randn(32, 16).half()
            close(minblas.gemm(a, b), a, b)


def test_expanded_operands():
    row, column = torch.randn(1, 20).expand(9, 20), torch.randn(20, 1).expand(20, 11)
    close(minblas.gemm(row, column), row, column)
    batch = torch.randn(1, 9, 20).expand(3, 9, 20)
    close(minblas.gemm(batch, column), batch, column)
    scalar = torch.randn(())
    close(minblas.gemm(row, column, 1.0, 2.0, scalar), row, column, 1.0, 2.0, scalar)
    for c in (torch.randn(11), torch.randn(9, 1), torch.randn(1, 1), torch.randn(3, 1, 11)):
        close(minblas.gemm(batch, column, 1.0, 2.0, c), batch, column, 1.0, 2.0, c)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((1, 3, 4), (6, 4, 5)),
        ((2, 1, 3, 4), (1, 5, 4, 6)),
        ((2, 3, 2, 3, 4), (3, 1, 4, 5)),
    ],
)
def test_batches_broadcast(left, right):
    a, b = dirty(*left, pitch=9, offset=3), dirty(*right, pitch=9)
    close(minblas.gemm(a, b), a, b)
    target = torch.full((*torch.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1]), NAN)
    assert minblas.gemm(a, b, out=target) is target
    close(target, a, b)


def test_an_out_whose_batch_has_no_one_stride():
    a, b = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 8, 5)
    for function in (lambda: None, lambda: None):  # cold, then warm
        function()
        target = torch.full((3, 2, 4, 5), NAN).permute(1, 0, 2, 3)
        pointer, strides = target.data_ptr(), target.stride()
        assert minblas.gemm(a, b, out=target) is target
        assert (target.data_ptr(), target.stride()) == (pointer, strides)
        close(target, a, b)


def test_column_major_out():
    a, b = torch.randn(4, 6, 8), torch.randn(4, 8, 5)
    target = torch.full((4, 5, 6), NAN).mT
    close(minblas.gemm(a, b, out=target), a, b)


def test_in_place_c():
    a, b, c = torch.randn(17, 20), torch.randn(20, 9), torch.randn(17, 9)
    for _ in range(2):
        before = c.clone()
        assert minblas.gemm(a, b, 1.2, 2.0, c, out=c) is c
        close(c, a, b, 1.2, 2.0, before)
    # The same plan serves a c apart from out.
    other, target = torch.randn(17, 9), torch.empty(17, 9)
    close(minblas.gemm(a, b, 1.2, 2.0, other, out=target), a, b, 1.2, 2.0, other)


def test_conjugate_and_negative_views():
    z = torch.randn(5, 6, dtype=torch.complex64)
    close(minblas.gemm(z.conj(), z.mT), z.conj().resolve_conj(), z.mT)
    close(minblas.mm(z, z.mH), z, z.mH.resolve_conj())
    imaginary = z.conj().imag
    assert imaginary.is_neg()
    close(minblas.gemm(imaginary, z.real.mT), imaginary.resolve_neg(), z.real.mT)
    plain, w = imaginary.resolve_neg().clone(), torch.randn(6, 4)
    close(minblas.gemm(plain, w), plain, w)  # the same shape and strides without the bit


def test_integers_and_wide_types():
    a, b = torch.tensor([[-44, -20], [-126, 6]], dtype=torch.int8), torch.tensor([[24, -75], [127, -101]], dtype=torch.int8)
    result = minblas.gemm(a, b)
    assert result.dtype is torch.int32
    assert torch.equal(result, a.int() @ b.int())
    assert torch.equal(minblas.mm(a, b), torch.mm(a, b))
    full = torch.full((16, 16), 127, dtype=torch.int8)
    assert minblas.gemm(full, full).eq(127 * 127 * 16).all()
    assert minblas.gemm(full, full, 2, 3, torch.ones(16, 16, dtype=torch.int32)).eq(2 * 127 * 127 * 16 + 3).all()
    x, y = torch.randn(6, 7, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    close(minblas.gemm(x, y, 1 / 3), x, y, 1 / 3)
    z = torch.randn(6, 7, dtype=torch.complex128)
    close(minblas.gemm(z, z.mT, 0.5 + 2j), z, z.mT, 0.5 + 2j)


def test_fp32_is_exact_unless_tf32_is_allowed():
    whole = torch.arange(2040.0, 2060.0)[None]
    one = torch.ones(1, 1)
    assert torch.equal(minblas.gemm(one, whole), whole)
    assert not torch.equal(minblas.gemm(one, whole, precision="tf32", variant="tiled"), whole)
    assert torch.equal(minblas.gemm(one, whole, precision="highest"), whole)


def test_large_values_survive_every_size():
    for m in (1, 2, 16, 63, 64, 65):
        a, b = torch.full((m, 16), 7e4), torch.full((16, 16), 1.0)
        assert minblas.gemm(a, b).eq(16 * 7e4).all()


def test_mixed_output_types():
    a, b, c = torch.randn(9, 20).half(), torch.randn(20, 11).half(), torch.randn(9, 11)
    for out_dtype in ("fp16", "bfloat16", torch.float32):
        close(minblas.gemm(a, b, 1.0, 1.0, c, out_dtype=out_dtype), a, b, 1.0, 1.0, c)


def test_every_variant_serves_what_it_does_not_refuse():
    served = set()
    for m, n, k in ((1, 96, 40), (48, 32, 160), (33, 17, 1024), (33, 24, 2048)):
        a, b, c = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.randn(m, n).half()
        for variant in minblas.variants():
            try:
                result = minblas.gemm(a, b, 1.5, 0.5, c, variant=variant.name)
            except minblas.errors.VariantError:
                continue
            close(result, a, b, 1.5, 0.5, c)
            served.add(variant.name)
    on_cpu = {variant.name for variant in catalog.VARIANTS if variant.interpretable}
    assert served == on_cpu < {variant.name for variant in minblas.variants() if variant.origin == "zoo"}


def test_parameters_and_no_grad():
    weight = torch.nn.Parameter(torch.randn(6, 4))
    with torch.no_grad():
        result = minblas.gemm(torch.eye(6), weight)
    assert not result.requires_grad
    assert torch.equal(result, weight.data)
    assert torch.equal(minblas.gemm(torch.eye(6), weight.detach()), weight.data)
