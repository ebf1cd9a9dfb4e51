"""explain and stats: what is told before and after a call."""

from __future__ import annotations

import pytest
import torch

import minblas
from minblas import dispatch, errors


def test_sizes():
    selection = minblas.explain(4096, 4096, 4096, dtype="bf16", layout="nt", arch="h200")
    assert selection.problem.m == 4096
    assert selection.arch.name == "h200"
    assert selection.variant in {v.name for v in minblas.variants()}
    data = selection.as_dict()
    assert data["problem"]["layout"] == "nt"
    assert data["variant"] == selection.variant
    assert selection.variant in str(selection)


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", torch.bfloat16])
def test_dtypes_by_any_name(dtype):
    assert minblas.explain(64, 64, 64, dtype=dtype).problem.dtype == "bf16"


def test_what_sizes_may_say():
    problem = minblas.explain(
        64, 48, 32, dtype="tf32", batch=3, beta=2.0, alpha=0.5, bias=True, activation="relu", out_dtype="fp16"
    ).problem
    assert (problem.batch, problem.dtype, problem.precision, problem.out.dtype) == (3, "fp32", "tf32", "fp16")
    assert (problem.epilogue.alpha, problem.epilogue.beta, problem.epilogue.activation) == ("x", "x", "relu")
    assert problem.epilogue.c is not None
    assert problem.epilogue.bias is not None
    assert minblas.explain(64, 48, 32, alpha=0).problem.k == 0
    assert minblas.explain(64, 64, 64, arch="sm_80").arch.capability == (8, 0)
    assert minblas.explain(64, 64, 64, dtype="fp32", precision="high").problem.precision == "tf32"


def test_operands_and_sizes_agree():
    a, b = torch.empty(64, 32).half(), torch.empty(48, 32).half()
    by_operands = minblas.explain(a, b, trans_b=True, arch="a100")
    by_sizes = minblas.explain(64, 48, 32, dtype="fp16", layout="nt", arch="a100")
    assert by_operands.problem == by_sizes.problem
    assert (by_operands.variant, by_operands.tile) == (by_sizes.variant, by_sizes.tile)
    assert minblas.explain(a, b.mT, 0.5, 1.0, torch.empty(48).half()).problem.epilogue.beta == "1"


def test_explain_is_what_gemm_does():
    a, b = torch.randn(20, 40), torch.randn(40, 30)
    selection = minblas.explain(a, b, bias=torch.zeros(30))
    plan = minblas.plan(a, b, bias=torch.zeros(30))
    assert (plan.variant, plan.tile, plan.rung) == (selection.variant, selection.tile, selection.rung)


def test_empty_and_shapeless():
    assert minblas.explain(torch.empty(0, 4), torch.empty(4, 5)).problem.m == 0
    assert minblas.explain(torch.empty(64, 32, device="meta"), torch.empty(32, 16, device="meta")).problem.k == 32


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: minblas.explain(64, 64), errors.ArgumentError, "explain\\(m, n, k\\)"),
        (lambda: minblas.explain(64, 64, 64, dtype="bf17"), errors.DTypeError, "bf17"),
        (lambda: minblas.explain(64, 64, 64, layout="xy"), errors.ArgumentError, "nn, nt, tn or tt"),
        (lambda: minblas.explain(64, 64, 64, arch="h2000"), errors.SettingsError, "h200"),
        (lambda: minblas.explain(64, 64, 64, variant="tild"), errors.UnknownVariantError, "tiled"),
        (lambda: minblas.explain(64, 64, 64, dtype="fp64", variant="tma"), errors.VariantError, "fp64"),
        (lambda: minblas.explain(-1, 64, 64), errors.ShapeError, "-1"),
        (lambda: minblas.explain(torch.ones(3, 4), torch.ones(3, 4)), errors.ShapeError, "trans_b"),
        (lambda: minblas.explain(torch.ones(3, 4), torch.ones(4, 3), activatoin="relu"), errors.ArgumentError, "activation"),
    ],
)
def test_refusals(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_sizes_say_what_they_assume_and_tensors_assume_nothing():
    bare = minblas.explain(64, 48, 33).as_dict()["problem"]["assumed"]
    assert bare[:2] == ["dtype bf16", "layout nn"]
    assert "dense matrices at addresses that are multiples of 16 bytes" in bare[2]
    assert "multiples of 2/16/16" in bare[2]
    assert bare[-1] == "device h200, since none was named"
    said = minblas.explain(64, 48, 32, dtype="fp32", layout="nt", arch="a100", beta=1.0, bias=True).as_dict()["problem"]["assumed"]
    assert said[0].startswith("dense matrices")
    assert said[1:] == ["precision ieee (torch's setting)", "C dense and fp32", "bias one row of fp32"]
    a, b = torch.empty(64, 32), torch.empty(32, 48)
    assert minblas.explain(a, b, arch="a100").as_dict()["problem"]["assumed"] == []


def test_a_device_may_be_described():
    arch = minblas.explain(64, 64, 64, arch="l4").arch
    assert minblas.explain(64, 64, 64, arch=arch).arch is arch


def test_why_another_was_not_picked():
    assert minblas.explain(256, 256, 16384, arch="h200").why("gemv").kind == "refused"
    with minblas.options(exclude={"tma"}):
        assert minblas.explain(4096, 4096, 4096, arch="h200").why("tma").kind == "excluded"


def test_an_explanation_costs_nothing_until_it_is_asked_for():
    selection = minblas.explain(4096, 4096, 4096, layout="nt", arch="h200")
    assert not {"estimate", "footprint", "_judged", "_facts", "nearest_row"} & set(vars(selection))


def test_stats_count_warm_and_cold_calls_and_survive_forgetting():
    dispatch.forget_plans()
    minblas.stats(reset=True)
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    for _ in range(3):
        minblas.gemm(a, b, variant="aten")
    minblas.gemm(a.double(), b.double())
    counted = minblas.stats()
    assert counted.calls == {"aten": 4}
    assert (counted.cold_calls, counted.warm_calls, counted.plans) == (2, 2, 2)
    assert sum(counted.aten_reasons.values()) == 4
    assert "" not in counted.aten_reasons
    dispatch.forget_plans()
    assert minblas.stats().calls == {"aten": 4}
    assert minblas.stats().plans == 0
    assert minblas.stats().as_dict()["calls"] == {"aten": 4}
    assert "4 calls: aten 4" in str(minblas.stats(reset=True))
    assert minblas.stats().calls == {}


@pytest.mark.parametrize(
    ("kind", "words", "keywords"),
    [
        (errors.ArgumentError, "did you mean 'gelu'", {"activation": "gellu"}),
        (errors.ArgumentError, "for int8 inputs", {"dtype": "int8", "activation": "gelu"}),
        (errors.DTypeError, "out_dtype is 'bf17'", {"out_dtype": "bf17"}),
        (errors.DTypeError, "out_dtype is bf16 for int8 inputs", {"dtype": "int8", "out_dtype": "bf16"}),
        (errors.ArgumentError, "did you mean 'layout'", {"layuot": "nt"}),
        (errors.ArgumentError, "^precision is 'tf33'", {"dtype": "fp32", "precision": "tf33"}),
        (errors.ArgumentError, "^layout is 'NT'", {"layout": "NT"}),
    ],
)
def test_sizes_that_gemm_would_refuse(kind, words, keywords):
    with pytest.raises(kind, match=words):
        minblas.explain(64, 64, 64, **keywords)


def test_sizes_follow_the_options():
    with minblas.options(batch_invariant=True, deterministic=True):
        problem = minblas.explain(64, 64, 64).problem
        assert (problem.batch_invariant, problem.deterministic) == (True, True)
        assert not minblas.explain(64, 64, 64, batch_invariant=False).problem.batch_invariant
    assert not minblas.explain(64, 64, 64).problem.deterministic


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"arch": "z"}, "arch is 'z'; needed: a device the project knows; known: a100, .*, sm_90$"),
        ({"arch": "h2000"}, "arch is 'h2000'; needed: a device the project knows; did you mean 'h200'"),
        ({"dtype": "q"}, "dtype is 'q'; needed: a dtype the project knows; known: bf16, .*, tf32, "),
        ({"dtype": "tf23"}, "dtype is 'tf23'; needed: a dtype the project knows; did you mean 'tf32'"),
        ({"out_dtype": "q"}, "out_dtype is 'q'; needed: a dtype the project knows; known: (?!.*tf32)"),
        ({"layout": "xy"}, "layout is 'xy'; needed: nn, nt, tn or tt; a second letter 't'"),
    ],
    ids=str,
)
def test_what_is_not_known_is_said_once_with_what_is(asked, words):
    with pytest.raises(errors.MinblasError, match=words) as error:
        minblas.explain(64, 64, 64, **asked)
    assert "not known" not in str(error.value)
