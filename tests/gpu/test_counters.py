"""Counters on a GPU: one buffer a stream, one a graph, always left zero; Gluon kernels and dependent launches reach the driver."""

from __future__ import annotations

import pytest
import torch
import triton

from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots
from kernel_zoo.spec import GemmProblem, Recipe, TileConfig, Variant
from minblas import counters, launch, launch_check
from minblas.device import arch_of
from minblas.launch_adapters import adapters
from minblas.launch_cuda import Compiled
from minblas.timing import CudaEngine
from tests.gpu import planned
from tests.gpu.support import DEVICE, run
from tests.kernel_zoo import gluon_kernels
from tests.kernel_zoo.counting import PROGRAMS, variant_of
from tests.kernel_zoo.gluon_kernels import copying

PROBLEM = GemmProblem.of(16, 16, 16, "fp16", out_dtype="fp32")
TILE = TileConfig(16, 16, 16)
needs_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="the kernel is for capability 9.0"
)


def prepared(**changes):
    return launch.prepare(variant_of(**changes), PROBLEM, TILE, arch_of(DEVICE), DEVICE)


def counted(slots):
    """The count that was written, forgotten."""
    first = matrix(slots["OUT"], PROBLEM.out, 1).flatten()[:1]
    found = float(first)
    first.zero_()
    return found


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """Buffers of this test's own."""
    found: dict[tuple[int, int], torch.Tensor] = {}
    monkeypatch.setattr(counters.ZEROED, "_kept", found)
    yield found
    torch.cuda.synchronize()
    assert not any(bool(buffer.any()) for buffer in found.values())


@pytest.mark.parametrize("dependent", [False, True])
def test_two_streams_count_apart(kept, dependent):
    runs = prepared(dependent=dependent)
    streams = [torch.cuda.Stream() for _ in range(2)]
    slots = [make_slots(PROBLEM, DEVICE, seed=seed) for seed in range(2)]
    torch.cuda.synchronize()
    for _ in range(200):
        for stream, own in zip(streams, slots, strict=True):
            with torch.cuda.stream(stream):
                runs(own, 1.0, 0.0)
    torch.cuda.synchronize()
    assert [counted(own) for own in slots] == [PROGRAMS] * 2
    assert sorted(kept) == sorted((DEVICE.index or 0, stream.cuda_stream) for stream in streams)


def captured(runs, slots, times=3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            runs(slots, 1.0, 0.0)
    return graph


def test_graphs_have_counters_of_their_own(kept):
    """Replayed on two streams at once, beside launches on a third."""
    runs = prepared()
    own = [make_slots(PROBLEM, DEVICE, seed=seed) for seed in range(3)]
    runs(own[2], 1.0, 0.0)
    held = dict(kept)
    graphs = [captured(runs, slots) for slots in own[:2]]
    assert kept.keys() == held.keys(), "a capture keeps nothing"
    for slots in own:
        matrix(slots["OUT"], PROBLEM.out, 1).zero_()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(100):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        runs(own[2], 1.0, 0.0)
    torch.cuda.synchronize()
    assert [counted(slots) for slots in own] == [PROGRAMS] * 3


def test_a_timed_graph_holds_the_kernels_alone(kept):
    runs, slots = prepared(), make_slots(PROBLEM, DEVICE, seed=1)
    engine = CudaEngine(DEVICE)
    replay = engine.capture(lambda index: runs(slots, 1.0, 0.0), [0, 0, 0])
    counted(slots)
    assert len(engine.measure([replay])) == 1
    assert counted(slots) == PROGRAMS
    assert len(kept) == 1


def test_a_buffer_is_made_outside_the_callers_pool(kept):
    """torch.compile's graphs check that all memory of their pool is theirs."""
    runs, slots = prepared(), make_slots(PROBLEM, DEVICE, seed=1)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        runs(slots, 1.0, 0.0)
    torch.cuda.synchronize()
    ours = next(iter(kept.values())).data_ptr()
    segments = [segment for segment in pool.snapshot() if segment["address"] <= ours < segment["address"] + segment["total_size"]]
    assert not segments
    assert counted(slots) == PROGRAMS


def bits(case, slots):
    """OUT's bits."""
    out = matrix(slots["OUT"], case.problem.out, case.problem.batch).contiguous()
    return out.view({2: torch.int16, 4: torch.int32}[out.element_size()])


COUNTING = planned.counting_cases(arch_of(DEVICE))


@pytest.mark.parametrize("case", COUNTING, ids=[case.variant.name for case in COUNTING])
def test_a_variant_that_counts_gives_the_same_bits_on_two_streams_and_in_graphs(case):
    verdict, slots = run(case)
    assert verdict.ok, f"{verdict.message}\n{case.describe()}"
    expected = bits(case, slots)
    runs = launch.prepare(case.variant, case.problem, case.tile, case.arch, DEVICE)
    streams = [torch.cuda.Stream() for _ in range(2)]
    own = [make_slots(case.problem, DEVICE, 0, case.fill) for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, given in zip(streams, own[:2], strict=True):
            with torch.cuda.stream(stream):
                runs(given, case.alpha, case.beta)
    torch.cuda.synchronize()
    graphs = []
    for given in own[2:]:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            for _ in range(3):
                runs(given, case.alpha, case.beta)
    for _ in range(20):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for given in own:
        assert torch.equal(bits(case, given), expected), case.describe()


@needs_hopper
@pytest.mark.parametrize("adapter", [None, *adapters(triton.__version__)], ids=lambda each: each.__name__ if each else "triton")
@pytest.mark.parametrize("kernel", [gluon_kernels.copy, gluon_kernels.handed_copy], ids=["copy", "handed"])
@pytest.mark.parametrize("offset", [0, 256])
def test_gluon_is_launched_by_every_adapter(kernel, adapter, offset, monkeypatch):
    monkeypatch.setattr(launch_check, "_CHOSEN", dict.fromkeys((False, True), adapter))
    recipe = Recipe((copying(kernel, 200, 136, offset=offset),))
    nothing: Variant = variant_of()
    runs = Compiled(nothing, recipe, arch_of(DEVICE), DEVICE)
    source = torch.randn(200 * 136 + offset // 2, device=DEVICE).bfloat16()
    out = torch.zeros(200, 136, device=DEVICE, dtype=torch.bfloat16)
    runs({"A": source, "OUT": out}, 1.0, 0.0)
    assert torch.equal(out.flatten(), source[offset // 2 :])
