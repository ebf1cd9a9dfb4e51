"""torch's rules inside accelerate(): its errors, out=, types, modes and transforms are what they are outside."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import minblas
from minblas import accelerate_product
from tests.minblas.accelerating import make_up, outcome, served
from tests.minblas.oracle import close, dirty

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def cpu():
    return minblas.accelerate(devices="cpu")


@functools.cache
def numbers(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape))).mul(4) if shape else torch.tensor(1.5)


def t(*shape, dtype=torch.float32):
    """The same numbers for the same sizes, every time."""
    return numbers(shape).detach().clone().to(dtype)


def same(inside, outside):
    """Equal words for equal outcomes; products may round differently."""
    if not isinstance(outside[0], torch.Tensor):
        assert inside == outside
        return
    assert inside[1:] == outside[1:]  # warnings
    ours, theirs = inside[0], outside[0]
    assert make_up(ours) == make_up(theirs)
    if ours.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    if ours.dtype.is_floating_point or ours.dtype.is_complex:
        eps = torch.finfo(ours.dtype).eps
        # 16 * K roundings of products of at most about 16 * 16.
        torch.testing.assert_close(ours, theirs, rtol=8 * eps, atol=16 * 256 * eps, equal_nan=True)
    else:
        assert torch.equal(ours, theirs)


# Every case is made anew for each side: some write into their operands.
REFUSED = {
    "inner sizes": lambda: torch.mm(t(3, 4), t(5, 6)),
    "a vector": lambda: torch.mm(t(3), t(3, 6)),
    "a batch": lambda: torch.mm(t(2, 3, 4), t(2, 4, 6)),
    "batches that torch does not broadcast": lambda: torch.bmm(t(1, 3, 4), t(2, 4, 6)),
    "a batch of one kind": lambda: torch.bmm(t(3, 4), t(4, 6)),
    "types that mix": lambda: torch.mm(t(3, 4), t(4, 5, dtype=torch.float64)),
    "halves that mix": lambda: torch.mm(t(3, 4, dtype=torch.float16), t(4, 5, dtype=torch.bfloat16)),
    "an addend of another type": lambda: torch.addmm(t(5), t(3, 4, dtype=torch.bfloat16), t(4, 5, dtype=torch.bfloat16)),
    "an addend that does not fit": lambda: torch.addmm(t(4), t(3, 4), t(4, 5)),
    "an addend of too many dimensions": lambda: torch.addmm(t(1, 3, 5), t(3, 4), t(4, 5)),
    "an addend of a batch that does not fit": lambda: torch.baddbmm(t(3, 3, 5), t(2, 3, 4), t(2, 4, 5)),
    "an addend in place that would be broadcast": lambda: t(5).addmm_(t(3, 4), t(4, 5)),
    "one row in place": lambda: t(1, 5).addmm_(t(3, 4), t(4, 5)),
    "a batch in place": lambda: t(3, 5).baddbmm_(t(2, 3, 4), t(2, 4, 5)),
    "a vector in place": lambda: t(1).addmv_(t(3, 4), t(4)),
    "sizes of a vector": lambda: torch.mv(t(3, 4), t(5)),
    "an addend of a vector": lambda: torch.addmv(t(4), t(3, 4), t(4)),
    "out of another type": lambda: torch.mm(t(3, 4), t(4, 5), out=torch.empty(3, 5, dtype=torch.float64)),
    "out on another device": lambda: torch.mm(t(3, 4), t(4, 5), out=torch.empty(3, 5, device="meta")),
    "out that wants a gradient": lambda: torch.mm(t(3, 4), t(4, 5), out=torch.empty(3, 5, requires_grad=True)),
    "an input that wants a gradient beside out": lambda: torch.mm(t(3, 4).requires_grad_(), t(4, 5), out=torch.empty(3, 5)),
    "a leaf in place": lambda: torch.empty(3, 5, requires_grad=True).addmm_(t(3, 4), t(4, 5)),
    "out with elements that share memory": lambda: torch.mm(t(3, 4), t(4, 5), out=torch.empty(1, 5).expand(3, 5)),
    "a fraction for integers": lambda: torch.addmm(t(5).int(), t(3, 4).int(), t(4, 5).int(), alpha=0.5),
    "a complex number for reals": lambda: torch.addmm(t(5), t(3, 4), t(4, 5), alpha=1j),
    "no product of truth values": lambda: torch.mm(t(3, 4) > 0, t(4, 5) > 0),
    "a result of another type, without a kernel": lambda: torch.mm(t(3, 4).half(), t(4, 5).half(), out_dtype=torch.float32),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_torchs(case):
    outside = outcome(REFUSED[case])
    with cpu():
        inside = outcome(REFUSED[case])
    same(inside, outside)
    assert served() == 0
    assert isinstance(outside[0], type) or case in ("a fraction for integers", "no product of truth values")


def strided(rows, cols, row, col, dtype=torch.float32):
    return torch.full((rows * row + cols * col,), math.nan, dtype=dtype).as_strided((rows, cols), (row, col))


#: (call, is it ours)
CALLS = {
    "integers": (lambda: torch.mm(t(3, 4).to(torch.int64), t(4, 5).to(torch.int64)), False),
    "bytes wrap": (lambda: torch.mm(t(3, 4).mul(30).to(torch.int8), t(4, 5).mul(30).to(torch.int8)), False),
    "float64": (lambda: torch.addmm(t(5).double(), t(3, 4).double(), t(4, 5).double(), beta=1 / 3), False),
    "complex": (lambda: torch.mm(t(3, 4) + 1j, (t(5, 4) - 1j).mH), False),
    "a conjugate view": (lambda: torch.mm((t(3, 4) + 1j * t(3, 4)).conj(), t(4, 5) + 1j), False),
    "a negative view": (lambda: torch.mm((t(3, 4) + 1j * t(3, 4)).conj().imag, t(4, 5)), True),
    "no rows": (lambda: torch.mm(t(0, 4), t(4, 5)), False),
    "no columns": (lambda: torch.mm(t(3, 4), t(4, 0)), False),
    "nothing to sum": (lambda: torch.mm(t(3, 0), t(0, 5)), False),
    "nothing to sum, and an addend": (lambda: torch.addmm(t(5), t(3, 0), t(0, 5), beta=2), False),
    "nothing to sum, into out": (lambda: torch.mm(t(3, 0), t(0, 5), out=torch.full((3, 5), 7.0)), False),
    "an empty batch": (lambda: torch.bmm(t(0, 3, 4), t(0, 4, 5)), False),
    "no batch sum": (lambda: torch.baddbmm(t(2, 3, 5), t(2, 3, 0), t(2, 0, 5)), False),
    "alpha 0": (lambda: torch.addmm(t(5), t(3, 4), t(4, 5), alpha=0), False),
    "beta 0 and NaN": (lambda: torch.addmm(torch.full((5,), math.nan), t(3, 4), t(4, 5), beta=0), True),
    "beta 0 and Inf, batched": (lambda: torch.baddbmm(torch.full((2, 3, 5), math.inf), t(2, 3, 4), t(2, 4, 5), beta=0), True),
    "beta 0 in place": (lambda: torch.full((3, 5), math.nan).addmm_(t(3, 4), t(4, 5), beta=0), True),
    "NaN and Inf": (lambda: torch.mm(torch.tensor([[math.inf, 1.0], [math.nan, 0.0]]), torch.ones(2, 3)), True),
    "scalars": (lambda: torch.addmm(t(3, 5), t(3, 4), t(4, 5), beta=-0.5, alpha=2), True),
    "truth values as scalars": (lambda: torch.addmm(t(3, 5), t(3, 4), t(4, 5), beta=True, alpha=True), False),
    "a scalar addend": (lambda: torch.addmm(t(), t(3, 4), t(4, 5)), True),
    "an addend of one element": (lambda: torch.addmm(t(1), t(3, 4), t(4, 5)), True),
    "a row": (lambda: torch.addmm(t(1, 5), t(3, 4), t(4, 5)), True),
    "a column": (lambda: torch.addmm(t(3, 1), t(3, 4), t(4, 5)), True),
    "a broadcast addend of a batch": (lambda: torch.baddbmm(t(3, 1), t(2, 3, 4), t(2, 4, 5), beta=2), True),
    "one element": (lambda: torch.mm(t(1, 1), t(1, 1)), True),
    "one row": (lambda: torch.mm(t(1, 4), t(4, 5)), True),
    "one column": (lambda: torch.mm(t(3, 4), t(4, 1)), True),
    "transposes": (lambda: torch.mm(t(4, 3).T, t(5, 4).T), True),
    "a gapped row": (lambda: torch.mm(dirty(3, 4, pitch=9, offset=1), dirty(4, 5, pitch=7, transposed=True)).mul(0), True),
    "expanded operands": (lambda: torch.bmm(t(1, 3, 4).expand(2, 3, 4), t(4, 1).expand(2, 4, 5)), True),
    "out": (lambda: torch.mm(t(3, 4), t(4, 5), out=torch.full((3, 5), math.nan)), True),
    "out by columns": (lambda: torch.mm(t(3, 4), t(4, 5), out=strided(3, 5, 1, 3)), True),
    "out with gaps": (lambda: torch.addmm(t(5), t(3, 4), t(4, 5), out=strided(3, 5, 8, 1)), True),
    "out of a batch": (lambda: torch.bmm(t(2, 3, 4), t(2, 4, 5), out=torch.empty(2, 3, 5)), True),
    "out of a batch and an addend": (lambda: torch.baddbmm(t(5), t(2, 3, 4), t(2, 4, 5), out=torch.empty(2, 3, 5)), True),
    "out of a vector": (lambda: torch.mv(t(3, 4), t(4), out=torch.empty(3)), True),
    "empty out is resized": (lambda: torch.mm(t(3, 4), t(4, 5), out=torch.empty(0)), False),
    "out of another shape is resized, with a warning": (lambda: torch.mm(t(3, 4), t(4, 5), out=torch.empty(7)), False),
    "out of a vector is resized": (lambda: torch.mv(t(3, 4), t(4), out=torch.empty(0)), False),
    "a vector": (lambda: torch.mv(t(3, 4), t(4)), True),
    "a strided vector": (lambda: torch.mv(t(3, 4), t(4, 2)[:, 1]), True),
    "a vector and an addend": (lambda: torch.addmv(t(3), t(3, 4), t(4), beta=0.5, alpha=2), True),
    "a vector and a number": (lambda: torch.addmv(t(), t(3, 4), t(4)), True),
    "a vector in place": (lambda: t(3).addmv_(t(3, 4), t(4)), True),
    "in place": (lambda: t(3, 5).addmm_(t(3, 4), t(4, 5), beta=0.5), True),
    "in place, by columns": (lambda: t(5, 3).T.addmm_(t(3, 4), t(4, 5)), True),
    "in place, batched": (lambda: t(2, 3, 5).baddbmm_(t(2, 3, 4), t(2, 4, 5), alpha=2), True),
    "half": (lambda: torch.mm(t(3, 4).half(), t(4, 5).half()), True),
    "bfloat16": (lambda: torch.addmm(t(5).bfloat16(), t(3, 4).bfloat16(), t(4, 5).bfloat16()), True),
    "a sparse matrix": (lambda: torch.mm(t(3, 4).to_sparse(), t(4, 5)), False),
    "a matrix of compressed rows": (lambda: torch.mm(t(3, 4).to_sparse_csr(), t(4, 5)), False),
    "a parameter": (lambda: torch.mm(torch.nn.Parameter(t(3, 4)), t(4, 5)).detach(), True),
    "a tensor without data": (lambda: torch.mm(torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")), False),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("case", CALLS)
def test_results_are_torchs(case):
    call, ours = CALLS[case]
    outcome(call)  # some warnings are given once
    outside = outcome(call)
    minblas.stats(reset=True)
    with cpu():
        inside = outcome(call)
        assert (served() > 0) == ours, minblas.stats()
    assert isinstance(outside[0], torch.Tensor), outside
    if outside[0].is_meta:
        assert make_up(inside[0]) == make_up(outside[0])
    else:
        same(inside, outside)


def test_out_is_the_object_given_and_its_version_moves():
    out = torch.empty(3, 5)
    versions = [out._version]
    with cpu():
        assert torch.mm(t(3, 4), t(4, 5), out=out) is out
        versions.append(out._version)
        assert out.addmm_(t(3, 4), t(4, 5)) is out
        versions.append(out._version)
    assert versions[0] < versions[1] < versions[2]
    assert served() == 2


def test_what_was_saved_for_the_backward_pass_and_written_since_is_found():
    x = t(3, 5).requires_grad_()
    saved = t(3, 5)
    loss = (x * saved).sum()
    with cpu():
        torch.mm(t(3, 4), t(4, 5), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_that_is_an_input():
    """torch's own answer, whatever it is: minblas would refuse."""

    def call():
        a = t(4, 4)
        return torch.mm(a, a.T.clone(), out=a)

    outside = outcome(call)
    with cpu():
        same(outcome(call), outside)
    assert minblas.stats().left_to_torch == {"mm.out": {"out= shares memory with an input or with itself": 1}}


def test_out_that_overlaps_by_chance_is_found_every_time():
    """Addresses are in no key: the same plan meets operands apart, and then not."""
    buffer = torch.zeros(64)
    a, b = buffer[:16].view(4, 4), t(4, 4)
    apart, within = buffer[32:48].view(4, 4), buffer[8:24].view(4, 4)
    with cpu():
        for out in (apart, within, apart):
            a.copy_(t(4, 4))
            expected = t(4, 4) @ b
            torch.mm(a, b, out=out)
            if out is apart:
                torch.testing.assert_close(out, expected)
    assert minblas.stats().accelerated["mm.out"] == {"tiled": 2}
    assert minblas.stats().left_to_torch == {"mm.out": {"out= shares memory with an input or with itself": 1}}


def test_out_of_addmm_may_be_its_input():
    c = t(3, 5)
    with cpu():
        out = torch.addmm(c, t(3, 4), t(4, 5), beta=0.5, out=c)
    close(out, t(3, 4), t(4, 5), 1.0, 0.5, t(3, 5))
    assert minblas.stats().accelerated == {"addmm.out": {"tiled": 1}}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_overloads_with_a_type_of_their_own(dtype):
    """torch has these on a GPU only; a kernel of the test's stands in for torch's."""
    left = []

    def stand_in(keyset, *args, **keywords):
        left.append(args)
        return torch.zeros(())

    names = [f"{name}.{suffix}" for name in ("mm", "addmm", "bmm", "baddbmm") for suffix in ("dtype", "dtype_out")]
    library = torch.library.Library("aten", "IMPL")
    for name in names:
        library.impl(name, stand_in, "CPU", with_keyset=True)
    a, b, wide = t(2, 3, 4, dtype=dtype), t(2, 4, 5, dtype=dtype), torch.float32
    try:
        with cpu():
            results = [
                (torch.mm(a[0], b[0], out_dtype=wide), a[0], b[0], None),
                (torch.bmm(a, b, out_dtype=wide), a, b, None),
                (torch.addmm(t(5), a[0], b[0], out_dtype=wide), a[0], b[0], t(5)),
                (torch.addmm(t(5, dtype=dtype), a[0], b[0], out_dtype=wide, beta=2), a[0], b[0], 2 * t(5, dtype=dtype).float()),
                (torch.baddbmm(t(3, 5), a, b, out_dtype=wide), a, b, t(3, 5)),
                (torch.mm(a[0], b[0], out_dtype=wide, out=torch.empty(3, 5)), a[0], b[0], None),
                (torch.bmm(a, b, out_dtype=wide, out=torch.empty(2, 3, 5)), a, b, None),
                (torch.addmm(t(5), a[0], b[0], out_dtype=wide, out=torch.empty(3, 5)), a[0], b[0], t(5)),
                (torch.baddbmm(t(5), a, b, out_dtype=wide, out=torch.empty(2, 3, 5)), a, b, t(5)),
            ]
            assert not left
            torch.mm(a[0], b[0], out_dtype=torch.float64)
            torch.mm(a[0].float(), b[0].float(), out_dtype=dtype)
            torch.addmm(t(5).double(), a[0], b[0], out_dtype=wide)
            torch.mm(a[0].float(), b[0].float(), out_dtype=wide)
    finally:
        library._destroy()
    assert [args[-1] for args in left] == [torch.float64, dtype, wide]
    for result, left_operand, right, c in results:
        assert result.dtype is wide
        close(result, left_operand, right, 1.0, 0.0 if c is None else 1.0, c)
    assert set(minblas.stats().accelerated) == set(names)


def test_integers_to_a_type_of_its_own_stay_torchs():
    with cpu():
        assert torch.mm(t(3, 4).to(torch.int8), t(4, 5).to(torch.int8)).dtype is torch.int8
    assert served() == 0


# settings


@pytest.fixture
def plans(monkeypatch):
    """The plans that are made from here on."""
    made = []
    make_plan = accelerate_product.make_plan

    def noting(call):
        made.append(make_plan(call))
        return made[-1]

    monkeypatch.setattr(accelerate_product, "make_plan", noting)
    return made


def test_autocast_casts_as_ever():
    x, w, bias = t(3, 4), t(5, 4), t(5)
    with cpu(), torch.autocast("cpu", torch.bfloat16):
        assert torch.mm(x, w.T).dtype is torch.bfloat16
        result = torch.nn.functional.linear(x, w, bias)
        assert torch.nn.functional.linear(x.requires_grad_(), w, bias).requires_grad
        out = torch.mm(x.detach(), w.T, out=torch.empty(3, 5))
    assert (result.dtype, out.dtype) == (torch.bfloat16, torch.float32)
    close(result, x.bfloat16(), w.T.bfloat16(), bias=bias.bfloat16())
    counted = {op: sum(found.values()) for op, found in minblas.stats().accelerated.items()}
    assert counted == {"mm": 1, "addmm": 2, "mm.out": 1}


def test_the_fp32_setting_is_read_at_every_call(plans):
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        with cpu():
            for setting in ("ieee", "tf32", "ieee"):
                torch.backends.mkldnn.matmul.fp32_precision = setting
                torch.mm(t(8, 16), t(16, 8))
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert [plan.problem.precision for plan in plans] == ["ieee", "tf32"]  # the third is warm
    assert served() == 3


def test_deterministic_algorithms_are_part_of_the_key(plans):
    with cpu():
        for setting in (False, True, False, True):
            torch.use_deterministic_algorithms(setting)
            torch.mm(t(3, 4), t(4, 5))
        torch.use_deterministic_algorithms(False)
    assert [plan.problem.deterministic for plan in plans] == [False, True]
    assert served() == 4


def test_inference_mode_and_no_grad():
    weight = t(4, 5).requires_grad_()
    with cpu():
        with torch.inference_mode():
            assert torch.mm(t(3, 4), weight).is_inference()
            out = torch.mm(t(3, 4), t(4, 5), out=torch.empty(3, 5))  # has no version counter
            close(torch.empty(3, 5).addmm_(t(3, 4), t(4, 5), beta=0), t(3, 4), t(4, 5))
        with torch.no_grad():
            result = torch.mm(t(3, 4), weight)
    close(out, t(3, 4), t(4, 5))
    assert not result.requires_grad
    assert served() == 4
    assert not minblas.stats().quarantined


# gradients


def test_gradients_of_gradients():
    x, w = t(3, 4).requires_grad_(), t(4, 5).requires_grad_()

    def second():
        (first,) = torch.autograd.grad(torch.mm(x, w).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), [x, w])

    outside = second()
    with cpu():
        inside = second()
    for ours, theirs in zip(inside, outside, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())
    assert served() >= 6
    assert minblas.stats().left_to_torch == {}


def test_a_warm_call_goes_by_a_route_whoever_wants_a_gradient(monkeypatch):
    linear, x = torch.nn.Linear(4, 5), t(3, 4)

    def step():
        linear(x).sum().backward()
        torch.mm(x.double(), t(4, 5).double())

    with cpu():
        for _ in range(3):
            step()
        before = minblas.stats()
        monkeypatch.setattr(accelerate_product, "_by_whole_key", None)
        for _ in range(2):
            step()
        after = minblas.stats()
    assert served() == 10
    assert after.warm_calls == before.warm_calls + 4
    assert after.left_to_torch == {"mm": {"no kernel of the zoo can serve this problem": 5}}


def test_a_graph_made_inside_runs_backward_outside_on_torchs_kernels_and_the_other_way_round():
    x, w = t(3, 4).requires_grad_(), t(4, 5)
    with cpu():
        loss = torch.mm(x, w).sum()
    assert served() == 1
    loss.backward()
    assert served() == 1
    close(x.grad, torch.ones(3, 5), w.T)
    x.grad = None
    loss = torch.mm(x, w).sum()
    with cpu():
        loss.backward()
    assert served() == 2
    close(x.grad, torch.ones(3, 5), w.T)


def test_checkpointing_and_hooks():
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    seen = []
    model[0].weight.register_hook(seen.append)
    x = t(3, 4)
    with cpu():
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert len(seen) == 1
    assert seen[0].shape == (5, 4)
    assert sum(minblas.stats().accelerated["addmm"].values()) >= 3  # forward, and again for what was not kept


# what stands above the kernels


class Calls(TorchDispatchMode):
    """Notes every call that torch dispatches."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes every function of torch that is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def some_work():
    x = t(3, 4).requires_grad_()
    loss = (
        torch.nn.functional.linear(x, t(5, 4), t(5)).sum() + torch.mv(t(3, 4), t(4)).sum() + torch.bmm(t(2, 3, 4), t(2, 4, 5)).sum()
    )
    loss.backward()
    return torch.mm(t(3, 4), t(4, 5), out=torch.empty(3, 5))


@pytest.mark.parametrize("mode", [Calls, Functions])
def test_a_mode_sees_the_same_calls(mode):
    with mode() as outside:
        some_work()
    with cpu(), mode() as inside:
        some_work()
    assert inside.seen == outside.seen
    assert served() == 5
    with cpu(), mode() as inside, mode() as around:  # two at once
        some_work()
    assert inside.seen[: len(outside.seen)] == outside.seen or mode is Functions
    assert len(around.seen) >= len(outside.seen)


def test_flops_are_counted_once():
    from torch.utils.flop_counter import FlopCounterMode

    with cpu(), FlopCounterMode(display=False) as counter:
        torch.mm(t(3, 4), t(4, 5))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5
    assert served() == 1


class Loud(torch.Tensor):
    """A subclass that notes what is done with it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs)


def test_a_subclass_that_listens_hears_the_same():
    def step():
        Loud.seen.clear()
        weight = t(4, 5).as_subclass(Loud).requires_grad_()
        (torch.mm(t(3, 4), weight) * 2).sum().backward()
        return list(Loud.seen), weight.grad.as_subclass(torch.Tensor)

    outside, expected = step()
    with cpu():
        inside, grad = step()
    assert inside == outside
    torch.testing.assert_close(grad, expected)
    assert served() == 2


class Renamed(torch.Tensor):
    """A subclass that only bears another name."""


class Wrapped(torch.Tensor):
    """A subclass whose products are its own business."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


def test_subclasses():
    with cpu():
        renamed = torch.mm(t(3, 4).as_subclass(Renamed), t(4, 5))
        out = torch.empty(3, 5).as_subclass(Renamed)
        assert torch.mm(t(3, 4), t(4, 5), out=out) is out
        assert served() == 2
        wrapped = torch.mm(torch.Tensor._make_subclass(Wrapped, t(3, 4)), t(4, 5))
    assert type(renamed) is Renamed
    close(renamed.as_subclass(torch.Tensor), t(3, 4), t(4, 5))
    close(out.as_subclass(torch.Tensor), t(3, 4), t(4, 5))
    close(wrapped.as_subclass(torch.Tensor), t(3, 4), t(4, 5))
    assert served() == 2
    assert minblas.stats().left_to_torch == {"mm": {"a tensor subclass with a dispatch of its own": 1}}


def test_what_has_no_address_is_torchs():
    level = torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        wrapped = torch._C._functorch._add_batch_dim(t(2, 3, 4), 0, level)
        assert accelerate_product.product("mm", wrapped, t(4, 5), None, None, 1.0, 0.0) is None
    finally:
        torch._C._functorch._vmap_decrement_nesting()
    assert minblas.stats().left_to_torch == {"mm": {"operands without memory of their own": 1}}


def test_freed_memory_is_torchs_to_refuse():
    a, b = t(4, 5), t(5, 6)
    lost = a.clone()
    lost.untyped_storage().resize_(0)
    with minblas.accelerate("cpu"):
        for _ in range(3):
            torch.mm(a, b)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="its data is not allocated yet"):
                torch.mm(lost, b)


def test_fake_tensors_go_to_torchs_shapes():
    from torch._subclasses import FakeTensorMode

    def strides():
        real = t(2, 3, 4), t(2, 4, 5), t(5), torch.empty(3, 5)
        with FakeTensorMode() as mode:
            a, b, c, out = map(mode.from_tensor, real)
            made = [torch.bmm(a, b), torch.mm(a[0], b[0]), torch.addmm(c, a[0], b[0]), torch.baddbmm(c, a, b)]
            made += [torch.mv(a[0], b[0][:, 0]), torch.mm(a[0], b[0], out=out)]
            with pytest.raises(RuntimeError):
                torch.mm(a[0], a[0])
            return [(type(x).__name__, x.shape, x.stride(), x.dtype, x.device) for x in made]

    outside = strides()
    with cpu():
        assert strides() == outside
    stats = minblas.stats()
    assert (stats.accelerated, stats.left_to_torch) == ({}, {})


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
def test_make_fx_traces_the_same_graph(tracing):
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x, w, bias):
        return torch.nn.functional.linear(x, w, bias).relu() @ w

    args = (t(3, 4), t(5, 4), t(5))
    outside = make_fx(function, tracing_mode=tracing)(*args)
    with cpu():
        inside = make_fx(function, tracing_mode=tracing)(*args)
        assert inside.code == outside.code
        assert served() == (2 if tracing == "real" else 0)
        assert inside(*args).shape == (3, 4)
    assert served() == (4 if tracing == "real" else 2)


TRANSFORMS = {
    "vmap over a batch of both": lambda: torch.vmap(torch.mm)(t(2, 3, 4), t(2, 4, 5)),
    "vmap over the left": lambda: torch.vmap(torch.mm, (0, None))(t(2, 3, 4), t(4, 5)),
    "vmap of a sum": lambda: torch.vmap(torch.addmm, (0, None, 0))(t(2, 5), t(3, 4), t(2, 4, 5)),
    "grad": lambda: torch.func.grad(lambda x: torch.mm(x, t(4, 5)).sin().sum())(t(3, 4)),
    "grad of vmap": lambda: torch.func.grad(lambda x: torch.vmap(torch.mm)(x, t(2, 4, 5)).sum())(t(2, 3, 4)),
    "vmap of grad": lambda: torch.vmap(torch.func.grad(lambda x: torch.mm(x, t(4, 5)).sum()))(t(2, 3, 4)),
    "jvp": lambda: torch.func.jvp(lambda x: torch.mm(x, t(4, 5)), (t(3, 4),), (t(3, 4),))[1],
    "jacrev": lambda: torch.func.jacrev(lambda x: torch.mm(x, t(4, 5)))(t(3, 4)),
    "hessian": lambda: torch.func.hessian(lambda x: torch.mm(x, x.T).sum())(t(2, 3)),
    "functionalize": lambda: torch.func.functionalize(lambda x: torch.mm(x, t(4, 5)).add_(1))(t(3, 4)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms(name):
    outside = TRANSFORMS[name]()
    with cpu():
        inside = TRANSFORMS[name]()
    assert served() > 0
    assert make_up(inside) == make_up(outside)
    torch.testing.assert_close(inside, outside, rtol=1e-4, atol=1e-4)


def test_what_comes_down_to_products():
    x, w = t(2, 3, 4), t(5, 4)
    calls = {
        "linear": lambda: torch.nn.functional.linear(x, w, t(5)),
        "matmul": lambda: torch.matmul(x, w.T),
        "matmul by a vector": lambda: torch.matmul(x, t(4)),
        "einsum": lambda: torch.einsum("bij,kj->bik", x, w),
        "multi_dot": lambda: torch.linalg.multi_dot([t(3, 4), t(4, 5), t(5, 2)]),
        "tensordot": lambda: torch.tensordot(x, w, dims=([2], [1])),
        "addbmm": lambda: torch.addbmm(t(3, 5), x, w.T.expand(2, 4, 5)),
        "cdist": lambda: torch.cdist(t(30, 4), t(30, 4)),
    }
    for name, call in calls.items():
        outside = call()
        minblas.stats(reset=True)
        with cpu():
            inside = call()
        assert served() > 0, name
        torch.testing.assert_close(inside, outside, rtol=1e-4, atol=2e-3 if name == "cdist" else 1e-4)


def test_attentions_math_path():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (t(1, 2, 5, 8).div(8).requires_grad_() for _ in range(3))
    with cpu(), sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert sum(minblas.stats().accelerated["bmm"].values()) == 6


def test_a_scripted_and_a_traced_module():
    linear = torch.nn.Linear(4, 5)
    for module in (torch.jit.script(linear), torch.jit.trace(linear, t(3, 4))):
        minblas.stats(reset=True)
        with cpu(), torch.no_grad():
            close(module(t(3, 4)), t(3, 4), linear.weight.T, bias=linear.bias)
            assert served() == 1


@contextlib.contextmanager
def filled():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_that_torch_fills_first_is_written_all_over():
    with filled(), cpu():
        result = torch.mm(t(19, 21), t(21, 17))
    close(result, t(19, 21), t(21, 17))
    assert served() == 1
