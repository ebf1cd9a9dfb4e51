"""PyTorch's own samples for its matrix products, given to ours: contiguous and not, with its broadcasts and scalars."""

import math

import pytest
import torch

import minblas
from tests.minblas.opinfo_support import op_infos

OURS = {
    "mm": minblas.mm,
    "addmm": minblas.addmm,
    "bmm": minblas.bmm,
    "baddbmm": minblas.baddbmm,
    "matmul": minblas.matmul,
    "nn.functional.linear": minblas.linear,
}
OPS = op_infos(OURS)
ZOO_TYPES = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*ZOO_TYPES, torch.float64)


def samples(name, dtype, contiguous):
    for sample in OPS[name].sample_inputs("cpu", dtype, requires_grad=False):
        yield sample if contiguous else sample.noncontiguous()


def mapped(sample, function):
    """The sample's positional and keyword arguments with a function applied to tensors, and abs to alpha and beta where asked."""
    args = [function(x) if isinstance(x, torch.Tensor) else x for x in (sample.input, *sample.args)]
    return args, {name: function(x) if isinstance(x, torch.Tensor) else x for name, x in sample.kwargs.items()}


def bound(op, sample, depth, given, exact):
    """As kernel_zoo.reference bounds an error; magnitudes come from torch's own operation on absolute values."""
    args, keywords = mapped(sample, lambda x: x.double().abs())
    magnitude = op(*args, **{name: abs(x) if isinstance(x, int | float) else x for name, x in keywords.items()})
    unit = (torch.finfo(torch.float64) if given.dtype == torch.float64 else torch.finfo(torch.float32)).eps / 2
    info = torch.finfo(given.dtype)
    steps = 2 * math.sqrt(depth + 6)  # six roundings at most in the epilogue
    return 2 * (given.double() - exact).abs() + info.eps * exact.abs().clamp(min=info.tiny) + steps * unit * magnitude


def depth(name, sample):
    """K."""
    first = sample.args[0] if name in ("addmm", "baddbmm") else sample.input
    return first.shape[-1]


def test_the_operations_are_all_there():
    assert set(OPS) == set(OURS)


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OURS)
def test_torchs_samples(name, dtype, contiguous):
    op = OPS[name].op
    minblas.stats(reset=True)
    products = 0
    for sample in samples(name, dtype, contiguous):
        args, keywords = mapped(sample, lambda x: x)
        ours = OURS[name](*args, **keywords)
        theirs = op(*args, **keywords)
        wide_args, wide_keywords = mapped(sample, torch.Tensor.double)
        exact = op(*wide_args, **wide_keywords)
        assert ours.shape == theirs.shape, sample
        assert ours.dtype == theirs.dtype
        error = (ours.double() - exact).abs()
        allowed = bound(op, sample, depth(name, sample), theirs, exact)
        assert bool((error <= allowed).all()), f"{sample}: worst error {float((error / allowed).max()):.3g} of the bound"
        products += ours.numel() > 0
    calls = minblas.stats().calls
    assert products > 0
    served = {name: count for name, count in calls.items() if name != "empty"}  # nothing to compute
    assert sum(served.values()) == products
    assert ("aten" in served) == (dtype not in ZOO_TYPES), minblas.stats()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.complex64], ids=str)
@pytest.mark.parametrize("name", OURS)
def test_torchs_samples_of_other_types(name, dtype):
    """Served by aten; integers wrap in their own type, as torch's do, but a fraction is refused where torch would truncate it."""
    for sample in samples(name, dtype, contiguous=False):
        args, keywords = mapped(sample, lambda x: x)
        fraction = any(isinstance(x, float) and not x.is_integer() for x in keywords.values())
        if fraction and not dtype.is_complex:
            with pytest.raises(minblas.errors.ArgumentError, match="a whole number"):
                OURS[name](*args, **keywords)
            continue
        ours, theirs = OURS[name](*args, **keywords), OPS[name].op(*args, **keywords)
        assert ours.dtype == theirs.dtype
        if dtype.is_complex:
            torch.testing.assert_close(ours, theirs)
        else:
            assert torch.equal(ours, theirs)
