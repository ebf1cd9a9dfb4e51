"""split_k_fused in the interpreter: right in every layout and epilogue, the same bits whoever comes last, counters left zero."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from kernel_zoo import catalog, interpret
from kernel_zoo.build import compile_binary, resources, specialise
from kernel_zoo.kernels.split_k_fused import VARIANT, space, splits_for
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig, cdiv
from tests.kernel_zoo.cases import H200, Case, bias_operand, operand

SPLIT_K = catalog.get("split_k")
SMALL = TileConfig(16, 16, 16, split_k=3, num_stages=2)
SWAPPED = replace(SMALL, group_m=1, knobs=(("swap", 1),))
PLAIN = Epilogue()


def padded(m, n, k, layout, dtype="bf16", out_layout="n", out_dtype=None, epilogue=PLAIN, batch=1, shared=False):
    """A problem whose lines start 16-byte aligned whatever the sizes, so that descriptors can be laid over A and B."""
    a = operand(dtype, m, k, batch, layout=layout[0], pad="aligned")
    b = operand(dtype, k, n, batch, layout=layout[1], pad="aligned", shared=shared)
    out = operand(out_dtype or dtype, m, n, batch, layout=out_layout, pad="odd")
    return GemmProblem(batch, m, n, k, a, b, out, epilogue)


def result(problem, tile, variant=VARIANT, seed=1):
    """What a launch leaves in OUT, after it was judged."""
    slots = make_slots(problem, seed=seed)
    interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.0, "BETA": 0.0})
    verdict = verify(problem, slots)
    assert verdict.ok, verdict.message
    return matrix(slots["OUT"], problem.out, problem.batch).clone()


def shuffle_programs(monkeypatch, seed):
    """Let the interpreter visit a grid's programs in a random order; returns the orders it came to."""
    from triton.runtime import interpreter

    builder, visited = interpreter.interpreter_builder, []
    original = builder.set_grid_idx

    def visit(x, y, z):
        programs = list(range(builder.grid_dim[0]))
        random.Random(seed).shuffle(programs)
        visited.append(programs[x])
        original(programs[x], y, z)

    monkeypatch.setattr(builder, "set_grid_idx", visit)
    return visited


@pytest.mark.parametrize(
    ("layout", "out_layout", "tile"),
    [
        ("nn", "n", SMALL),
        ("nt", "s", SMALL),
        ("tn", "t", SMALL),
        ("tt", "n", SMALL),
        ("nn", "t", SWAPPED),
        ("nt", "n", SWAPPED),
        ("tn", "n", SWAPPED),
        ("tt", "s", SWAPPED),
    ],
)
def test_every_layout_with_tails_on_every_side(layout, out_layout, tile):
    case = Case(VARIANT, padded(19, 37, 71, layout, out_layout=out_layout), tile, H200)
    verdict = case.run(seed=2)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"


@pytest.mark.parametrize(
    ("tile", "bias", "activation", "out_dtype", "dtype"),
    [
        (SMALL, "n", "gelu", "fp32", "bf16"),
        (SWAPPED, "n", "silu", "fp16", "bf16"),
        (SMALL, "m", "relu", "bf16", "fp16"),
        (SWAPPED, "m", "gelu", "fp32", "bf16"),
        (SMALL, "mn", "silu", "fp16", "bf16"),
        (SWAPPED, "none", "leaky_relu", "bf16", "bf16"),
        (SWAPPED, "1", "gelu_tanh", "fp16", "fp16"),
    ],
)
def test_the_whole_epilogue_is_applied_once(bias, activation, out_dtype, dtype, tile):
    m, n = 19, 37
    c = operand("fp32", m, n, layout="t", pad="odd")
    epilogue = Epilogue("x", "x", c, bias_operand(bias, dtype, m, n, 1), activation)
    case = Case(VARIANT, padded(m, n, 66, "nt", dtype, "n", out_dtype, epilogue), tile, H200, 1.2, 2.0)
    verdict = case.run(seed=3)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"


@pytest.mark.parametrize("fill", ["integers", "special"])
def test_infinities_and_nans_come_through(fill):
    case = Case(VARIANT, padded(19, 37, 71, "nn"), SMALL, H200, fill=fill)
    verdict = case.run(seed=4)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize(("k", "split"), [(32, 2), (71, 2), (71, 4), (71, 5), (16 * 17 - 3, 16), (16 * 11, 10)])
def test_split_counts_need_not_divide_the_k_blocks(k, split):
    problem, tile = padded(17, 18, k, "nt"), replace(SMALL, split_k=split)
    assert torch.equal(result(problem, tile), result(problem, replace(tile, knobs=(("tma", 1),)), SPLIT_K))


@pytest.mark.parametrize(("tile", "shared"), [(SMALL, False), (SWAPPED, True)], ids=["straight", "swap"])
def test_a_batch_has_its_own_tiles(tile, shared):
    result(padded(18, 35, 50, "nt", batch=3, shared=shared), tile)


@pytest.mark.parametrize(("layout", "swap"), [("nn", True), ("nt", False), ("tn", False), ("tt", True)])
def test_its_bits_are_those_of_split_k(layout, swap):
    """The two share names of reductions, and equal names promise equal bits."""
    problem = padded(21, 33, 150, layout, out_dtype="fp32")
    tile = SWAPPED if swap else SMALL
    other = replace(tile, knobs=(*tile.knobs, ("tma", 1)))
    assert VARIANT.reduction(problem, tile) == SPLIT_K.reduction(problem, other)
    assert torch.equal(result(problem, tile), result(problem, other, SPLIT_K))


@pytest.mark.parametrize(("with_c", "rows"), [(False, 32), (True, 16)])
def test_tiles_summed_in_several_pieces_are_whole(with_c, rows):
    """A tile larger than what a program sums at a time; rows beside the result lie in the last piece. C takes room in registers."""
    tile = TileConfig(64, 128, 32, split_k=2, num_stages=2)
    epilogue = Epilogue("1", "1", operand("fp32", 50, 100, pad="odd")) if with_c else PLAIN
    problem = padded(50, 100, 64, "nt", epilogue=epilogue)
    (call,) = VARIANT.plan(problem, tile, H200).calls
    assert call.constants["ROWS"] == rows
    verdict = Case(VARIANT, problem, tile, H200, beta=float(with_c)).run(seed=5)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("seed", range(2))
def test_the_bits_do_not_depend_on_who_comes_last(monkeypatch, seed):
    problem, tile = padded(19, 37, 150, "nt", out_dtype="fp32"), replace(SMALL, split_k=5)
    expected = result(problem, tile)
    visited = shuffle_programs(monkeypatch, seed)
    assert torch.equal(result(problem, tile), expected)
    assert visited != sorted(visited)
    assert sorted(visited) == list(range(len(visited)))


def test_a_second_launch_starts_from_the_counters_that_the_first_left(monkeypatch):
    """The interpreter refuses counters that are not zero in the end; here two launches in a row share them, and a workspace."""
    problem = padded(19, 37, 71, "nt")
    recipe = VARIANT.plan(problem, SMALL, H200)
    twice = replace(recipe, calls=recipe.calls * 2)
    shuffle_programs(monkeypatch, 5)
    slots = make_slots(problem, seed=1)
    interpret.run(twice, slots, {"ALPHA": 1.0, "BETA": 0.0})
    assert verify(problem, slots).ok
    assert torch.equal(matrix(slots["OUT"], problem.out, 1), result(problem, SMALL))


def test_a_recipe_asks_for_a_counter_a_tile_and_whole_partial_tiles():
    problem = GemmProblem.of(33, 70, 4096, "bf16", "nt", batch=3)
    tile = TileConfig(64, 32, 128, split_k=4)
    recipe = VARIANT.plan(problem, tile, H200)
    (call,) = recipe.calls
    assert recipe.counters == 1 * 3 * 3
    assert call.grid == (recipe.counters * 4,)
    assert recipe.workspace_bytes == recipe.counters * 4 * 64 * 32 * 4


def test_sizes_and_split_counts_share_a_binary():
    tile = TileConfig(64, 16, 128, group_m=1, split_k=4, num_stages=6, knobs=(("swap", 1),))
    shapes = [(16, 4096, 4096, 4), (16, 2112, 7168, 2), (8, 576, 14336, 3), (1, 4096, 1024, 8)]
    binaries = set()
    for m, n, k, split in shapes:
        (call,) = VARIANT.plan(GemmProblem.of(m, n, k, "bf16", "nt"), replace(tile, split_k=split), H200).calls
        binaries.add(specialise(call))
    # The last starts while the launch before it ends.
    assert [sum(spec.dependent is early for spec in binaries) for early in (False, True)] == [1, 1]


def test_partials_are_released_before_they_are_counted_and_copied_after(monkeypatch, tmp_path):
    """What the interpreter cannot see: the order of stores, barrier, count and copies in the binary, and what it needs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = TileConfig(64, 64, 128, split_k=4, num_stages=4)
    (call,) = VARIANT.plan(GemmProblem.of(256, 256, 16384, "bf16", "nt"), tile, H200).calls
    binary = compile_binary(specialise(call), H200.cc)
    steps = re.findall(r"st\.global\.v4|bar\.sync|atom\.global\.gpu\.acq_rel|cp\.async\.cg|ld\.global", binary.asm["ptx"])
    count = steps.index("atom.global.gpu.acq_rel")
    partials = steps.index("st.global.v4")
    copies = steps.index("cp.async.cg")
    assert partials < count < copies
    assert steps[count - 1] == "bar.sync" == steps[count + 1]
    assert steps.count("atom.global.gpu.acq_rel") == 1
    assert "ld.global" not in steps, "partials are read through L1"
    needs = resources(binary)
    assert needs.spills == 0
    assert {"wgmma", "tma"} <= set(needs.instructions)


def refusal(problem, tile=None, arch=H200):
    found = VARIANT.refusal(problem, arch, tile)
    assert found is not None
    return found


def test_what_it_refuses_and_why():
    plain = GemmProblem.of(16, 512, 4096, "bf16", "nt")
    tile = TileConfig(64, 32, 128, split_k=4)
    assert VARIANT.refusal(plain, H200, tile) is None
    assert refusal(plain, arch=replace(H200, capability=(8, 0))).rule == "capability"
    assert refusal(GemmProblem.of(16, 512, 4096, "fp32", "nt")).sentence == "inputs are fp32; needs fp16 or bf16"
    assert refusal(replace(plain, k=0)).rule == "empty"
    assert refusal(GemmProblem.of(16, 512, 4097, "bf16", "nt")).rule == "alignment"
    assert refusal(replace(plain, a=Operand.of("bf16", 16, 4096, (0, 8192, 2)))).rule == "strides"
    assert refusal(replace(plain, out=Operand.dense("int32", 16, 512))).rule == "dtype"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"split_k": 1}, "tile"),
        ({"split_k": 17}, "tile"),
        ({"block_m": 48}, "tile"),
        ({"block_k": 512}, "tile"),
        ({"block_m": 256, "block_n": 128}, "registers"),
        ({"num_stages": 12}, "shared memory"),
    ],
)
def test_tiles_it_refuses(changes, rule):
    tile = replace(TileConfig(64, 32, 128, split_k=4), **changes)
    assert refusal(GemmProblem.of(16, 512, 8192, "bf16", "nt"), tile).rule == rule


def test_a_split_never_lacks_a_k_block():
    tile = TileConfig(64, 32, 128, split_k=4)
    assert refusal(GemmProblem.of(16, 512, 384, "bf16", "nt"), tile).sentence == "split_k is 4 for 3 k blocks; needs 2 to 3"


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(16, 2112, 7168), (4096, 16, 4096), (64, 576, 7168), (32, 32, 8192), (256, 256, 16384), (512, 512, 8192), (197, 768, 3072)],
)
def test_a_space_is_small_legal_and_fills_the_device(m, n, k):
    problem = GemmProblem.of(m, n, k, "bf16", "nt")
    tiles = space(problem, H200)
    assert 4 <= len(tiles) <= 40
    assert len(set(tiles)) == len(tiles)
    for tile in tiles:
        assert VARIANT.refusal(problem, H200, tile) is None, tile.describe()
        assert bool(tile.knob("swap")) == (min(m, n) <= 64 and m < n)
        assert tile.split_k * tile.block_m * tile.block_n * 4 <= 256 << 10, "the last arriver would sum for too long"
    programs = Counter(VARIANT.plan(problem, tile, H200).calls[0].grid[0] for tile in tiles)
    assert max(programs) <= 3 * H200.sm_count


def test_wide_results_are_not_split():
    assert space(GemmProblem.of(4096, 4096, 4096, "bf16", "nt"), H200) == ()
    assert space(GemmProblem.of(16, 4096, 128, "bf16", "nt"), H200) == ()


@pytest.mark.parametrize(("tiles_total", "k_blocks", "most"), [(1, 64, 16), (33, 56, 16), (64, 32, 4), (132, 128, 16), (9, 4, 16)])
def test_split_counts_fill_the_device_or_come_close(tiles_total, k_blocks, most):
    found = splits_for(tiles_total, k_blocks, most, H200.sm_count)
    assert found
    assert found == tuple(sorted(set(found)))
    assert all(split <= most and cdiv(k_blocks, split) >= 2 and split * tiles_total <= 3 * H200.sm_count for split in found)
    assert len(found) <= 3 or all(split * tiles_total >= H200.sm_count // 4 for split in found)
