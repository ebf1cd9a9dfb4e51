"""What is looked up by kind or form of problem is what the rules say when they are asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heuristics.archs import ARCHS
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import (
    ACTIVATIONS,
    FP32_PRECISIONS,
    ITEMSIZE,
    ByForm,
    ByKind,
    Epilogue,
    Form,
    GemmProblem,
    Kind,
    Operand,
    TileConfig,
)

DTYPES = ("bf16", "fp16", "fp32", "int8", "fp64")
SIZES = st.one_of(st.integers(1, 5), st.sampled_from((16, 64, 65, 128, 1000, 1024, 4096)), st.integers(1, 1 << 15))
FORMED = [variant for variant in VARIANTS if isinstance(variant.fits, ByForm)]


@st.composite
def features(draw):
    """Types, layouts, padding of lines and addresses: all that two problems of one kind share."""
    dtype = draw(st.sampled_from(DTYPES))
    return {
        "dtypes": (dtype, draw(st.sampled_from((dtype, dtype, "fp16"))), draw(st.sampled_from((dtype, "bf16", "fp32")))),
        "precision": draw(st.sampled_from(FP32_PRECISIONS)) if dtype == "fp32" else "",
        "layouts": draw(st.tuples(*(st.sampled_from("nnts"),) * 2)),
        "pads": draw(st.tuples(*(st.sampled_from((0, 0, 1, 2, 4)),) * 2)),
        "aligns": draw(st.tuples(*(st.sampled_from((16, 16, 8, 2)),) * 2)),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
    }


def operand(dtype, rows, cols, layout, pad, align):
    """A matrix whose lines are whole vectors long, and `pad` elements longer."""
    length = rows if layout == "t" else cols
    leading, step = 16 * (-(-length // 16)) + pad, 2 if layout == "s" else 1
    strides = (0, step, leading * step) if layout == "t" else (0, leading * step, step)
    return Operand(dtype, rows, cols, strides, align)


def problem(shared, m, n, k, reads=False):
    """One of those features; where it `reads`, its epilogue has C and a bias, else neither."""
    (of_a, of_b, of_out), (pad_a, pad_b), (align_a, align_b) = shared["dtypes"], shared["pads"], shared["aligns"]
    a = operand(of_a, m, k, shared["layouts"][0], pad_a, align_a)
    b = operand(of_b, k, n, shared["layouts"][1], pad_b, align_b)
    out = Operand.dense(of_out, m, n)
    made = GemmProblem(1, m, n, k, a, b, out, Epilogue(activation=shared["activation"]), shared["precision"])
    return replace(made, epilogue=replace(made.epilogue, beta="x", c=out, bias=Operand(of_out, m, n, (0, 0, 1)))) if reads else made


@given(features(), st.tuples(SIZES, SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES), st.sampled_from(sorted(ARCHS)), st.booleans())
@settings(max_examples=400, deadline=None)
def test_problems_of_a_kind_are_taken_by_the_same_variants(shared, sizes, others, device, reads):
    one, other = problem(shared, *sizes, reads), problem(shared, *others, reads)
    assume(Kind.of(one) is not None and Kind.of(one) == Kind.of(other))
    for variant in VARIANTS:
        assert isinstance(variant.supports, ByKind)
        verdicts = [variant.supports(asked, ARCHS[device]) is None for asked in (one, other)]
        assert verdicts[0] == verdicts[1], variant.name


def tiles_of(variant, *problems, arch):
    """What it proposes for some problems, and tiles that it might refuse."""
    proposed = [tile for asked in problems for tile in variant.space(asked, arch)]
    odd = [TileConfig(256, 256, 128, num_warps=8), TileConfig(128, 128, 64, split_k=2), TileConfig(128, 96, 64)]
    return dict.fromkeys((*proposed, *odd, *(replace(tile, knobs=(("swap", 1),)) for tile in proposed[:4])))


WIDE = st.tuples(st.integers(5, 1 << 14), st.integers(1, 1 << 11).map(lambda eighth: 8 * eighth), SIZES)


@given(features(), WIDE, WIDE, st.sampled_from(sorted(ARCHS)))
@settings(max_examples=300, deadline=None)
def test_tiles_fit_all_problems_of_a_form_or_none(shared, sizes, others, device):
    arch = ARCHS[device]
    one, other = problem(shared, *sizes), problem(shared, *others)
    assume(Form.of(one) is not None and Form.of(one) == Form.of(other))
    for variant in FORMED:
        if variant.supports(one, arch) is None:
            for tile in tiles_of(variant, one, other, arch=arch):
                assert (variant.fits(one, tile, arch) is None) == (variant.fits(other, tile, arch) is None), (variant.name, tile)


PLAIN = GemmProblem.of(256, 512, 1024)


@pytest.mark.parametrize(
    "odd",
    [
        replace(PLAIN, k=0),
        GemmProblem.of(256, 512, 1024, batch=2),
        replace(PLAIN, a=replace(PLAIN.a, strides=(0, 0, 1))),
        replace(PLAIN, b=replace(PLAIN.b, strides=(0, 512, 0))),
        replace(PLAIN, a=replace(PLAIN.a, rows=1 << 31)),
    ],
)
def test_what_is_out_of_the_ordinary_has_no_kind(odd):
    assert Kind.of(PLAIN) is not None
    assert Kind.of(odd) is None
    assert Form.of(odd) is None


@pytest.mark.parametrize(
    "odd",
    [
        replace(PLAIN, out=Operand.dense("bf16", 256, 512, transposed=True)),
        replace(PLAIN, out=replace(PLAIN.out, align=8)),
        replace(PLAIN, n=511, b=replace(PLAIN.b, cols=511), out=replace(PLAIN.out, cols=511)),
        replace(PLAIN, out=replace(PLAIN.out, strides=(0, 0, 1))),
        replace(PLAIN, out=replace(PLAIN.out, strides=(0, 1, 1))),
        replace(PLAIN, epilogue=Epilogue(bias=Operand("bf16", 256, 512, (0, 0, 1)))),
        replace(PLAIN, epilogue=Epilogue(beta="x", c=PLAIN.out)),
    ],
)
def test_what_is_not_stored_in_whole_vectors_or_reads_more_has_no_form(odd):
    assert Form.of(PLAIN) is not None
    assert Form.of(odd) is None
    assert Kind.of(odd) is not None


def test_a_kind_is_that_of_the_problem_asked_about_last():
    other = GemmProblem.of(2, 512, 1024, "fp16")
    for asked in (PLAIN, other, other, PLAIN):
        assert Kind.of(asked).a == asked.dtype
        assert Kind.of(asked).few == (asked.m == 2)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_alignment_is_kept_with_the_operand_and_is_no_part_of_it(dtype):
    asked, fresh = Operand.dense(dtype, 48, 33), Operand.dense(dtype, 48, 33)
    known = asked.line_align
    assert asked.line_align == known == fresh.line_align
    assert (asked, hash(asked), repr(asked)) == (fresh, hash(fresh), repr(fresh))
    assert replace(asked, align=1).line_align == 1
