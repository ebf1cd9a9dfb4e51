"""The GPU launch path without a GPU: a stand-in for the compiled kernel checks every argument and interprets the launch."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

import minblas
from kernel_zoo import build, catalog, interpret
from kernel_zoo.matrices import TORCH_DTYPES, matrix
from kernel_zoo.spec import Descriptor, Epilogue, GemmProblem, KernelCall, Operand, View
from minblas import binaries, dispatch, errors, launch, launch_adapters, launch_arguments, launch_check, launch_cuda, log, settings
from tests.kernel_zoo import gluon_kernels
from tests.minblas.fake_gpu import GPU, H200, STREAM, FakeBinary
from tests.minblas.oracle import close


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
    chosen = dict(launch_check._CHOSEN)
    launch_check._CHOSEN.clear()  # how it is launched would have to be found out, by launching
    assert not launch.is_ready(catalog.get("tiled"), problem, tile, H200, GPU)
    launch_check._CHOSEN.update(chosen)
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

    monkeypatch.setattr(launch_check, "_CHOSEN", dict.fromkeys((False, True)))
    launched = []

    def fake_kernel(kernel):
        def launcher(grid):
            def run(*arguments, num_warps, num_stages, launch_pdl=False, **constants):
                assert launch_pdl is constants.get("DEPENDENT", False)
                launched.append((kernel.__name__, grid, num_warps, num_stages))
                for value in arguments:
                    if hasattr(value, "block_shape"):
                        assert isinstance(value, TensorDescriptor)
                        assert isinstance(value.base, torch.Tensor)
                with interpret.LOCK, interpret._interpreted_helpers():
                    early = {"DEPENDENT": False} if "DEPENDENT" in constants else {}  # launches run one after another here
                    InterpretedFunction(kernel.fn)[grid](*arguments, **constants | early)

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

    monkeypatch.setattr(launch_check, "_CHOSEN", {})
    monkeypatch.setattr(triton, "__version__", "9.9.1")
    with caplog.at_level("WARNING", logger="minblas"):
        assert launch_check.adapter_for(False, H200, GPU) is None
        assert launch_check.adapter_for(False, H200, GPU) is None
    assert sum("triton 9.9.1 was not tested" in record.message for record in caplog.records) == 1


class Checked(launch_adapters.RunLaunch):
    """A launch that computes the check's product, or fails in a way of its own."""

    fault: ClassVar[object] = None
    launches: ClassVar[list[str]] = []

    def _made(self):
        return self.compute_directly

    def compute_directly(self, values):
        self.launches.append(type(self).__name__)
        if isinstance(self.fault, Exception):
            raise self.fault
        if self.fault != "does nothing":
            self.compute(values[4], values[7] + (self.fault == "another alpha"), values[8])

    def hooked(self, slots, alpha, beta, stream, enter, leave):
        self.launches.append("triton")
        self.compute(slots["OUT"].data_ptr(), alpha, beta)

    def compute(self, out, alpha, beta):
        slots = {FakeBinary.memory[address][0]: FakeBinary.memory[address][1] for address in FakeBinary.memory}
        assert slots["OUT"].data_ptr() == out
        product = slots["A"].float() @ slots["B"].float().T
        slots["OUT"].copy_(alpha * product + beta * slots["C"] + slots["BIAS"])


class CheckedNext(Checked):
    """What is tried after it."""


FAULTS = [None, "does nothing", "another alpha", RuntimeError("invalid argument"), LookupError("no such launcher")]


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_check_before_first_use(gpu, monkeypatch, caplog, described, fault):
    """The fastest adapter that does as triton's own launch is taken, one that does not is left out and named."""
    monkeypatch.setattr(launch_check, "_CHOSEN", {})
    monkeypatch.setattr(launch_check, "adapters", lambda version, native: (Checked, CheckedNext))
    monkeypatch.setattr(Checked, "fault", fault)
    monkeypatch.setattr(CheckedNext, "fault", None)
    monkeypatch.setattr(Checked, "launches", [])
    real = launch_check._operands

    def operands(device):
        slots = real(torch.device("cpu"))
        FakeBinary.memory = {tensor.data_ptr(): (name, tensor) for name, tensor in slots.items()}
        return slots

    monkeypatch.setattr(launch_check, "_operands", operands)
    monkeypatch.setattr(log, "_SAID", set())
    generator = torch.random.get_rng_state()
    accelerated = minblas.stats().accelerated
    with caplog.at_level("WARNING", logger="minblas"), minblas.accelerate("cpu"):
        chosen = launch_check.adapter_for(described, H200, GPU)
    assert minblas.stats().accelerated == accelerated, "what judges is torch's own"
    assert chosen is (Checked if fault is None else CheckedNext)
    assert Checked.launches[:2] == ["triton", "Checked"]
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert launch_check.adapter_for(described, H200, GPU) is chosen
    assert len(Checked.launches) == (2 if fault is None else 4)
    said = [record.getMessage() for record in caplog.records if "failed its check" in record.message]
    assert len(said) == (fault is not None)
    assert all(
        "Checked failed its check" in words and str(fault if isinstance(fault, Exception) else "") in words for words in said
    )


def test_how_kernels_are_launched_is_a_setting(gpu, monkeypatch):
    asked = []

    def adapters(version, *, native):
        asked.append(native)
        return (launch_adapters.RunLaunch,)

    monkeypatch.setattr(launch_check, "adapters", adapters)
    monkeypatch.setattr(launch_check, "_disagreement", lambda *arguments: "")
    for wanted, native in (("", [True]), ("native", [True]), ("python", [False]), ("triton", [])):
        monkeypatch.setattr(launch_check, "_CHOSEN", {})
        monkeypatch.setenv("MINBLAS_LAUNCH", wanted)
        asked.clear()
        _, prepared = tiled()
        assert asked == native
        assert isinstance(prepared._launches[0], launch_adapters.RunLaunch if native else launch_cuda.TritonLaunch)
    with pytest.raises(errors.SettingsError, match="MINBLAS_LAUNCH is 'cuda'"):
        settings.from_environment({"MINBLAS_LAUNCH": "cuda"})


def test_the_fastest_adapter_comes_first():
    from minblas.launch_native import NativeLaunch

    for version, python in (("3.6.0", launch_adapters.FlatLaunch), ("3.7.1", launch_adapters.NestedLaunch)):
        assert launch_adapters.adapters(version) == (NativeLaunch, python, launch_adapters.RunLaunch)
        assert launch_adapters.adapters(version, native=False) == (python, launch_adapters.RunLaunch)


def test_no_adapter_is_right(gpu, monkeypatch, caplog):
    monkeypatch.setattr(launch_check, "_CHOSEN", {})
    monkeypatch.setattr(launch_check, "_disagreement", lambda *arguments: "a product that differs")
    with caplog.at_level("WARNING", logger="minblas"):
        _, prepared = tiled()
    assert isinstance(prepared._launches[0], launch_cuda.TritonLaunch)
    assert prepared.direct == ()
    assert sum("no direct launch passed its check" in record.message for record in caplog.records) == 1


def test_a_kernel_that_the_adapter_does_not_know_is_run_by_triton(gpu, monkeypatch):
    class Particular(launch_adapters.RunLaunch):
        def _made(self):
            raise LookupError("a descriptor was not compiled to a tensor map")

    monkeypatch.setattr(launch_check, "_CHOSEN", dict.fromkeys((False, True), Particular))
    problem, prepared = tiled()
    assert type(prepared._launches[0]) is launch_adapters.RunLaunch
    check(problem, prepared, slots_of(problem))


def test_a_view_starts_inside_its_slot(monkeypatch):
    """What a direct launch passes, and what triton's own launch is given, start as many bytes into the slot as the view."""
    row, square = Operand.dense("bf16", 1, 8), Operand.dense("bf16", 64, 64)
    described = Descriptor(View("WS", square, 256), (64, 64), (64, 1), (64, 64))
    call = KernelCall(gluon_kernels.copy, (1,), (described, View("WS", row, 512), View("WS", row).T, 0))
    expand = lambda arg, metadata: ((lambda address: ("map", address)), ())  # noqa: E731
    arguments = launch_arguments.Arguments(call, SimpleNamespace(metadata=SimpleNamespace()), expand)
    slots = {"WS": torch.zeros(1024 + 64 * 64 * 2, dtype=torch.uint8)}
    values, start = launch_arguments.values_of(slots, 1.0, 0.0, STREAM), slots["WS"].data_ptr()
    assert {place: kept[values[index]] for place, index, kept in arguments.made} == {0: ("map", start + 256), 1: start + 512}
    assert {place: values[index] for place, index in arguments.gaps} == {2: start}
    theirs, shifted, whole, _ = launch_arguments.as_triton_takes_them(call, slots, 1.0, 0.0)
    assert isinstance(theirs, GluonDescriptor)
    assert theirs.layout == build.block_layout((64, 64), "bf16")
    assert (theirs.base.data_ptr(), shifted.data_ptr(), whole.data_ptr()) == (start + 256, start + 512, start)
    assert theirs.base.dtype == shifted.dtype == torch.bfloat16
    assert View("WS", row, 512).T.offset == 512


def test_what_is_kept_by_address_is_bounded(monkeypatch):
    monkeypatch.setattr(launch_arguments, "MOST_KEPT", 4)
    made = []
    kept = launch_arguments.ByAddress(lambda address: made.append(address) or -address, offset=16)
    for _ in range(2):
        assert [kept[address] for address in (0, 256, 512)] == [-16, -272, -528]
    assert made == [16, 272, 528]
    for address in range(0, 4096, 64):
        assert kept[address] == -address - 16
        assert len(kept) <= 4


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
    described = Descriptor(View("A", Operand.dense("fp16", 128, 96)), (128, 96), (96, 1), (64, 64))
    ours = launch_arguments.HostDescriptor(described, tensor.data_ptr())
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
