"""Counters on a GPU that is not there: whose buffer a launch gets, and when it is another."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kernel_zoo import interpret
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import make_slots
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas import counters, launch, launch_cuda
from tests.kernel_zoo.counting import PROGRAMS, WORDS, variant_of
from tests.minblas.fake_gpu import GPU, H200, STREAM, FakeBinary

PROBLEM = GemmProblem.of(16, 16, 16, "fp16", out_dtype="fp32")
TILE = TileConfig(16, 16, 16)


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda as far as counters use it; memory is the CPU's."""
    state = SimpleNamespace(capturing=False, streams=[], threads=[])
    real = torch.zeros

    def zeros(*sizes, device, **keywords):
        assert device.type == "cuda"
        state.threads.append(threading.current_thread().name)
        return real(*sizes, **keywords)

    def external(stream, device):
        state.streams.append((device.index, stream))
        return stream

    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    monkeypatch.setattr(counters, "_is_capturing", lambda: state.capturing)
    return state


def test_a_stream_keeps_its_buffer_and_shares_it_with_no_other(cuda):
    ours = counters.Counters()
    first = ours.get(10, 0, 7)
    assert first.dtype == torch.int32
    assert not first.any()
    assert ours.get(4000, 0, 7) is first
    others = [ours.get(10, 0, 8), ours.get(10, 1, 7), ours.get(10, 0, 0)]
    assert len({buffer.data_ptr() for buffer in (first, *others)}) == 4
    assert cuda.streams == [(0, 7), (0, 8), (1, 7), (0, 0)], "allocated and zeroed on the stream in question"
    assert set(cuda.threads) == {"minblas-counters"}, "out of reach of a pool that the calling thread allocates in"


def test_a_buffer_grows_and_the_old_one_stays_alive(cuda):
    ours = counters.Counters()
    first = ours.get(10, 0, 7)
    second = ours.get(first.numel() + 1, 0, 7)
    assert second.numel() >= first.numel() + 1
    assert ours.get(10, 0, 7) is second
    assert any(buffer is first for buffer in ours._outgrown)


def test_a_capture_has_a_buffer_of_its_own_each_time(cuda):
    ours = counters.Counters()
    kept = ours.get(10, 0, 7)
    cuda.capturing = True
    first, second = ours.get(10, 0, 7), ours.get(10, 0, 7)
    assert len({buffer.data_ptr() for buffer in (kept, first, second)}) == 3
    assert cuda.threads[1:] == ["MainThread"] * 2, "by the thread that captures, so that it becomes part of the graph"
    assert first.numel() == 10
    cuda.capturing = False
    assert ours.get(10, 0, 7) is kept


def test_a_capture_that_stays_on_its_stream_counts_in_the_streams_buffer(cuda):
    ours = counters.Counters()
    kept = ours.get(10, 0, 7)
    cuda.capturing = True
    with ours.captures_stay_on_their_stream():
        assert ours.get(10, 0, 7) is kept
        assert ours.get(kept.numel() + 1, 0, 7) is not kept, "nothing can grow during a capture"
        assert ours.get(10, 0, 8).numel() == 10
    assert ours.get(10, 0, 7) is not kept
    assert list(ours._kept) == [(0, 7)]


def test_the_per_thread_stream_shares_nothing(cuda):
    ours = counters.Counters()
    assert ours.get(10, 0, 2).data_ptr() != ours.get(10, 0, 2).data_ptr() or not ours._kept
    assert not ours._kept


def test_memory_that_is_not_there_is_the_callers_error(cuda, monkeypatch):
    def zeros(*arguments, **keywords):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        counters.Counters().get(10, 0, 7)


def test_threads_that_ask_at_once_get_one_buffer(cuda):
    ours = counters.Counters()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(ours.get(10, 0, 7).data_ptr())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_a_launch_gets_counters_and_a_place_in_the_workspace(gpu):
    prepared = launch.prepare(variant_of(), PROBLEM, TILE, H200, GPU)
    assert isinstance(prepared, launch_cuda.Compiled)
    assert prepared.counters == WORDS
    for _ in range(2):
        slots = make_slots(PROBLEM, seed=1)
        FakeBinary.memory.update({tensor.data_ptr(): (name, tensor) for name, tensor in slots.items()})
        prepared(slots, 1.0, 0.0)
        assert matrix(slots["OUT"], PROBLEM.out, 1).flatten()[0] == PROGRAMS
    assert list(counters.ZEROED._kept) == [(0, STREAM)], "one buffer for both"
    assert not counters.ZEROED._kept[0, STREAM].any()


def test_the_interpreter_gives_zeroed_counters():
    prepared = launch.prepare(variant_of(), PROBLEM, TILE, H200, torch.device("cpu"))
    slots = make_slots(PROBLEM, seed=1)
    prepared(slots, 1.0, 0.0)
    assert matrix(slots["OUT"], PROBLEM.out, 1).flatten()[0] == PROGRAMS


def test_the_interpreter_finds_counters_that_are_left_dirty():
    prepared = launch.prepare(variant_of(clean=False), PROBLEM, TILE, H200, torch.device("cpu"))
    with pytest.raises(
        interpret.DirtyCountersError, match=rf"1 of {WORDS} counters are not zero after tally, the first at {WORDS - 1}"
    ):
        prepared(make_slots(PROBLEM, seed=1), 1.0, 0.0)
