"""A GPU without one: compiled kernels that check every argument and interpret the launch on the CPU's memory."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from heuristics.archs import ARCHS
from kernel_zoo import build, interpret
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import Descriptor, KernelCall, Operand, Recipe, View
from minblas import binaries, counters, guards, launch_adapters, launch_check

H200 = ARCHS["h200"]
GPU = torch.device("cuda", 0)
STREAM = 4321


class FakeBinary:
    """A loaded kernel that checks a launch against its specialisation, then interprets it on the memory behind the addresses."""

    memory: ClassVar[dict[int, tuple[str, torch.Tensor]]] = {}
    idle: ClassVar[bool] = False  # whether launches do nothing

    def __init__(self, spec: build.Specialisation, shared: int = 0, scratch: int = 0) -> None:
        self.spec = spec
        self.function, self.packed_metadata = object(), (spec.num_warps, 1, shared)
        self.metadata = SimpleNamespace(name="fake", shared=shared, global_scratch_size=scratch, profile_scratch_size=0)
        self.launches: list[tuple] = []
        self.described: list[tuple] = []

    def launch_metadata(self, grid, stream, *arguments):
        self.described.append((grid, stream, arguments))
        return {"name": "fake"}

    def run(self, x, y, z, stream, function, packed, metadata, enter, leave, *arguments):
        if self.idle:
            return
        assert function is self.function
        assert packed is self.packed_metadata
        assert stream == STREAM
        assert all(isinstance(size, int) and size > 0 for size in (x, y, z))
        assert len(arguments) == len(self.spec.kernel.arg_names)
        names = self.spec.kernel.arg_names
        constants = dict(self.spec.constants)
        slots: dict[str, torch.Tensor] = {}
        positional = []
        for i, (kind, value) in enumerate(zip(self.spec.signature, arguments, strict=True)):
            checked = self._check(kind, value, self.spec.divisors[i], constants.get(i), slots)
            positional.append(False if names[i] == "DEPENDENT" else checked)  # launches run one after another here
        self.launches.append((x, y, z))
        if enter is not None:
            enter(metadata)
        interpret.run(Recipe((KernelCall(self.spec.kernel, (x, y, z), tuple(positional)),)), {"OUT": torch.empty(1), **slots}, {})
        if leave is not None:
            leave(metadata)

    def _check(self, kind, value, divisor, constant, slots):
        if kind == "constexpr":
            assert value == constant
            assert type(value) is type(constant)
            return value
        if kind.startswith("*"):
            address = value.data_ptr() if isinstance(value, torch.Tensor) else value
            assert address % max(divisor, 1) == 0
            return self._view(address, kind[1:], slots)
        if kind.startswith("tensordesc"):
            assert value.padding == "zero"
            assert value.round_f32_to_tf32 is False
            assert value.base.data_ptr() % 16 == 0
            assert value.strides[-1] == 1
            view = self._view(value.base.data_ptr(), kind[len("tensordesc<") :].partition("[")[0], slots)
            assert TORCH_DTYPES[view.operand.dtype] == value.base.dtype
            return Descriptor(view, tuple(value.shape), tuple(value.strides), tuple(value.block_shape))
        if kind in ("i32", "i64"):
            assert value % max(divisor, 1) == 0
            assert value.bit_length() < int(kind[1:])
            return value
        assert kind == "fp32"
        assert isinstance(value, (int, float))
        return value

    def _view(self, address, dtype, slots):
        slot, tensor = self.memory.get(address) or self._within(address)
        name = {triton: ours for ours, triton in build.TRITON_TYPES.items()}[dtype]
        slots[slot] = tensor.view(TORCH_DTYPES[name])
        return View(slot, Operand.dense(name, 1, 1))

    def _within(self, address):
        """What starts inside a workspace: a slot of its own that shares the memory."""
        for start, (slot, tensor) in self.memory.items():
            if tensor.dtype == torch.uint8 and start < address < start + tensor.numel():
                return f"{slot}+{address - start}", tensor[address - start :]
        raise KeyError(address)


@pytest.fixture
def gpu(monkeypatch):
    """A device 0 whose kernels are fakes, its memory the CPU's."""
    guards.guards_work()  # is found out once, and by torch as it is
    made: list[FakeBinary] = []
    FakeBinary.memory = {}
    settings = SimpleNamespace(made=made, shared=0, scratch=0, current=0, entered=[])

    def compile_binary(spec, cc):
        assert cc == 90
        made.append(FakeBinary(spec, settings.shared, settings.scratch))
        return made[-1]

    def device(index):
        settings.entered.append(getattr(index, "index", index))
        return nullcontext()

    monkeypatch.setattr(build, "compile_binary", compile_binary)
    monkeypatch.setattr(binaries.BINARIES, "_loaded", {})
    monkeypatch.setattr(launch_check, "_CHOSEN", dict.fromkeys((False, True), launch_adapters.RunLaunch))
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: settings.current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    real = torch.empty

    def empty(*arguments, **keywords):
        tensor = real(*arguments, **{**keywords, "device": "cpu"})
        if keywords.get("device") == GPU:
            FakeBinary.memory[tensor.data_ptr()] = ("WS", tensor)
        return tensor

    def zeros(count, index, stream):
        tensor = torch.zeros(count, dtype=torch.int32)
        FakeBinary.memory[tensor.data_ptr()] = ("COUNTERS", tensor)
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(counters, "_zeros_for_good", zeros)
    monkeypatch.setattr(counters.ZEROED, "_kept", {})
    monkeypatch.setattr(counters, "_is_capturing", lambda: False)
    return settings
