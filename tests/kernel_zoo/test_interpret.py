"""Running recipes on the CPU: in any order with compiling, from any thread, with correct rounding."""

import itertools
import threading
from dataclasses import replace

import pytest
import torch

from kernel_zoo import build, catalog, interpret, matrices
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import Epilogue, GemmProblem, KernelCall, Operand, Recipe, TileConfig, View
from kernel_zoo.triton_compat import tl, triton
from tests.kernel_zoo import gluon_kernels
from tests.kernel_zoo.cases import H200, INTERPRETED, Case, operand, small_tiles, takes
from tests.kernel_zoo.gluon_kernels import copying

TILED = catalog.get("tiled")
SMALL = TileConfig(16, 16, 16, num_stages=2)


def run(problem, slots, tile=SMALL, variant=TILED, alpha=1.0, beta=0.0):
    interpret.run(variant.plan(problem, tile, H200), slots, {"ALPHA": alpha, "BETA": beta})


def test_interpreting_and_compiling_take_turns_in_one_process(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    problem = GemmProblem.of(17, 18, 19, "bf16", epilogue=Epilogue("x", "0", None, Operand("fp32", 17, 18, (0, 0, 1)), "gelu"))
    binaries = []
    for _ in range(2):
        slots = make_slots(problem, seed=1)
        run(problem, slots, alpha=1.2)
        assert verify(problem, slots, 1.2).ok
        binaries.append(build.compile_binary(build.specialise(TILED.plan(problem, SMALL, H200).calls[0]), 90).asm["cubin"])
    assert binaries[0] == binaries[1]
    assert any(tmp_path.iterdir())


def test_every_variant_compiles_after_all_of_them_were_interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    cases = []
    for variant in INTERPRETED:
        problem = takes(variant, 4, 32, 64, "bf16", "nt")
        tile = next(tile for tile in small_tiles(variant) if variant.refusal(problem, H200, tile) is None)
        cases.append(Case(variant, problem, tile, H200))
        assert cases[-1].run().ok
    for case in cases:
        for call in case.variant.plan(case.problem, case.tile, H200).calls:
            assert build.compile_binary(build.specialise(call), 90).asm["cubin"]


def test_threads_take_turns():
    problem = GemmProblem.of(17, 18, 33, "fp16")
    failures = []

    def work(seed):
        try:
            for turn in range(3):
                slots = make_slots(problem, seed=10 * seed + turn)
                run(problem, slots)
                verdict = verify(problem, slots)
                if not verdict.ok:
                    failures.append(verdict.message)
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_bf16_results_are_rounded_to_nearest_even():
    """K = 1, so the product is exact in fp32 and the stored value has one right answer."""
    problem = GemmProblem.of(64, 64, 1, "bf16")
    slots = make_slots(problem, seed=3)
    run(problem, slots)
    a, b = (matrix(slots[name], problem.operands[name], 1).float() for name in ("A", "B"))
    assert torch.equal(matrix(slots["OUT"], problem.out, 1), (a @ b).bfloat16())


def test_halfway_cases_go_to_even():
    problem = GemmProblem.of(1, 4, 1, "bf16")
    slots = make_slots(problem, seed=3)
    matrix(slots["A"], problem.a, 1).fill_(1 + 2**-7)
    matrix(slots["B"], problem.b, 1).copy_(torch.tensor([1.0, 1.5, 1 + 2**-7, -1.5]))
    run(problem, slots)
    exact = torch.tensor([1 + 2**-7, 1.5 + 1.5 * 2**-7, 1 + 2**-6 + 2**-14, -1.5 - 1.5 * 2**-7])
    assert torch.equal(matrix(slots["OUT"], problem.out, 1)[0, 0], exact.bfloat16())


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_nothing_but_out_is_written(dtype):
    """verify compares every guard byte and every input; OUT here lies between other slots in one buffer."""
    for n in (1, 7, 16, 33):
        a, b, out = operand(dtype, 5, 9, pad="odd"), operand(dtype, 9, n, layout="t", pad="odd"), operand(dtype, 5, n, pad="odd")
        problem = GemmProblem(1, 5, n, 9, a, b, out, precision="ieee" if dtype == "fp32" else "")
        slots = make_slots(problem, seed=n)
        run(problem, slots)
        verdict = verify(problem, slots)
        assert verdict.ok, verdict.message


def test_out_may_be_c():
    c = Operand.dense("bf16", 17, 18)
    problem = GemmProblem.of(17, 18, 19, "bf16", epilogue=Epilogue("1", "x", c))
    slots = make_slots(problem, seed=1)
    in_place = {**slots, "OUT": slots["C"].clone()}
    in_place["C"] = in_place["OUT"]
    run(problem, in_place, beta=2.0)
    assert verify(problem, {**slots, "OUT": in_place["OUT"]}, 1.0, 2.0).ok


def test_a_workspace_starts_dirty(monkeypatch):
    """Partial sums that were read before they were written would be NaN."""
    variant = catalog.get("split_k")
    problem = GemmProblem.of(16, 16, 64, "fp32")
    seen = []
    original = interpret._launch

    def launch(call, memory, scalars):
        if not seen:
            seen.append(memory.at(View("WS", Operand.dense("fp32", 1, 1))).isnan().all().item())
        original(call, memory, scalars)

    monkeypatch.setattr(interpret, "_launch", launch)
    slots = make_slots(problem, seed=1)
    run(problem, slots, TileConfig(16, 16, 16, split_k=2, num_stages=2), variant)
    assert seen == [True]
    assert verify(problem, slots).ok


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"])
def test_every_fp32_precision_can_be_interpreted(precision):
    problem = GemmProblem.of(17, 18, 33, "fp32", precision=precision)
    assert Case(TILED, problem, SMALL, H200).run().ok


def test_tf32_rounds_its_inputs_to_nearest():
    """Just above half a step of TF32 a rounded input moves up; a truncated one would not."""
    problem = GemmProblem.of(1, 1, 1, "fp32", precision="tf32")
    slots = make_slots(problem, seed=1)
    matrix(slots["A"], problem.a, 1).fill_(1 + 2**-11 + 2**-20)
    matrix(slots["B"], problem.b, 1).fill_(1.0)
    run(problem, slots)
    assert float(matrix(slots["OUT"], problem.out, 1)) == 1 + 2**-10


def test_a_constant_the_kernel_does_not_have_is_refused_as_the_compiler_would():
    problem = GemmProblem.of(16, 16, 16, "fp16")
    (call,) = TILED.plan(problem, SMALL, H200).calls
    wrong = replace(call, constants={**call.constants, "FOO": 1})
    with pytest.raises(TypeError, match="unknown constants: \\['FOO'\\]"):
        interpret.run(Recipe((wrong,)), make_slots(problem), {"ALPHA": 1.0, "BETA": 0.0})


@triton.jit
def _pass_on(x, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < N), mask=at < N)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "int32"])
def test_a_view_starts_inside_its_slot(dtype):
    """From inside A through two places of a workspace, under a type that may be widened, to inside OUT."""
    n = 24
    row = Operand.dense(dtype, 1, n)
    itemsize = row.itemsize
    steps = (View("A", row, 16), View("WS", row), View("WS", row, 256), View("OUT", row, 8))
    calls = tuple(KernelCall(_pass_on, (2,), (x, out, n), {"BLOCK": 16}) for x, out in itertools.pairwise(steps))
    torch_dtype = matrices.TORCH_DTYPES[dtype]
    slots = {name: (torch.arange(64) - 20).to(torch_dtype) for name in ("A", "OUT")}
    before = {name: tensor.clone() for name, tensor in slots.items()}
    interpret.run(Recipe(calls, workspace_bytes=256 + n * itemsize), slots, {})
    assert torch.equal(slots["A"], before["A"])
    first, source = 8 // itemsize, 16 // itemsize
    assert torch.equal(slots["OUT"][first : first + n], before["A"][source : source + n])
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[first : first + n] = False
    assert torch.equal(slots["OUT"][untouched], before["OUT"][untouched])


def test_views_of_a_workspace_share_its_bytes():
    """Two halves are read as the word that they are."""
    halves, words = Operand.dense("fp16", 1, 32), Operand.dense("int32", 1, 16)
    calls = (
        KernelCall(_pass_on, (2,), (View("A", halves), View("WS", halves, 256), 32), {"BLOCK": 16}),
        KernelCall(_pass_on, (1,), (View("WS", words, 256), View("OUT", words), 16), {"BLOCK": 16}),
    )
    slots = {"A": torch.randn(32).half(), "OUT": torch.zeros(16, dtype=torch.int32)}
    interpret.run(Recipe(calls, workspace_bytes=512), slots, {})
    assert torch.equal(slots["OUT"], slots["A"].view(torch.int32))


def test_gluon_is_not_interpreted():
    slots = {name: torch.zeros(64 * 64, dtype=torch.bfloat16) for name in ("A", "OUT")}
    with pytest.raises(TypeError, match="copy is written in Gluon"):
        interpret.run(Recipe((copying(gluon_kernels.copy, 64, 64),)), slots, {})
