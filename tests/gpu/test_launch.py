"""The direct launch: the same bits as triton's own, hooks honoured, streams and devices left as they were."""

import pytest
import torch
import triton

from kernel_zoo import catalog
from kernel_zoo.gate import GateRow, gate
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from minblas import launch, launch_check
from minblas.launch_adapters import DirectLaunch, adapters
from minblas.launch_cuda import TritonLaunch
from tests.gpu.support import DEVICE, case_of, gpu_arch


def problem_for(variant):
    """A problem with all that an epilogue can have: wide, of few rows, or of lines that start anywhere; None if all are refused."""
    for m, n, k in ((96, 256, 8192), (4, 256, 8192), (96, 255, 8191)):
        epilogue = Epilogue("x", "x", Operand.dense("fp32", m, n), Operand("fp32", m, n, (0, 0, 1)), "gelu")
        problem = GemmProblem.of(m, n, k, "bf16", "nt", epilogue=epilogue)
        if variant.refusal(problem, gpu_arch()) is None:
            return problem
    return None


PROBLEMS = {variant.name: problem_for(variant) for variant in catalog.VARIANTS if variant.recipe is not None}
CASES = [case_of(problem, name, alpha=1.2, beta=2.0) for name, problem in PROBLEMS.items() if problem is not None]
each_case = pytest.mark.parametrize("case", CASES, ids=[case.variant.name for case in CASES])


def prepared(case):
    return launch.prepare(case.variant, case.problem, case.tile, case.arch, DEVICE)


def out_of(case, slots):
    return matrix(slots["OUT"], case.problem.out, case.problem.batch)


@pytest.mark.parametrize("adapter", adapters(triton.__version__), ids=lambda adapter: adapter.__name__)
@each_case
def test_every_direct_launch_gives_tritons_bits(case, adapter, monkeypatch):
    runs = prepared(case)
    assert all(isinstance(item, DirectLaunch) for item in runs._launches), "no direct launch is used on this triton"
    monkeypatch.setattr(launch_check, "_CHOSEN", dict.fromkeys((False, True), adapter))
    runs = prepared(case)
    assert {type(item) for item in runs._launches} == {adapter}
    results = []
    for kind in (None, TritonLaunch):
        if kind is not None:
            recipe = case.variant.plan(case.problem, case.tile, case.arch)
            runs._launches = [kind(call, case.arch.cc) for call in recipe.calls]
        slots = make_slots(case.problem, DEVICE, seed=1)
        runs(slots, case.alpha, case.beta)
        verdict = verify(case.problem, slots, case.alpha, case.beta)
        assert verdict.ok, verdict.message
        results.append(out_of(case, slots).clone())
    assert torch.equal(*results)


@each_case
def test_launch_hooks_see_every_launch(case):
    runs = prepared(case)
    seen = []

    def enter(metadata):
        seen.append(metadata.get()["name"])

    slots = make_slots(case.problem, DEVICE, seed=1)
    triton.knobs.runtime.launch_enter_hook.add(enter)
    try:
        runs(slots, case.alpha, case.beta)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(enter)
    kernels = [call.kernel.__name__ for call in case.variant.plan(case.problem, case.tile, case.arch).calls]
    assert len(seen) == len(kernels)
    assert all(name.startswith(kernel) for name, kernel in zip(seen, kernels, strict=True))
    assert verify(case.problem, slots, case.alpha, case.beta).ok
    runs(slots, case.alpha, case.beta)
    assert len(seen) == len(kernels)


@each_case
def test_pointers_and_scalars_are_read_at_every_launch(case):
    runs = prepared(case)
    for seed, (alpha, beta) in enumerate(((1.2, 2.0), (-0.3, 0.7))):
        slots = make_slots(case.problem, DEVICE, seed=seed)
        runs(slots, alpha, beta)
        verdict = verify(case.problem, slots, alpha, beta)
        assert verdict.ok, verdict.message


@each_case
def test_a_launch_goes_to_the_current_stream(case):
    runs = prepared(case)
    stream = torch.cuda.Stream()
    slots = make_slots(case.problem, DEVICE, seed=1)
    fresh = torch.randn_like(slots["A"])
    slots.inputs = {}
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the inputs are late: a launch on another stream would miss them
        slots["A"].copy_(fresh)
        runs(slots, case.alpha, case.beta)
    stream.synchronize()
    assert verify(case.problem, slots, case.alpha, case.beta).ok


@each_case
def test_resources_are_what_the_gate_reads(case):
    (gated,) = gate([GateRow(case.variant, case.problem, case.tile, case.arch)])
    assert [item.shared_bytes for item in prepared(case).resources] == [item.shared_bytes for item in gated.resources]
