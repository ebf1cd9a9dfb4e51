"""torch's rules inside accelerate(): its errors, out=, types, settings and gradients are what they are outside."""

from __future__ import annotations

import math

import pytest
import torch

import minblas
from minblas import accelerate_product
from tests.minblas.accelerating import make_up, outcome, same, served, t
from tests.minblas.oracle import close, dirty

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def cpu():
    return minblas.accelerate(devices="cpu")


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
