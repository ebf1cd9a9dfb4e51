"""The GPU launch path without a GPU: a stand-in for the compiled kernel checks every argument and interprets the launch."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from heuristics.archs import ARCHS
from kernel_zoo import build, catalog, interpret
from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.spec import Descriptor, Epilogue, GemmProblem, KernelCall, Operand, Recipe, View
from minblas import binaries, dispatch, errors, launch, launch_cuda
from tests.minblas.oracle import close

H200 = ARCHS["h200"]
GPU = torch.device("cuda", 0)
STREAM = 4321


class FakeBinary:
    """A loaded kernel that checks a launch against its specialisation, then interprets it on the memory behind the addresses."""

    memory: ClassVar[dict[int, tuple[str, torch.Tensor]]] = {}

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
        assert function is self.function
        assert packed is self.packed_metadata
        assert stream == STREAM
        assert all(isinstance(size, int) and size > 0 for size in (x, y, z))
        assert len(arguments) == len(self.spec.kernel.arg_names)
        constants = dict(self.spec.constants)
        slots: dict[str, torch.Tensor] = {}
        positional = []
        for i, (kind, value) in enumerate(zip(self.spec.signature, arguments, strict=True)):
            positional.append(self._check(kind, value, self.spec.divisors[i], constants.get(i), slots))
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
        assert isinstance(value, float)
        return value

    def _view(self, address, dtype, slots):
        slot, tensor = self.memory[address]
        name = {triton: ours for ours, triton in build.TRITON_TYPES.items()}[dtype]
        slots[slot] = tensor.view(TORCH_DTYPES[name])
        return View(slot, Operand.dense(name, 1, 1))


@pytest.fixture
def gpu(monkeypatch):
    """A device 0 whose kernels are fakes, its memory the CPU's."""
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
    monkeypatch.setattr(launch_cuda, "_VERDICTS", {False: True, True: True})
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: settings.current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    real = torch.empty

    def empty(*arguments, **keywords):
        tensor = real(*arguments, **{**keywords, "device": "cpu"})
        if keywords.get("device") == GPU:
            FakeBinary.memory[tensor.data_ptr()] = ("WS", tensor)
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    return settings


def slots_of(problem: GemmProblem) -> dict[str, torch.Tensor]:
    made = {}
    for name, operand in problem.operands.items():
        tensor = torch.randn(operand.last_offset(problem.batch) + 8).to(TORCH_DTYPES[operand.dtype])
        made[name] = tensor
        FakeBinary.memory[tensor.data_ptr()] = (name, tensor)
    return made


def problem_of(m, n, k, layout="nn", dtype="fp16", batch=1) -> GemmProblem:
    c = Operand.dense("fp32", m, n, batch=batch)
    epilogue = Epilogue("x", "x", c, Operand(dtype, m, n, (0, 0, 1)), "relu")
    return GemmProblem.of(m, n, k, dtype, layout, batch=batch, epilogue=epilogue, out_dtype="fp32")


def check(problem, prepared, slots, alpha=1.5, beta=-0.5):
    prepared(slots, alpha, beta)
    a, b, c, bias, out = (matrix(slots[name], problem.operands[name], problem.batch) for name in ("A", "B", "C", "BIAS", "OUT"))
    close(out, a, b, alpha, beta, c, bias, "relu")


CASES = [
    ("tiled", problem_of(33, 18, 40)),
    ("tiled", problem_of(20, 17, 24, "tt", "fp32", batch=3)),
    ("persistent", problem_of(40, 33, 64, "nt", "bf16")),
    ("tma", problem_of(48, 40, 64, "nt")),
    ("tma", problem_of(24, 16, 32, batch=2)),
    ("split_k", problem_of(16, 32, 1024)),
    ("gemv", problem_of(1, 64, 256, "nt")),
]


@pytest.mark.parametrize(("name", "problem"), CASES, ids=[f"{name}-{problem.describe()}" for name, problem in CASES])
def test_a_direct_launch_passes_what_the_binary_was_made_for(gpu, name, problem):
    variant = catalog.get(name)
    tile = dispatch.select(problem, H200, name).tile
    prepared = launch.prepare(variant, problem, tile, H200, GPU)
    assert isinstance(prepared, launch_cuda.Compiled)
    assert prepared.variant == name
    recipe = variant.plan(problem, tile, H200)
    assert prepared.workspace_bytes == recipe.workspace_bytes
    assert len(gpu.made) == len(set(map(build.specialise, recipe.calls)))
    for _ in range(2):
        check(problem, prepared, slots_of(problem))
    assert [launch for fake in gpu.made for launch in fake.launches[:1]] == [(*call.grid, 1, 1)[:3] for call in recipe.calls]


def tiled(problem=None, **keywords):
    problem = problem or problem_of(33, 18, 40)
    return problem, launch.prepare(
        catalog.get("tiled"), problem, dispatch.select(problem, H200, "tiled").tile, H200, GPU, **keywords
    )


def test_binaries_are_shared_by_equal_specialisations(gpu):
    problem, _ = tiled()
    tile = dispatch.select(problem, H200, "tiled").tile
    assert launch.is_ready(catalog.get("tiled"), problem, tile, H200, GPU)
    assert not launch.is_ready(catalog.get("tiled"), problem_of(33, 18, 48), tile, H200, GPU)
    assert launch.is_ready(catalog.get("aten"), problem, None, H200, GPU)
    tiled()
    assert len(gpu.made) == 1
    launch.prepare(catalog.get("tiled"), problem, tile, H200, torch.device("cuda", 1))
    assert len(gpu.made) == 2, "a loaded function belongs to one device"


def test_another_current_device_is_guarded(gpu):
    problem, prepared = tiled()
    gpu.entered.clear()
    check(problem, prepared, slots_of(problem))
    assert gpu.entered == []
    gpu.current = 1
    check(problem, prepared, slots_of(problem))
    assert gpu.entered == [0]


def test_a_kernel_too_big_for_the_device_is_refused_before_it_is_loaded(gpu):
    gpu.shared = H200.smem_per_block + 1
    with pytest.raises(errors.LaunchError, match=r"232,449 bytes of shared memory.*232,448 on h200"):
        tiled()
    assert not binaries.BINARIES._loaded


def test_launch_hooks_are_honoured(gpu, monkeypatch):
    import triton

    problem, prepared = tiled()
    seen = []
    enter, leave = (lambda metadata: seen.append(("enter", metadata))), (lambda metadata: seen.append(("leave", metadata)))
    chain = triton.knobs.runtime.launch_enter_hook
    chain.add(enter)
    triton.knobs.runtime.launch_exit_hook.add(leave)
    try:
        check(problem, prepared, slots_of(problem))
    finally:
        chain.remove(enter)
        triton.knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == [("enter", {"name": "fake"}), ("leave", {"name": "fake"})]
    ((grid, stream, arguments),) = gpu.made[0].described
    assert stream == STREAM
    assert len(grid) == 3
    assert isinstance(arguments[0], torch.Tensor)
    check(problem, prepared, slots_of(problem))
    assert len(seen) == 2
    assert len(gpu.made[0].described) == 1


def test_tritons_own_launch(gpu, monkeypatch):
    from triton.runtime.interpreter import InterpretedFunction
    from triton.tools.tensor_descriptor import TensorDescriptor

    monkeypatch.setattr(launch_cuda, "_VERDICTS", {False: False, True: False})
    launched = []

    def fake_kernel(kernel):
        def launcher(grid):
            def run(*arguments, num_warps, num_stages, **constants):
                launched.append((kernel.__name__, grid, num_warps, num_stages))
                for value in arguments:
                    if hasattr(value, "block_shape"):
                        assert isinstance(value, TensorDescriptor)
                        assert isinstance(value.base, torch.Tensor)
                with interpret.LOCK, interpret._interpreted_helpers():
                    InterpretedFunction(kernel.fn)[grid](*arguments, **constants)

            return run

        return type("Fake", (), {"__getitem__": lambda self, grid: launcher(grid)})()

    for name, problem in (
        ("tiled", problem_of(33, 18, 40)),
        ("tma", problem_of(48, 40, 64, "nt")),
        ("split_k", problem_of(16, 32, 1024)),
    ):
        tile = dispatch.select(problem, H200, name).tile
        prepared = launch.prepare(catalog.get(name), problem, tile, H200, GPU)
        for step in prepared._launches:
            assert isinstance(step, launch_cuda.TritonLaunch)
            step._call = replace(step._call, kernel=fake_kernel(step._call.kernel))
        check(problem, prepared, slots_of(problem))
    assert len(launched) == 4


def test_scratch_memory_leaves_the_direct_launch_alone(gpu):
    gpu.scratch = 128
    _, prepared = tiled()
    assert isinstance(prepared._launches[0], launch_cuda.TritonLaunch)


def test_an_untested_triton_is_not_launched_directly(gpu, monkeypatch, caplog):
    import triton

    monkeypatch.setattr(launch_cuda, "_VERDICTS", {})
    monkeypatch.setattr(triton, "__version__", "9.9.1")
    with caplog.at_level("WARNING", logger="minblas"):
        assert not launch_cuda.direct_launch_works(False, H200, GPU)
        assert not launch_cuda.direct_launch_works(False, H200, GPU)
    assert sum("triton 9.9.1 was not tested" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("outcome", [True, False, RuntimeError("invalid argument")])
def test_the_check_before_first_use(gpu, monkeypatch, outcome):
    """A launch that computes, one that does nothing, one that raises."""
    monkeypatch.setattr(launch_cuda, "_VERDICTS", {})
    for name in ("arange", "full"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *arguments, real=real, device=None, **keywords: real(*arguments, **keywords))
    generator = torch.random.get_rng_state()

    def run_all(self, slots, alpha, beta):
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            slots["OUT"].copy_(slots["A"].float() @ slots["B"].float().T)

    monkeypatch.setattr(launch_cuda.Compiled, "__call__", run_all)
    assert launch_cuda.direct_launch_works(True, H200, GPU) is (outcome is True)
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_host_descriptors_satisfy_tritons_own_encoder(monkeypatch):
    """triton's make_tensordesc_arg, of whichever version is installed, reads ours as it reads its own."""
    import triton
    from triton.backends.nvidia import driver as nvidia

    encoded = []
    utils = SimpleNamespace(
        **dict.fromkeys(("fill_tma_descriptor", "fill_tma_descriptor_tiled"), lambda *arguments: encoded.append(arguments) or "map")
    )
    # The encoder looks the active driver up by this name, in every version so far.
    monkeypatch.setattr(nvidia.triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(utils=utils)))
    metadata = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 64], "fp4_padded": False}
    tensor = torch.empty(128, 96, dtype=torch.float16)
    ours = launch_cuda.HostDescriptor(launch_cuda.Address(tensor.data_ptr(), tensor.dtype), [128, 96], [96, 1], [64, 64])
    theirs = triton.tools.tensor_descriptor.TensorDescriptor(tensor, [128, 96], [96, 1], [64, 64])
    assert nvidia.make_tensordesc_arg(ours, metadata) == nvidia.make_tensordesc_arg(theirs, metadata) == ["map", 128, 96, 96, 1]
    assert encoded[0] == encoded[1]
    assert encoded[0][0] == tensor.data_ptr()


@pytest.mark.parametrize("name", ["tiled", "tma"])
def test_a_real_binary_has_what_the_direct_launch_reads(name):
    problem = problem_of(128, 128, 128, "nt")
    variant = catalog.get(name)
    call = variant.plan(problem, dispatch.select(problem, H200, name).tile, H200).calls[0]
    compiled = build.compile_binary(build.specialise(call), 90)
    assert len(compiled.packed_metadata) >= 3
    assert compiled.metadata.shared <= H200.smem_per_block
    assert compiled.metadata.global_scratch_size == 0 == compiled.metadata.profile_scratch_size
    described = sum(isinstance(arg, Descriptor) for arg in call.args)
    assert len(compiled.metadata.tensordesc_meta or ()) == described == (0 if name == "tiled" else described)
    assert list(compiled.src.signature) == [*call.kernel.arg_names]
    assert list(inspect.signature(type(compiled).launch_metadata).parameters)[:3] == ["self", "grid", "stream"]


def test_a_cpu_prepares_without_compiling(monkeypatch):
    monkeypatch.setattr(build, "compile_binary", lambda *arguments: pytest.fail("a CPU compiles nothing"))
    problem = problem_of(16, 16, 16)
    prepared = launch.prepare(
        catalog.get("tiled"), problem, dispatch.select(problem, H200, "tiled").tile, H200, torch.device("cpu")
    )
    assert isinstance(prepared, launch.Interpreted)
    assert prepared.resources == ()
    assert prepared.compile_seconds == 0
    with pytest.raises(TypeError, match="neither a recipe nor a launch"):
        launch.Opaque(replace(catalog.get("aten"), launch=None), problem, torch.device("cpu"))
