"""The vocabulary: normalisation, classes, offsets, orientations."""

import subprocess
import sys

import pytest

from kernel_zoo.spec import (
    INT32_MAX,
    Arch,
    Epilogue,
    GemmCall,
    GemmProblem,
    Operand,
    Recipe,
    Refusal,
    TileConfig,
    Variant,
    View,
    accumulator_dtype,
    canonical_dtype,
    cdiv,
    default_out_dtype,
    next_pow2,
    pow2_divisor,
)
from tests.kernel_zoo.cases import H200


@pytest.mark.parametrize(
    ("given", "name"),
    [("bf16", "bf16"), ("bfloat16", "bf16"), ("torch.float16", "fp16"), ("half", "fp16"), ("float8_e4m3fn", "fp8e4m3")],
)
def test_dtypes_have_one_name(given, name):
    assert canonical_dtype(given) == name


def test_torch_dtypes_and_unknown_ones():
    torch = pytest.importorskip("torch")
    assert canonical_dtype(torch.bfloat16) == "bf16"
    assert canonical_dtype(torch.float8_e5m2) == "fp8e5m2"
    with pytest.raises(ValueError, match=r"dtype 'bf17' is not known; known: fp64, fp32"):
        canonical_dtype("bf17")


def test_small_arithmetic():
    assert [cdiv(a, 4) for a in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [pow2_divisor(a, 16) for a in (0, 1, 6, 8, 48, 64)] == [16, 1, 2, 8, 16, 16]
    assert [next_pow2(a) for a in (0, 1, 2, 3, 17)] == [1, 1, 2, 4, 32]


def test_accumulators_and_default_outputs():
    assert {d: accumulator_dtype(d) for d in ("fp16", "bf16", "fp8e4m3", "fp32", "fp64", "int8", "complex64")} == {
        "fp16": "fp32",
        "bf16": "fp32",
        "fp8e4m3": "fp32",
        "fp32": "fp32",
        "fp64": "fp64",
        "int8": "int32",
        "complex64": "complex64",
    }
    assert default_out_dtype("fp8e5m2") == "bf16"
    assert default_out_dtype("int8") == "int32"
    assert default_out_dtype("fp16") == "fp16"


@pytest.mark.parametrize(
    ("rows", "cols", "given", "kept"),
    [
        (4, 6, (24, 6, 1), (6, 1)),
        (4, 6, (24, 1, 4), (1, 4)),
        (4, 6, (24, 12, 2), (12, 2)),
        (1, 6, (6, 7, 1), (16, 1)),  # the row stride of one row means nothing: the most regular one
        (1, 6, (6, 999, 1), (16, 1)),
        (1, 20, (6, 0, 1), (32, 1)),
        (4, 1, (4, 1, 5), (1, 16)),
        (4, 1, (4, 3, 5), (3, 1)),  # a column of a wider matrix: lines of one element
        (1, 4, (4, 5, 3), (1, 3)),
        (1, 1, (5, 9, 3), (16, 1)),
    ],
)
def test_strides_that_mean_nothing_are_normalised(rows, cols, given, kept):
    assert Operand.of("fp16", rows, cols, given, batch=2).strides == (given[0], *kept)
    assert Operand.of("fp16", rows, cols, given).strides == (0, *kept)


def test_equal_memory_gives_equal_operands_whatever_the_meaningless_strides():
    assert Operand.of("bf16", 1, 8, (0, 8, 1)) == Operand.of("bf16", 1, 8, (123, 77, 1))


@pytest.mark.parametrize("strides", [(0, 7, 1), (0, 1, 7), (0, 5, 3), (0, 9, 9), (0, 0, 2)])
@pytest.mark.parametrize(("rows", "cols"), [(1, 6), (6, 1), (3, 4)])
def test_normalising_does_not_depend_on_the_orientation(rows, cols, strides):
    batch, row, col = strides
    assert Operand.of("fp16", cols, rows, (batch, col, row)) == Operand.of("fp16", rows, cols, strides).T


def test_layouts_and_leading_dimensions():
    assert [Operand.of("fp16", 4, 6, s).layout for s in ((0, 6, 1), (0, 1, 4), (0, 12, 2), (0, 0, 1), (0, 0, 0))] == [
        "n",
        "t",
        "s",
        "n",
        "s",
    ]
    assert Operand.of("fp16", 4, 6, (0, 9, 1)).leading == 9
    assert Operand.of("fp16", 4, 6, (0, 1, 9)).leading == 9
    assert Operand.dense("fp16", 4, 6, transposed=True).layout == "t"


@pytest.mark.parametrize(
    ("strides", "align", "batch", "line"),
    [
        ((0, 8, 1), 16, 1, 16),
        ((0, 12, 1), 16, 1, 8),
        ((0, 9, 1), 16, 1, 2),
        ((0, 8, 1), 4, 1, 4),
        ((0, 16, 2), 16, 1, 2),
        ((36, 8, 1), 16, 2, 8),
        ((0, 8, 1), 16, 2, 16),
    ],
)
def test_lines_are_aligned_as_the_pointer_the_leading_dimension_and_the_batch_allow(strides, align, batch, line):
    assert Operand.of("fp16", 4, 8, strides, align, batch).line_align == line


def test_the_transpose_is_the_same_memory():
    given = Operand.of("fp16", 4, 6, (24, 6, 1), 8, batch=3)
    assert Operand("fp16", 6, 4, (24, 1, 6), 8) == given.T
    assert given == given.T.T
    assert given.T.line_align == given.line_align


def test_the_last_offset_follows_strides_not_sizes():
    assert Operand.of("fp16", 4, 6, (100, 10, 1), batch=3).last_offset(3) == 2 * 100 + 3 * 10 + 5
    assert Operand("fp16", 1 << 14, 1, (0, 1 << 18, 1)).last_offset(1) == ((1 << 14) - 1) << 18
    assert Operand("fp16", 4, 6, (0, 0, 0)).last_offset(9) == 0
    assert Operand("fp16", 0, 6, (0, 6, 1)).last_offset(1) == 5


def test_offsets_past_31_bits_are_noticed_in_any_operand():
    dense = GemmProblem.of(64, 64, 64)
    assert not dense.needs_int64()
    far = Operand("bf16", 64, 64, (0, INT32_MAX // 63 + 1, 1))
    near = Operand("bf16", 64, 64, (0, (INT32_MAX - 63) // 63, 1))
    for field in ("a", "b", "out"):
        values = {"a": dense.a, "b": dense.b, "out": dense.out}
        assert GemmProblem(1, 64, 64, 64, **{**values, field: far}).needs_int64()
        assert not GemmProblem(1, 64, 64, 64, **{**values, field: near}).needs_int64()
    assert GemmProblem.of(64, 64, 64, epilogue=Epilogue("1", "1", far)).needs_int64()
    assert GemmProblem.of(64, 64, 64, epilogue=Epilogue(bias=far)).needs_int64()


@pytest.mark.parametrize(
    ("shape", "batch", "name"),
    [
        ((4096, 4096, 4096), 2, "batched"),
        ((4096, 4097, 4096), 1, "ragged"),
        ((100, 104, 12), 1, "ragged"),
        ((1, 4096, 4096), 1, "gemv"),
        ((4096, 8, 4096), 1, "decode"),
        ((4096, 64, 4096), 1, "decode"),
        ((768, 768, 4096), 1, "split-K"),
        ((776, 768, 4096), 1, "prefill"),
        ((4096, 4096, 1024), 1, "large"),
        ((1024, 1024, 1024), 1, "square"),
        ((3072, 3072, 768), 1, "square"),
        ((3072, 3072, 760), 1, "prefill"),
        ((3080, 3072, 3072), 1, "prefill"),
    ],
)
def test_shape_classes(shape, batch, name):
    assert GemmProblem.of(*shape, batch=batch).shape_class == name


def test_a_row_of_one_element_does_not_make_a_gemv_ragged():
    assert GemmProblem.of(1, 4096, 4096).shape_class == "gemv"
    assert GemmProblem.of(4096, 1, 4096, layout="nt").shape_class == "gemv"


def test_a_problem_describes_itself():
    assert (
        GemmProblem.of(4, 5, 6, "fp32", "nt", batch=3, precision="tf32", out_dtype="fp16").describe()
        == "3 x 4 x 5 x 6 fp32 tf32 -> fp16 nt"
    )
    problem = GemmProblem.of(4, 5, 6, "bf16")
    assert problem.describe() == "4 x 5 x 6 bf16 nn"
    assert problem.flops == 240
    assert problem.least_bytes == 2 * (24 + 30 + 20)
    assert problem.precision == ""
    assert GemmProblem.of(4, 5, 6, "fp32").precision == "ieee"
    with pytest.raises(ValueError, match="layout 'xy' is not known"):
        GemmProblem.of(4, 5, 6, layout="xy")


def test_shared_operands_are_counted_once():
    a, b, out = Operand.dense("bf16", 4, 6), Operand.dense("bf16", 6, 5, batch=3), Operand.dense("bf16", 4, 5, batch=3)
    assert GemmProblem(3, 4, 5, 6, a, b, out).least_bytes == 2 * (24 + 3 * 30 + 3 * 20)


def test_swapping_twice_is_the_identity_and_once_transposes_every_view():
    c, bias = Operand.dense("fp32", 4, 5, batch=3), Operand("fp16", 4, 5, (0, 0, 1))
    problem = GemmProblem.of(4, 5, 6, "fp16", batch=3, epilogue=Epilogue("x", "x", c, bias, "relu"))
    call = GemmCall.of(problem, H200)
    swapped = call.swapped()
    assert swapped.swapped() == call
    assert (swapped.m, swapped.n, swapped.k) == (5, 4, 6)
    assert swapped.a == View("B", problem.b.T)
    assert swapped.b == View("A", problem.a.T)
    assert swapped.out == View("OUT", problem.out.T)
    assert swapped.c == View("C", c.T)
    assert swapped.bias.strides == (1, 0)


def test_problems_and_archs_are_keys():
    assert len({GemmProblem.of(4, 5, 6), GemmProblem.of(4, 5, 6), GemmProblem.of(4, 5, 7)}) == 2
    assert len({H200, H200}) == 1
    assert H200.cc == 90
    assert H200.has_tma
    assert not Arch("a100", (8, 0), 108, 1, 1, 1, 1, 1, 1.0, 1.0, {}).has_tma


def test_a_tile_describes_itself():
    tile = TileConfig(128, 256, 64, split_k=4, num_warps=8, knobs=(("subtile", 2),))
    assert tile.describe() == "128x256x64 g8 w8 s3 split4 subtile2"
    assert tile.knob("subtile") == 2
    assert tile.knob("swap", 7) == 7


def test_legality_asks_the_problem_first_and_then_the_tile():
    problem, tile = GemmProblem.of(4, 5, 6), TileConfig(16, 16, 16)
    no_problem, no_tile = Refusal("shape", "m is 4", "m of 8"), Refusal("tile", "block_m is 16", "32")
    picky = Variant("picky", "", lambda p, a: no_problem if p.m < 8 else None, lambda p, a: [tile], fits=lambda p, t, a: no_tile)
    assert picky.refusal(problem, H200, tile) is no_problem
    assert picky.refusal(GemmProblem.of(8, 5, 6), H200, tile) is no_tile
    assert picky.refusal(GemmProblem.of(8, 5, 6), H200) is None
    assert no_tile.sentence == "block_m is 16; needs 32"


def test_a_plan_is_always_a_recipe_and_an_opaque_variant_has_none():
    tile = TileConfig(16, 16, 16)
    single = Variant("single", "", lambda p, a: None, lambda p, a: [tile], recipe=lambda call, tile: "call")
    assert single.plan(GemmProblem.of(4, 5, 6), tile, H200) == Recipe(("call",))
    opaque = Variant("opaque", "", lambda p, a: None, lambda p, a: [], launch=print)
    with pytest.raises(TypeError, match="variant opaque is opaque"):
        opaque.plan(GemmProblem.of(4, 5, 6), tile, H200)


def test_the_vocabulary_needs_neither_torch_nor_triton():
    code = "import sys, kernel_zoo.spec, kernel_zoo.digest; assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_variant_prints_as_one_line_a_reader_can_use():
    variant = Variant("me.tutorial", "a kernel of my own", lambda *given: None, lambda *given: (), origin="user")
    assert repr(variant) == "<user variant me.tutorial: a kernel of my own>"


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "empty"), [(0, 4, 4, 1, True), (4, 0, 4, 1, True), (4, 4, 4, 0, True), (1, 1, 0, 1, False)]
)
def test_empty_is_without_a_result_whatever_k(m, n, k, batch, empty):
    assert GemmProblem.of(m, n, k, batch=batch).empty is empty
