"""repack: operands that TMA cannot read, copied and multiplied."""

import re
from dataclasses import replace

import pytest
import torch

from kernel_zoo import build, interpret
from kernel_zoo.kernels import _repack, repack, tma
from kernel_zoo.kernels.repack import VARIANT
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import Descriptor, Epilogue, GemmProblem, Operand, TileConfig, View
from tests.kernel_zoo.cases import DEPTHS, H200, PARAMETERS, Case, covering, operand

PLAIN = Epilogue()
SMALL = TileConfig(16, 16, 16, num_stages=2)
RESIDENT = (("flatten", 1), ("persistent", 1), ("subtile", 2))
TILES = (
    SMALL,
    replace(SMALL, block_n=32, knobs=RESIDENT),
    replace(SMALL, block_m=32, knobs=(("subtile", 1),)),
    replace(SMALL, block_m=32, block_k=32, group_m=1, knobs=(("swap", 1),)),
)
#: A matrix may come from a slice, a transpose, every second element of a larger one, or an expanded row.
LAYOUTS = ("n", "t", "s")


def problem_of(a, b, batch=1, out=None, epilogue=PLAIN):
    out = out or operand(a.dtype, a.rows, b.cols, batch)
    return GemmProblem(batch, a.rows, b.cols, a.cols, a, b, out, epilogue)


def check(problem, tile=SMALL, alpha=1.0, beta=0.0, seed=1, fill="normal"):
    refusal = VARIANT.refusal(problem, H200, tile)
    assert refusal is None, refusal.sentence
    verdict = Case(VARIANT, problem, tile, H200, alpha, beta, fill).run(seed)
    assert verdict.ok, f"{verdict.message}\n{problem}"


def expanded(dtype, rows, cols, strides):
    return Operand(dtype, rows, cols, (0, *strides))


def test_the_pairs_of_test_kernels_cover_what_there_is_to_copy():
    cases = covering(VARIANT).cases
    copied = {tuple(repack.needs_copy(x, case.problem.operands[x], case.arch) for x in "AB") for case in cases}
    assert copied == {(True, False), (False, True), (True, True)}
    assert {case.problem.layout for case in cases} == {a + b for a in LAYOUTS for b in LAYOUTS}
    assert len(DEPTHS) - 1 <= len({case.problem.k for case in cases})


@pytest.mark.parametrize("size", [*range(1, 19), *range(31, 35), *range(62, 68), 70])
def test_lines_of_every_length(size):
    """An odd leading dimension, so that consecutive lines start at every place within 16 bytes."""
    other, dtype = 71 - size, ("fp16", "bf16")[size % 2]
    a = operand(dtype, other, size, pad="odd", align="item", layout="nt"[size % 2])
    b = operand(dtype, size, 7, pad="odd", align="item", layout="tn"[size // 2 % 2])
    check(problem_of(a, b), seed=size)


@pytest.mark.parametrize(("dtype", "m", "n", "k"), [("bf16", 5, 300, 17), ("fp16", 70, 9, 513)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "sn", "ns", "ss"])
def test_several_blocks_either_way(dtype, m, n, k, layout):
    a = operand(dtype, m, k, layout=layout[0], pad="odd", align="item")
    b = operand(dtype, k, n, layout=layout[1], pad="odd", align="item")
    check(problem_of(a, b), replace(SMALL, block_n=64, block_k=64))


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("leading", [24, 25, 26, 28])
def test_every_start_within_16_bytes(offset, leading):
    """The address is known to be aligned to one element only; where it really lies is found at run time."""
    a = Operand("fp16", 9, 21, (0, leading, 1), 2)
    problem = problem_of(a, operand("fp16", 21, 16))
    slots = make_slots(problem, seed=3)
    moved = torch.full((leading * 9 + 32,), float("nan"), dtype=torch.float16)
    start = (-(moved.data_ptr() // 2) % 8) + offset
    source = moved[start:]
    assert source.data_ptr() % 16 == 2 * offset
    matrix(source, a, 1).copy_(matrix(slots["A"], a, 1))
    plain = {**slots, "A": source}
    interpret.run(VARIANT.plan(problem, SMALL, H200), plain, {"ALPHA": 1.0, "BETA": 0.0})
    verdict = verify(problem, plain)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("dtype", ["bf16"])
@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (0, 0), (2, 0), (0, 3), (2, 5), (100, 3)])
def test_expanded_and_strided_operands(dtype, strides):
    check(problem_of(expanded(dtype, 18, 33, strides), operand(dtype, 33, 17, pad="odd")), TILES[1])
    check(problem_of(operand(dtype, 17, 18), expanded(dtype, 18, 33, strides)), TILES[3])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 33), (40, 1, 33), (1, 1, 33), (33, 40, 1), (1, 1, 1)])
def test_vectors_are_copied_as_one_line(m, n, k):
    a, b = (Operand.of("bf16", rows, cols, (0, 2 * cols + 1, 2) if cols > 1 else (0, 3, 1), 2) for rows, cols in ((m, k), (k, n)))
    check(problem_of(a, b))
    for copy in (_repack.packed(a, "cols"), _repack.packed(b, "rows")):
        if min(copy.rows, copy.cols) == 1:
            assert _repack.packed_bytes(copy, 1) <= 256


@pytest.mark.parametrize("shared", ["", "a", "b", "ab"])
def test_batches_and_matrices_that_serve_a_whole_batch(shared):
    a = operand("bf16", 20, 37, 3, pad="odd", align="item", shared="a" in shared)
    b = operand("bf16", 37, 21, 3, layout="t", pad="odd", shared="b" in shared)
    problem = problem_of(a, b, 3)
    check(problem)
    copies = (1 if "a" in shared else 3, 1 if "b" in shared else 3)
    assert VARIANT.plan(problem, SMALL, H200).workspace_bytes >= 2 * 64 * (20 * copies[0] + 21 * copies[1])
    assert VARIANT.plan(problem, SMALL, H200).calls[0].grid == (copies[0] + copies[1],)


def test_a_batch_whose_matrices_start_at_odd_places_is_copied():
    a = Operand("bf16", 16, 32, (16 * 32 + 1, 32, 1))
    check(problem_of(a, operand("bf16", 32, 16, 3), 3))


@pytest.mark.parametrize("activation", PARAMETERS["activation"])
@pytest.mark.parametrize("bias", ["none", "n", "m", "mn"])
def test_the_whole_epilogue(activation, bias):
    strides = {"n": (0, 0, 1), "m": (0, 1, 0), "mn": (0, 23, 1)}
    added = None if bias == "none" else Operand("fp32", 19, 21, strides[bias])
    c = operand("bf16", 19, 21, pad="odd", align="item")
    a, b = operand("bf16", 19, 45, pad="odd"), operand("bf16", 45, 21, pad="odd", align="item")
    check(problem_of(a, b, out=operand("fp32", 19, 21), epilogue=Epilogue("x", "x", c, added, activation)), TILES[1], 1.2, 2.0)


def test_nan_and_infinity_pass_through_the_copy():
    check(problem_of(operand("fp16", 19, 45), operand("fp16", 45, 21), out=operand("fp32", 19, 21)), fill="special")


def test_what_the_copy_leaves_unwritten_is_not_read(monkeypatch):
    """The workspace starts as NaN, and NaN is what an edge of a line would bring into every result."""
    seen = []
    original = interpret._launch
    monkeypatch.setattr(interpret, "_launch", lambda *given: (seen.append(given[0].kernel.fn.__name__), original(*given))[1])
    for k in (1, 33, 64, 65, 127):
        check(problem_of(operand("fp16", 17, k, pad="odd"), operand("fp16", k, 19, pad="odd")))
    assert seen[:2] == ["repack_kernel", "tma_kernel"]


def test_an_operand_that_tma_can_read_stays_where_it_lies():
    problem = problem_of(operand("bf16", 17, 45), operand("bf16", 45, 24, pad="aligned"))
    copy, product = VARIANT.plan(problem, SMALL, H200).calls
    assert [arg.view.slot for arg in product.args if isinstance(arg, Descriptor)][:2] == ["WS", "B"]
    assert [arg.slot for arg in copy.args if isinstance(arg, View)] == ["A", "WS"]


def test_copies_are_aligned_and_apart():
    problem = problem_of(operand("bf16", 17, 45, layout="t"), operand("bf16", 45, 21, layout="t", pad="odd"))
    recipe = VARIANT.plan(problem, SMALL, H200)
    a, b = (arg.view for arg in recipe.calls[1].args[:2])
    assert (a.operand.layout, b.operand.layout) == ("t", "t")
    assert (a.offset, b.offset % 256) == (0, 0)
    assert b.offset >= 45 * a.operand.leading * 2
    assert recipe.workspace_bytes - b.offset >= 21 * b.operand.leading * 2
    assert all(view.operand.leading % 64 == 0 and view.operand.line_align == 16 for view in (a, b))


def test_bits_are_those_of_tma_on_aligned_copies():
    a, b = operand("bf16", 33, 45, pad="odd", align="item"), operand("bf16", 45, 21)
    problem = problem_of(a, b)
    slots = make_slots(problem, seed=2)
    aligned = problem_of(operand("bf16", 33, 45, pad="aligned"), operand("bf16", 45, 21, pad="aligned"), out=problem.out)
    others = make_slots(aligned, seed=2)
    for name in "AB":
        matrix(others[name], aligned.operands[name], 1).copy_(matrix(slots[name], problem.operands[name], 1))
    scalars = {"ALPHA": 1.0, "BETA": 0.0}
    interpret.run(VARIANT.plan(problem, SMALL, H200), slots, scalars)
    interpret.run(tma.VARIANT.plan(aligned, SMALL, H200), others, scalars)
    assert torch.equal(matrix(slots["OUT"], problem.out, 1), matrix(others["OUT"], problem.out, 1))
    assert VARIANT.reduction(problem, SMALL) == tma.VARIANT.reduction(aligned, SMALL)


AMPERE = replace(H200, name="a100", capability=(8, 0))
ODD = operand("bf16", 64, 63)


@pytest.mark.parametrize(
    ("problem", "arch", "message"),
    [
        (GemmProblem.of(64, 64, 64), H200, "nothing to repack; needs an operand it cannot read \\(use tma\\)"),
        (GemmProblem.of(64, 63, 63, "fp32", precision="tf32"), H200, "inputs are fp32; needs fp16 or bf16"),
        (GemmProblem.of(64, 63, 63), AMPERE, "a100 has compute capability 8.0; needs 9.0 or newer"),
        (GemmProblem.of(64, 63, 63, "int8"), H200, "inputs are int8"),
        (replace(GemmProblem.of(64, 63, 63), k=0), H200, "nothing is multiplied"),
        (GemmProblem.of(3, 3, 2**31 + 1), H200, r"a is 3 x 2147483649; needs dimensions under 2\^31"),
    ],
)
def test_what_it_cannot_serve_is_refused_in_words(problem, arch, message):
    refusal = VARIANT.refusal(problem, arch)
    assert refusal is not None
    assert re.search(message, refusal.sentence)


def test_splits_are_refused_by_the_tile():
    assert "split_k is 2" in VARIANT.refusal(GemmProblem.of(64, 63, 63), H200, replace(SMALL, split_k=2)).sentence


@pytest.mark.parametrize(("m", "n", "k"), [(2047, 2045, 2049), (4095, 4096, 4097), (700, 701, 703), (2048, 2048, 2047)])
def test_the_space_is_small_and_mostly_legal(m, n, k):
    problem = GemmProblem.of(m, n, k)
    tiles = VARIANT.space(problem, H200)
    assert len(set(tiles)) == len(tiles) <= 8
    legal = [tile for tile in tiles if VARIANT.refusal(problem, H200, tile) is None]
    assert len(legal) >= 5
    assert any((tile.block_m, tile.block_n) == (128, 256) for tile in legal)


@pytest.mark.parametrize(("m", "n"), [(16, 1001), (1001, 16), (3, 4097)])
def test_a_narrow_side_has_narrow_tiles(m, n):
    tiles = VARIANT.space(GemmProblem.of(m, n, 1001), H200)
    assert {(tile.block_n, bool(tile.knob("swap"))) for tile in tiles} == {(16, m < n)}


def copies(problem):
    return build.specialise(VARIANT.plan(problem, VARIANT.space(problem, H200)[5], H200).calls[0])


def test_one_binary_copies_every_size_and_stride():
    specs = {copies(GemmProblem.of(m, n, k)) for m, n, k in ((4095, 4093, 4097), (701, 2047, 1001), (999, 1022, 2045))}
    assert len(specs) == 1
    offset = problem_of(Operand("bf16", 999, 1022, (0, 1024, 1), 4), Operand("bf16", 1022, 2045, (0, 2046, 1), 8))
    assert copies(offset) in specs


@pytest.mark.parametrize("layout", ["nn", "tn", "sn", "ss"])
def test_the_copy_compiles_to_wide_accesses(layout):
    problem = problem_of(
        operand("bf16", 1001, 1003, layout=layout[0], pad="odd"), operand("bf16", 1003, 1005, layout=layout[1], pad="odd")
    )
    compiled = build.compile_binary(copies(problem), 90)
    found = build.resources(compiled)
    assert found.spills == 0
    assert found.registers <= 48
    code = build.disassemble(compiled.asm["cubin"])
    assert bool(re.search(r"LDG\.E\.EF\.64", code)) == ("n" in layout)
    assert bool(re.search(r"LDG\.E\.EF\.U16", code)) == ("s" in layout)
    assert bool(re.search(r"STG\.E\.128", code)) == ("s" in layout)
    assert not re.search(r"STG\.E\.U16", code)


def test_a_large_tile_that_stores_through_pointers_does_not_spill():
    problem = GemmProblem.of(4095, 4093, 4097)
    large = [tile for tile in VARIANT.space(problem, H200) if (tile.block_m, tile.block_n) == (128, 256)]
    assert [VARIANT.refusal(problem, H200, tile) for tile in large] == [None, None]
    for tile in large:
        call = VARIANT.plan(problem, tile, H200).calls[1]
        assert build.resources(build.compile_binary(build.specialise(call), 90)).spills == 0


@pytest.mark.parametrize(
    "change",
    [
        {"epilogue": Epilogue(activation="silu")},
        {"epilogue": Epilogue(bias=Operand("bf16", 4095, 4093, (0, 0, 1)))},
        {"epilogue": Epilogue(beta="x", c=Operand.dense("bf16", 4095, 4093))},
        {"out": Operand.dense("fp32", 4095, 4093)},
    ],
)
def test_it_is_refused_where_it_would(change):
    problem = replace(GemmProblem.of(4095, 4093, 4097), **change)
    for tile in VARIANT.space(problem, H200):
        refusal = VARIANT.refusal(problem, H200, tile)
        assert ((tile.block_m, tile.block_n) == (128, 256)) == (refusal is not None and refusal.rule == "registers")
