"""torch.ops.minblas.gemm and gemm_out as operators: torch's own checks of them, their shapes without data, their registration."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.library import opcheck

import minblas
from minblas import op
from tests.minblas.op_samples import LAYOUTS, SAMPLES, laid
from tests.minblas.test_import import run

GEMM, GEMM_OUT = op.GEMM, op.GEMM_OUT


@pytest.fixture(autouse=True)
def _quick():
    """What computes is not looked at here: torch's product is the quickest on a CPU."""
    torch.manual_seed(5)
    with minblas.options(interpret_cap=0):
        yield


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_opcheck(sample, grad):
    """Schema, autograd registration, fake tensors, and AOTAutograd with sizes as symbols: results and gradients as eager's."""
    args = sample.args(grad)
    if grad and not args[0].requires_grad:
        grad = False  # whole numbers: checked without
    assert set(opcheck(GEMM, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("sample", SAMPLES[::2], ids=lambda sample: sample.name)
@pytest.mark.parametrize("layout", ["turned", "pitched"])
def test_opcheck_out(sample, layout):
    a, b, *rest = sample.args()
    like = GEMM(a, b, *rest)
    args = (a, b, laid(like.shape, layout, like.dtype), *rest)
    assert set(opcheck(GEMM_OUT, args).values()) == {"SUCCESS"}


def test_opcheck_in_place():
    a, b, c = torch.randn(5, 7).double(), torch.randn(7, 3).double(), torch.randn(5, 3).double()
    expected = 0.5 * a @ b + 2 * c
    GEMM_OUT(a, b, c, 0.5, 2.0, c)
    torch.testing.assert_close(c, expected)


# --- shapes, types and strides without data -------------------------------------------------------------------------------------


def description(tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.storage_offset(), tensor.requires_grad


@st.composite
def calls(draw):
    """Operands with any layout, batches that broadcast, addends, and what decides the result's type."""
    m, n, k = (draw(st.sampled_from([0, 1, 2, 3, 8])) for _ in range(3))
    batch = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    cut = [draw(st.integers(0, len(batch))) for _ in range(4)]
    ones = [draw(st.booleans()) for _ in range(4)]
    batches = [
        [1 if one and i == 0 else size for i, size in enumerate(batch[start:])] for start, one in zip(cut, ones, strict=True)
    ]
    dtype, out_dtypes, addends = draw(
        st.sampled_from(
            [
                (torch.float32, [None, torch.float16], [torch.float32]),
                (torch.float16, [None, torch.float32], [torch.float16, torch.float32]),
                (torch.float64, [None], [torch.float64]),
                (torch.int8, [None, torch.int8], [torch.int8]),
                (torch.complex64, [None, torch.complex64], [torch.complex64]),
            ]
        )
    )
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    layout = st.sampled_from(LAYOUTS)
    a = laid((*batches[0], *((k, m) if trans_a else (m, k))), draw(layout), dtype)
    b = laid((*batches[1], *((n, k) if trans_b else (k, n))), draw(layout), dtype)
    result = (*torch.broadcast_shapes(batches[0], batches[1]), m, n)
    addend = draw(st.sampled_from(addends))
    shapes = st.sampled_from([None, result, (n,), (m, 1), (1, n)])
    c, bias = (None if shape is None else laid(shape, draw(layout), addend) for shape in (draw(shapes), draw(shapes)))
    beta = None if c is None else draw(st.sampled_from([None, 0, 2]))
    return a, b, draw(st.sampled_from([0, 1, 3])), beta, c, bias, trans_a, trans_b, None, draw(st.sampled_from(out_dtypes))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(calls())
def test_a_fake_result_is_described_as_the_real_one(call):
    real = GEMM(*call)
    assert real.is_contiguous()
    with FakeTensorMode() as mode:
        fake = GEMM(*[mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in call])
    assert description(fake) == description(real)
    meta = GEMM(*[x.to("meta") if isinstance(x, torch.Tensor) else x for x in call])
    assert (meta.shape, meta.stride(), meta.dtype) == (real.shape, real.stride(), real.dtype)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(calls())
def test_and_so_it_is_where_sizes_are_symbols(call):
    real = GEMM(*call)
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment) as mode:

        def symbolic(x):
            if not isinstance(x, torch.Tensor):
                return x
            context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * x.dim())
            return mode.from_tensor(x, symbolic_context=context)

        fake = GEMM(*map(symbolic, call))
    assert tuple(map(int, fake.shape)) == tuple(real.shape)
    assert tuple(map(int, fake.stride())) == real.stride()
    assert fake.dtype == real.dtype


def test_a_size_that_depends_on_data_is_not_asked_for():
    """An unbacked symbol: what must be equal is told to torch, and M, N stay symbols."""
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment):
        m, k, n = (environment.create_unbacked_symint() for _ in range(3))
        for size in (m, k, n):
            torch._check(size >= 2)
        result = minblas.gemm(torch.empty(m, k), torch.empty(k, n), 1.0, 2.0, torch.empty(m, n), bias=torch.empty(n))
        assert str(result.shape[0]) == str(m)
        assert str(result.shape[1]) == str(n)
        out = torch.empty(m, n)
        assert minblas.gemm(torch.empty(m, k), torch.empty(k, n), out=out) is out


# --- schema and registration ---------------------------------------------------------------------------------------------------


def test_the_schema_has_gemms_arguments():
    names = [argument.name for argument in GEMM._schema.arguments]
    assert [name for name in names if not name.endswith("_tensor")] == sorted(
        (name for name in inspect.signature(minblas.gemm).parameters if name != "out"), key=names.index
    )
    assert not any(argument.kwarg_only for argument in GEMM._schema.arguments)
    assert [argument.name for argument in GEMM_OUT._schema.arguments] == [*names[:2], "out", *names[2:]]
    assert [a.name for a in GEMM_OUT._schema.arguments if a.alias_info is not None and a.alias_info.is_write] == ["out"]
    for overload in (GEMM, GEMM_OUT):
        assert torch.Tag.pt2_compliant_tag in overload.tags


def test_every_argument_reaches_gemm():
    """Each is given where leaving it out would change the answer."""
    a, b, c = laid((5, 32), dtype=torch.float32), laid((32, 3), dtype=torch.float32), laid((5, 3), dtype=torch.float32)
    bias, tile = laid((3,), dtype=torch.float32), minblas.TileConfig(16, 16, 16, group_m=1, num_warps=2, num_stages=2)
    keywords = {"activation": "silu", "out_dtype": torch.float16, "precision": "ieee", "deterministic": True, "variant": "tiled"}
    with minblas.options(interpret_cap=2**24):
        expected = minblas.gemm(
            a.mT.contiguous(), b.mT.contiguous(), 2.0, 3.0, c, trans_a=True, trans_b=True, bias=bias, tile=tile, **keywords
        )
        values = (2.0, 3.0, c, bias, True, True, "silu", torch.float16, "ieee", True, None, "tiled", tile.describe())
        given = GEMM(a.mT.contiguous(), b.mT.contiguous(), *values)
        out = torch.empty(5, 3, dtype=torch.float16)
        GEMM_OUT(a.mT.contiguous(), b.mT.contiguous(), out, *values)
        scaled = GEMM(a, b, 7, 7, c, None, alpha_tensor=torch.tensor(2.0), beta_tensor=torch.tensor(3))
    assert torch.equal(given, expected)
    assert torch.equal(out, expected)
    torch.testing.assert_close(scaled, 2 * a @ b + 3 * c)
    with pytest.raises(minblas.errors.VariantError, match="tiled cannot serve"):
        GEMM(a.double(), b.double(), variant="tiled")
    with pytest.raises(ValueError, match="not of the form"):
        GEMM(a, b, tile="large")
    with pytest.raises(minblas.errors.UnknownVariantError), FakeTensorMode(allow_non_fake_inputs=True):
        GEMM(a, b, variant="tild")


def test_what_registers_the_ops():
    """The first use of gemm, or of a function with torch's name; importing minblas alone imports no torch."""
    code = (
        "import torch, minblas\nassert not hasattr(torch.ops.minblas, 'gemm')\nminblas.linear\ntorch.ops.minblas.gemm_out.default"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_the_version_of_what_is_written_is_counted():
    """Autograd notices that a tensor it saved was overwritten."""
    x = torch.randn(5, 7, requires_grad=True)
    y = x * x
    with torch.no_grad():
        GEMM_OUT(torch.randn(5, 4), torch.randn(4, 7), x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(5, 3, 7, ()), (5, 3, 7, (2, 3)), (4, 6, 2, (1,))])
def test_flops(m, n, k, batch):
    from torch.utils.flop_counter import FlopCounterMode

    def counted(function):
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    a, b = torch.randn(*batch, m, k, requires_grad=True), torch.randn(k, n, requires_grad=True)
    expected = 2 * m * n * k * math.prod(batch)
    assert counted(lambda: minblas.gemm(a, b)) == expected
    assert counted(lambda: minblas.gemm(a.mT, b.mT, trans_a=True, trans_b=True)) == expected
    assert counted(lambda: minblas.gemm(a.detach(), b.detach(), out=torch.empty(*batch, m, n))) == expected
    assert counted(lambda: minblas.linear(a, b.mT).sum().backward()) == 3 * expected
    assert counted(lambda: torch.nn.functional.linear(a, b.mT).sum().backward()) == 3 * expected
