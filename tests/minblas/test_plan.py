"""Plans handed to the caller, and the keys under which the cache keeps them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import minblas
from minblas import errors
from minblas.cache import CACHE
from tests.minblas.oracle import close, dirty


@pytest.fixture(autouse=True)
def _clean():
    CACHE.clear()
    yield
    CACHE.clear()


def a_and_b():
    return torch.randn(8, 24), torch.randn(24, 16)


def test_a_plan_computes_again_and_again():
    a, b = a_and_b()
    plan = minblas.plan(a, b, 1.5, bias=torch.zeros(16), activation="relu")
    for scale in (1.0, 2.0):
        x, y, bias, out = scale * a, b + scale, torch.randn(16), torch.empty(8, 16)
        assert plan(x, y, bias=bias, out=out) is out
        close(out, x, y, 1.5, bias=bias, activation="relu")
        close(plan(x, y, bias=bias, alpha=2.5), x, y, 2.5, bias=bias, activation="relu")
    assert "8 x 16 x 24" in repr(plan)
    assert plan.variant in repr(plan)


def test_trans_and_empty_plans():
    a, b = a_and_b()
    close(minblas.plan(a.mT.contiguous(), b, trans_a=True)(a.mT.contiguous(), b), a, b)
    assert minblas.plan(a[:0], b)(a[:0], b).shape == (0, 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, b: {"a": a[:7]}, ["a has shape (7, 24)", "(8, 24)"]),
        (lambda a, b: {"b": b.mT.contiguous().mT}, ["b has strides (1, 24)", "(16, 1)"]),
        (lambda a, b: {"a": a.half()}, ["a has dtype torch.float16"]),
        (lambda a, b: {"a": dirty(8, 24, offset=1)}, ["a has an address", "4 bytes", "16"]),
        (lambda a, b: {"c": torch.ones(8, 16)}, ["c is given"]),
        (lambda a, b: {"c": 2.0}, ["c is given", "alpha and beta go by name"]),
        (lambda a, b: {"bias": torch.ones(16)}, ["bias is given"]),
        (lambda a, b: {"out": torch.ones(8, 17)[:, :16]}, ["out has strides (17, 1)"]),
        (lambda a, b: {"alpha": 2.0}, ["alpha is 2.0", "1.0"]),
    ],
)
def test_a_mismatch_names_what_changed(change, words):
    a, b = a_and_b()
    plan = minblas.plan(a, b)
    with pytest.raises(errors.PlanMismatch) as caught:
        plan(**{"a": a, "b": b, **change(a, b)})
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(errors.PlanMismatch, match="bias was left out"):
        minblas.plan(a, b, bias=torch.ones(16))(a, b)


def test_a_plan_made_for_an_out_of_its_own_strides_needs_one():
    a, b = a_and_b()
    dense, column_major = minblas.plan(a, b, out=torch.empty(8, 16)), minblas.plan(a, b, out=torch.empty(16, 8).mT)
    close(dense(a, b), a, b)
    close(column_major(a, b, out=torch.empty(16, 8).mT), a, b)
    with pytest.raises(errors.PlanMismatch, match="out was left out"):
        column_major(a, b)
    with pytest.raises(errors.PlanMismatch, match="strides"):
        column_major(a, b, out=torch.empty(8, 16))


def test_better_alignment_is_no_mismatch():
    b = torch.randn(24, 16)
    plan = minblas.plan(dirty(8, 24, offset=1), b)
    for offset in (1, 2, 4):
        a = dirty(8, 24, offset=offset)
        close(plan(a, b), a, b)


def test_a_plan_has_no_gradient():
    a, b = a_and_b()
    with pytest.raises(errors.GradientError, match=r"minblas.gemm"):
        minblas.plan(a.requires_grad_(), b)
    with torch.no_grad():
        plan = minblas.plan(a, b)
    with pytest.raises(errors.GradientError):
        plan(a, b)


def test_overlap_is_checked_at_every_call():
    square = torch.randn(8, 8)
    plan = minblas.plan(square, torch.randn(8, 8), out=torch.empty(8, 8))
    with pytest.raises(errors.OverlapError):
        plan(square, torch.randn(8, 8), out=square)


def test_plans_hold_no_tensor():
    a, b = a_and_b()
    bias, out = torch.randn(16), torch.empty(8, 16)
    plan = minblas.plan(a, b, bias=bias, out=out)
    plan(a, b, bias=bias, out=out)
    minblas.gemm(a, b, bias=bias, out=out)
    watched = [weakref.ref(tensor) for tensor in (a, b, bias, out)]
    del a, b, bias, out
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4
    assert plan.problem is not None


def plans_after(*calls):
    CACHE.clear()
    for call in calls:
        call()
    return len(CACHE)


def test_the_key_holds_everything_a_binary_assumes():
    a, b, c = torch.randn(8, 16), torch.randn(16, 16), torch.randn(8, 16)
    base = {"variant": "aten"}

    def gemm(*arguments, **keywords):
        return lambda: minblas.gemm(*arguments, **{**base, **keywords})

    one = gemm(a, b)
    assert plans_after(one, one, gemm(a.clone(), b.clone())) == 1
    different = [
        gemm(a[:7], b),
        gemm(a.mT.contiguous().mT, b),
        gemm(dirty(8, 16, offset=1), b),
        gemm(a, dirty(16, 16, offset=1)),
        gemm(a.half(), b.half()),
        gemm(a, b, 0.0), gemm(a, b, 2.0),
        gemm(a, b, 1.0, 1.0, c), gemm(a, b, 1.0, 0.0, c), gemm(a, b, 1.0, 0.5, c), gemm(a, b, 1.0, 1.0, c[:1]),
        gemm(a, b, bias=c[0]), gemm(a, b, bias=dirty(1, 16, offset=1)[0]),
        gemm(a, b, out=torch.empty(8, 16)), gemm(a, b, out=dirty(8, 16, offset=1)), gemm(a, b, out=torch.empty(16, 8).mT),
        gemm(a, b, trans_b=True), gemm(a, b, activation="relu"), gemm(a, b, out_dtype="bf16"), gemm(a, b, precision="tf32"),
        gemm(a, b, deterministic=True), gemm(a, b, variant=None), gemm(a, b, variant="tiled"),
        gemm(a, b, variant="tiled", tile=minblas.TileConfig(64, 64, 32, num_stages=2)),
    ]  # fmt: skip
    assert plans_after(one, *different, one, *different) == 1 + len(different)
    assert plans_after(gemm(a, b, 2.0), gemm(a, b, -3.5)) == 1


def test_torchs_settings_are_part_of_the_key():
    a, b = a_and_b()

    def call():
        return minblas.gemm(a, b, variant="aten")

    assert plans_after(call) == 1
    torch.use_deterministic_algorithms(True)
    try:
        call()
    finally:
        torch.use_deterministic_algorithms(False)
    with minblas.options(exclude="tma"):
        call()
    with minblas.options(exclude={"tma"}):
        call()
    call()
    assert len(CACHE) == 3


def precision_of_the_next_call() -> str:
    a, b = a_and_b()
    minblas.gemm(a, b)
    return minblas.explain(a, b).problem.precision


def test_fp32_precision_follows_torch_at_every_call_under_both_interfaces():
    seen = []
    try:
        for setting in ("highest", "high", "highest", "medium", "highest"):
            torch.set_float32_matmul_precision(setting)
            seen.append(precision_of_the_next_call())
        torch.backends.mkldnn.matmul.fp32_precision = "tf32"  # from here on, reading the older interface raises
        seen.append(precision_of_the_next_call())
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        seen.append(precision_of_the_next_call())
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
    assert seen == ["ieee", "tf32", "ieee", "tf32", "ieee", "tf32", "ieee"]


def test_a_gpus_setting_is_its_own():
    from minblas.device import precision_setting

    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert precision_setting("cuda") == "tf32"
        assert precision_setting("cpu") == "ieee"
        assert minblas.explain(512, 512, 512, dtype="fp32").problem.precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert precision_setting("cuda") == "ieee"
