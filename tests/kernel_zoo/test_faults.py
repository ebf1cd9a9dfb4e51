"""Kinds of fault that GEMM libraries have had, each tried on every variant of the catalog at sizes the interpreter can run.

The pairwise cases of test_kernels.py meet most of them by chance; here each is aimed at.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from kernel_zoo import catalog, interpret, reference
from kernel_zoo.kernels import _args
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import ACTIVATIONS, INT32_MAX, Epilogue, GemmProblem, KernelCall, Operand
from tests.kernel_zoo.cases import H200, INTERPRETED, TINY, Case, bias_operand, borrows, operand, small_tiles
from tests.kernel_zoo.pairwise import cover

each_variant = pytest.mark.parametrize("variant", INTERPRETED, ids=lambda variant: variant.name)
TILED = catalog.get("tiled")
PLAIN = Epilogue()


def problem_of(m, n, k, dtype="fp16", batch=1, a=None, b=None, out=None, epilogue=PLAIN, precision="", pad="aligned"):
    """A problem over padded, aligned operands, which nearly every variant can take; any operand can be given instead."""
    aligned, read = partial(operand, batch=batch, pad="aligned"), partial(operand, batch=batch, pad=pad)
    return GemmProblem(
        batch,
        m,
        n,
        k,
        a or read(dtype, m, k),
        b or read(dtype, k, n),
        out or aligned(dtype, m, n),
        epilogue,
        precision or ("ieee" if dtype == "fp32" else ""),
    )


def problem_for(variant, m, n, k, dtype="fp16", batch=1, precision="", **given):
    """The problem of `problem_of`, or the nearest to it that the variant takes: lines that start anywhere, 16-bit inputs."""
    plain = problem_of(m, n, k, dtype, batch, precision=precision, **given)
    narrower = partial(problem_of, m, n, k, "bf16", batch, **{"out": plain.out, **given})
    odd = problem_of(m, n, k, dtype, batch, precision=precision, pad="odd", **given)
    nearest = (plain, odd, narrower(), narrower(pad="odd")) if dtype == "fp32" else (plain, odd)
    return next((problem for problem in nearest if variant.refusal(problem, H200) is None), plain)


def pad_for(variant):
    """How the operands that the variant reads are padded: "odd" where it refuses aligned ones."""
    return "aligned" if variant.refusal(problem_of(3, 21, 64), H200) is None else "odd"


def tiles_for(variant, problem, arch=H200):
    """One legal small tile for each combination of knobs and split; two where they are another variant's, and tried there."""
    legal = [tile for tile in small_tiles(variant) if variant.refusal(problem, arch, tile) is None]
    tiles = list({(tile.knobs, min(tile.split_k, 2)): tile for tile in legal}.values())
    return [tiles[0], tiles[-1]] if borrows(variant) and len(tiles) > 2 else tiles


def narrow(variant):
    """M that the variant takes: gemv wants few rows."""
    return 3 if variant.refusal(problem_for(variant, 16, 16, 64), H200) is not None else 19


def right(variant, problem, alpha=1.0, beta=0.0, fill="normal", arch=H200, tiles=None, least=1):
    """Every legal small tile gives the right answer; returns how many there were."""
    tiles = tiles_for(variant, problem, arch) if tiles is None else tiles
    assert len(tiles) >= least
    for tile in tiles:
        case = Case(variant, problem, tile, arch, alpha, beta, fill)
        verdict = case.run(seed=1)
        assert verdict.ok, f"{verdict.message}\n{case.describe()}"
    return len(tiles)


# alpha, beta, empty and tiny sizes


@each_variant
def test_c_is_not_read_where_beta_is_0(variant):
    """Not in whole tiles and not in the tiles at the edge: C is no argument at all then."""
    for m, n in ((16, 32), (narrow(variant), 33)):
        m = min(m, narrow(variant))
        problem = problem_for(variant, m, n, 40)
        for tile in tiles_for(variant, problem)[:3]:
            recipe = variant.plan(problem, tile, H200)
            assert not any(getattr(arg, "slot", None) == "C" for call in recipe.calls for arg in call.args)
            slots = make_slots(problem, seed=1)
            dirty = reference.Slots({**slots, "C": torch.full((m * n,), math.nan)})
            dirty.buffer, dirty.inputs = slots.buffer, slots.inputs
            interpret.run(recipe, dirty, {"ALPHA": 1.0, "BETA": 0.0})
            assert verify(problem, dirty).ok


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", catalog.VARIANTS, ids=lambda variant: variant.name)
def test_with_nothing_to_multiply_the_epilogue_remains(variant, activation):
    """K = 0 (and alpha = 0, described the same way) gives act(beta C + bias); a variant that cannot says that it is empty."""
    full = Epilogue("x", "x", operand("fp32", 19, 21, pad="odd"), bias_operand("n", "fp16", 19, 21, 1), activation)
    for epilogue in (full, replace(full, alpha="0"), Epilogue(activation=activation)):
        problem = problem_of(19, 21, 0, epilogue=epilogue)
        refusal = variant.refusal(problem, H200)
        if refusal is not None:
            assert refusal.rule in ("empty", "shape")
            continue
        alpha, beta = (0.0 if epilogue.alpha == "0" else 1.2), (3.0 if epilogue.c else 0.0)
        for tile in [None] if variant.recipe is None else tiles_for(variant, problem)[:2]:
            verdict = Case(variant, problem, tile, H200, alpha, beta).run()
            assert verdict.ok, verdict.message


def test_somebody_takes_the_call_with_nothing_to_multiply():
    problem = problem_of(19, 21, 0)
    assert [v.name for v in INTERPRETED if v.refusal(problem, H200) is None] == ["tiled"]


@each_variant
@pytest.mark.parametrize("k", [1, 2, 7, 8, 15])
def test_k_shorter_than_a_block(variant, k):
    problem = problem_for(variant, narrow(variant), 17, k)
    tiles = tiles_for(variant, problem)
    if not tiles:
        assert all(tile.split_k > 1 for tile in small_tiles(variant))  # a split of nothing: refused, not wrong
    right(variant, problem, tiles=tiles, least=0)


@each_variant
def test_ones_and_twos(variant):
    tried = 0
    for m in (1, 2):
        for n in (1, 2):
            for k in (1, 2):
                problem = problem_for(variant, m, n, k)
                tried += right(variant, problem, tiles=tiles_for(variant, problem)[:2], least=0)
    assert tried > 0 or all(tile.split_k > 1 for tile in small_tiles(variant))


# masks, tails, dirty neighbours, epilogues


@each_variant
def test_dirty_gaps_do_not_reach_the_result(variant, monkeypatch):
    """Operands carved out of one buffer whose gaps are NaN, or 0: the bits of the result are the same."""
    m = narrow(variant)
    epilogue = Epilogue("x", "x", operand("fp16", m, 21, pad="odd"), bias_operand("mn", "fp16", m, 21, 1, "item"))
    problem = problem_for(variant, m, 21, 43, epilogue=epilogue)
    for tile in tiles_for(variant, problem):
        results = []
        for byte in (0xFF, 0x00):
            monkeypatch.setattr(reference, "GUARD_BYTE", byte)
            slots = make_slots(problem, seed=1)
            interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.2, "BETA": 2.0})
            results.append(matrix(slots["OUT"], problem.out, 1).clone())
        monkeypatch.undo()
        assert results[0].isfinite().all()
        assert torch.equal(*results)


@each_variant
@pytest.mark.parametrize("k", [31, 37, 97])
def test_prime_sizes(variant, k):
    right(
        variant,
        problem_for(variant, min(13, narrow(variant)), 29, k),
        tiles=tiles_for(variant, problem_for(variant, min(13, narrow(variant)), 29, k))[:4],
    )


@each_variant
@pytest.mark.parametrize("layout", ["n", "t"])
def test_n_much_smaller_than_a_block(variant, layout):
    m = 40 if variant.refusal(problem_for(variant, 40, 3, 64), H200) is None else 4
    problem = problem_for(variant, m, 3, 66, b=operand("fp16", 66, 3, layout=layout, pad="aligned"))
    assert right(variant, problem) > 0


@each_variant
@pytest.mark.parametrize("kind", ["n", "m", "mn", "1", "bn"])
def test_a_large_bias_is_added_exactly_once(variant, kind):
    m = narrow(variant)
    problem = problem_for(
        variant, m, 20, 130, "fp32", 2, epilogue=Epilogue(bias=bias_operand(kind, "fp32", m, 20, 2)), precision="tf32"
    )
    for tile in tiles_for(variant, problem, TINY):
        slots = make_slots(problem, seed=1)
        bias = slots["BIAS"]
        bias.copy_(torch.where(bias.isnan(), bias, 1000 * bias))  # gaps stay as they are
        slots.inputs = {}
        interpret.run(variant.plan(problem, tile, TINY), slots, {"ALPHA": 1.0, "BETA": 0.0})
        verdict = verify(problem, slots)
        assert verdict.ok, verdict.message


@each_variant
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_the_activation_is_of_the_whole_sum(variant, activation):
    """Halves of K that cancel: the activation of a partial sum would be far off."""
    m, k = narrow(variant), 128
    problem = problem_for(variant, m, 20, k, epilogue=Epilogue(activation=activation))
    for tile in tiles_for(variant, problem):
        slots = make_slots(problem, seed=1)
        b = matrix(slots["B"], problem.b, 1)
        a = matrix(slots["A"], problem.a, 1)
        a[:, :, k // 2 :] = -a[:, :, : k // 2]
        b[:, k // 2 :] = b[:, : k // 2] * 0.5
        slots.inputs = {}
        interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.0, "BETA": 0.0})
        verdict = verify(problem, slots)
        assert verdict.ok, verdict.message


@each_variant
def test_results_repeat_bit_for_bit(variant):
    problem = problem_for(variant, narrow(variant), 33, 100, "fp32", precision="tf32")
    for tile in tiles_for(variant, problem):
        results = []
        for _ in range(2):
            slots = make_slots(problem, seed=1)
            interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.0, "BETA": 0.0})
            results.append(matrix(slots["OUT"], problem.out, 1).clone())
        assert torch.equal(*results)


# layouts, strides, alignment, sharing

LAYOUTS = {
    "m": (1, 7, 8, 64),
    "n": (1, 7, 8, 64),
    "k": (1, 7, 8, 64),
    "a": ("n", "t"),
    "b": ("n", "t"),
    "a_leading": (64, 65, 72),
    "b_leading": (64, 65, 72),
    "c_leading": (64, 65, 72),
    "a_offset": (0, 1, 4, 8),
    "b_offset": (0, 1, 4, 8),
    "c_offset": (0, 1, 4, 8),
}


def laid_out(rows, cols, layout, leading, offset):
    strides = (0, 1, leading) if layout == "t" else (0, leading, 1)
    return Operand.of("fp16", rows, cols, strides, math.gcd(2 * offset, 16) if offset else 16)


def layout_problem(row):
    m, n, k = row["m"], row["n"], row["k"]
    c = laid_out(m, n, "n", row["c_leading"], row["c_offset"])
    return GemmProblem(
        1,
        m,
        n,
        k,
        laid_out(m, k, row["a"], row["a_leading"], row["a_offset"]),
        laid_out(k, n, row["b"], row["b_leading"], row["b_offset"]),
        c,
        Epilogue("1", "1", c),
    )


LAYOUT_ROWS = cover(LAYOUTS, dict, seed=2).cases


@pytest.mark.parametrize("i", range(len(LAYOUT_ROWS)))
def test_any_leading_dimension_offset_and_transpose(i):
    """Each variant takes the layout and is right, or refuses; the strided answer equals the contiguous one."""
    problem = layout_problem(LAYOUT_ROWS[i])
    served = [v for v in INTERPRETED if tiles_for(v, problem)]
    assert TILED in served
    for variant in served:
        right(variant, problem, 1.0, 1.0, tiles=tiles_for(variant, problem)[-1:])


def test_the_layout_table_reaches_every_variant():
    for variant in INTERPRETED:
        assert any(tiles_for(variant, layout_problem(row)) for row in LAYOUT_ROWS), variant.name


@each_variant
@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_a_slice_of_a_vector_is_a_fine_bias_and_a_slice_of_a_matrix_a_fine_c(variant, offset):
    align = math.gcd(2 * offset, 16)
    m = narrow(variant)
    bias, c = Operand("fp16", m, 24, (0, 0, 1), align), Operand("fp16", m, 24, (0, 24, 1), align)
    problem = problem_for(variant, m, 24, 64, epilogue=Epilogue("1", "1", c, bias))
    right(variant, problem, 1.0, 1.0, tiles=tiles_for(variant, problem)[:4])


@each_variant
@pytest.mark.parametrize(
    "expanded", ["a rows", "a cols", "a both", "b rows", "b cols", "b both", "batch", "c rows", "c cols", "c both"]
)
def test_expanded_operands(variant, expanded):
    """Strides of 0, as autograd's backward hands them over; refused or right."""
    m, n, k = min(narrow(variant), 8), 24, 40
    name, _, which = expanded.partition(" ")
    strides = {"rows": (0, 0, 1), "cols": (0, 1, 0), "both": (0, 0, 0), "": (0, 0, 0)}[which]
    sizes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    given = {name: Operand("fp16", *sizes[name], strides)} if name != "batch" else {}
    if name == "batch":
        given = {
            "a": operand("fp16", m, k, 3, pad="aligned", shared=True),
            "b": operand("fp16", k, n, 3, pad="aligned", shared=True),
        }
    epilogue = Epilogue("1", "1", given.pop("c")) if name == "c" else Epilogue()
    problem = problem_for(variant, m, n, k, batch=3, epilogue=epilogue, **given)
    tiles = tiles_for(variant, problem)
    assert tiles or variant is not TILED
    right(variant, problem, 1.0, 1.0 if epilogue.c else 0.0, tiles=tiles[:3], least=0)


@each_variant
def test_all_sizes_and_strides_distinct(variant):
    """Arguments in the wrong order cannot cancel out."""
    m, n, k = min(narrow(variant), 11), 24, 45
    odd = pad_for(variant) == "odd"
    c = Operand("fp32", m, n, (1009, 37, 1), 4)
    bias = Operand("fp32", m, n, (1013, 41, 1), 4)
    problem = problem_for(
        variant,
        m,
        n,
        k,
        batch=2,
        a=Operand("fp16", m, k, (1504, 72 + odd, 1)),
        b=Operand("fp16", k, n, (1808, 1, 56 + odd)),
        out=Operand("fp16", m, n, (2048, 96, 1)),
        epilogue=Epilogue("x", "x", c, bias),
    )
    for arch in (H200, TINY):
        right(variant, problem, 1.2, 2.0, arch=arch)


@each_variant
@pytest.mark.parametrize("shared", ["a", "b"])
def test_a_shared_matrix_is_not_walked_past_its_end(variant, shared):
    m, n, k = min(narrow(variant), 5), 24, 40
    sizes = {"a": (m, k), "b": (k, n)}
    given = {name: operand("fp16", *size, 3, pad=pad_for(variant), shared=name == shared) for name, size in sizes.items()}
    right(
        variant,
        problem_for(variant, m, n, k, batch=3, **given),
        tiles=tiles_for(variant, problem_for(variant, m, n, k, batch=3, **given))[:4],
    )


@each_variant
def test_out_may_be_c(variant):
    """BLAS's in-place C: every element is read before it is written, and by the one who writes it."""
    m, n = narrow(variant), 33
    c = operand("fp32", m, n, pad="aligned")
    problem = problem_for(variant, m, n, 70, "fp32", epilogue=Epilogue("x", "x", c), out=c, precision="tf32")
    for tile in tiles_for(variant, problem):
        slots = make_slots(problem, seed=1)
        out = slots["C"].clone()
        interpret.run(variant.plan(problem, tile, H200), {**slots, "C": out, "OUT": out}, {"ALPHA": 1.2, "BETA": 2.0})
        verdict = verify(problem, {**slots, "OUT": out}, 1.2, 2.0)
        assert verdict.ok, f"{tile.describe()}: {verdict.message}"


# sizes and indices

FAR = INT32_MAX // 2 + 9  # two lines further, an offset no longer fits 31 bits


def far_slots(problem, name):
    """Slots where one operand spans more than 2^31 elements, of which only its own are ever touched."""
    near = make_slots(replace(problem, **{name.lower(): operand("fp16", *dims(problem, name))}) if name != "C" else problem, seed=1)
    far = torch.empty(problem.operands[name].last_offset(1) + 1, dtype=torch.float16)
    view = matrix(far, problem.operands[name], 1)
    if name != "OUT":
        view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(2)))
    else:
        view.fill_(math.nan)
    return {**near, name: far}


def dims(problem, name):
    return problem.operands[name].rows, problem.operands[name].cols


@pytest.mark.parametrize("name", ["A", "B", "OUT"])
@pytest.mark.parametrize("transposed", [False, True])
@each_variant
def test_offsets_past_31_bits_in_a_small_matrix(variant, name, transposed):
    """The largest reachable offset counts, not the number of elements."""
    m, n, k = 3, 4, 5
    rows, cols = {"A": (m, k), "B": (k, n), "OUT": (m, n)}[name]
    far = FAR - FAR % 8 + (pad_for(variant) == "odd")
    operand_far = Operand("fp16", rows, cols, (0, 1, far) if transposed else (0, far, 1))
    problem = problem_for(variant, m, n, k, **{name.lower(): operand_far})
    assert problem.needs_int64()
    tiles = tiles_for(variant, problem)
    for tile in tiles[:1]:
        slots = far_slots(problem, name)
        interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.0, "BETA": 0.0})
        verdict = verify(problem, slots)
        assert verdict.ok, verdict.message
    assert tiles or variant is not TILED


LIMITS = (INT32_MAX, 65535, 65535)  # CUDA's, which the interpreter does not know


@each_variant
@pytest.mark.parametrize("batch", [65535, 65536, 131073])
def test_a_large_batch_fits_the_grid_and_is_covered(variant, batch):
    problem = problem_for(variant, 3, 16, 64, batch=batch)
    tiles = tiles_for(variant, problem)
    assert tiles
    for tile in tiles:
        for call in variant.plan(problem, tile, H200).calls:
            assert all(1 <= size <= limit for size, limit in zip(call.grid, LIMITS, strict=False)), call.grid
            assert programs_cover(call, batch), call.grid


def programs_cover(call: KernelCall, batch: int) -> bool:
    """A grid over the batch reaches each matrix; a resident one walks over them by itself."""
    y, z = (*call.grid, 1, 1)[1:3]
    if len(call.grid) == 3:
        reached = {i + j * y for i in range(y) for j in range(z)}
        return set(range(batch)) <= reached and (z - 1) * y < batch
    walks = call.kernel.__name__ == "persistent_kernel" or call.constants.get("PERSISTENT")
    return call.grid[0] >= batch or bool(walks)


@each_variant
def test_a_batch_folded_over_two_grid_dimensions(variant, monkeypatch):
    """The same arithmetic with a limit small enough to run."""
    monkeypatch.setattr(_args, "MAX_GRID_Y", 2)
    problem = problem_for(variant, 3, 18, 40, batch=5)
    right(variant, problem, tiles=tiles_for(variant, problem)[:2])
    right(variant, problem, tiles=tiles_for(variant, problem, TINY)[:2], arch=TINY)


@each_variant
def test_resident_programs_walk_over_all_tiles_in_any_number(variant):
    problem = problem_for(variant, narrow(variant) if variant.name == "gemv" else 40, 40, 20, batch=2)
    for sms in (1, 2, 5):
        right(variant, problem, arch=replace(TINY, sm_count=sms), tiles=tiles_for(variant, problem)[-3:], least=0)


# Inf and NaN


@each_variant
def test_padding_does_not_turn_inf_into_nan(variant):
    """Inf in the last column of A and row of B, next to what masks fill with zeros."""
    m, n, k = min(narrow(variant), 5), 19, 33
    problem = problem_for(variant, m, n, k)
    for tile in tiles_for(variant, problem):
        slots = make_slots(problem, seed=1)
        matrix(slots["A"], problem.a, 1)[0, m - 1, k - 1] = math.inf
        matrix(slots["B"], problem.b, 1)[0, k - 1, n - 1] = -math.inf
        slots.inputs = {}
        interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.0, "BETA": 0.0})
        assert not matrix(slots["OUT"], problem.out, 1).isnan().any()
        assert verify(problem, slots).ok


@each_variant
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_inf_go_through_the_activation(variant, activation):
    m = min(narrow(variant), 5)
    right(
        variant,
        problem_for(variant, m, 19, 33, epilogue=Epilogue(activation=activation)),
        fill="special",
        tiles=tiles_for(variant, problem_for(variant, m, 19, 33))[:3],
    )


@each_variant
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_large_values_are_summed_in_fp32_and_overflow_only_in_the_output(variant, dtype):
    m = min(narrow(variant), 5)
    for out in (dtype, "fp32"):
        problem = problem_for(variant, m, 19, 130, dtype, out=operand(out, m, 19, pad="aligned"))
        right(variant, problem, fill="large", tiles=tiles_for(variant, problem)[:3])


@each_variant
def test_sums_of_integers_are_exact(variant):
    m = min(narrow(variant), 5)
    problem = problem_for(variant, m, 24, 100, "fp32", precision="tf32")
    for tile in tiles_for(variant, problem):
        slots = make_slots(problem, seed=1, fill="integers")
        interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": 1.0, "BETA": 0.0})
        out, value = matrix(slots["OUT"], problem.out, 1), reference.reference64(problem, slots)
        assert torch.equal(out.double(), value)
