"""Compiled kernels on a GPU: one cache of loaded binaries, and the direct launch.

The direct launch calls the compiled kernel's C launcher with addresses instead of going through triton's JIT, which costs several
times as much host time. It skips triton's specialisation guards, so a plan may only be used for operands of the alignment and
strides it was made for: the plan cache's key sees to that. It is used for the triton versions it was tested with, after it gave
the right answer once in this process; otherwise triton's own launch is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from kernel_zoo import build, catalog
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import Arch, Descriptor, GemmProblem, KernelCall, Recipe, Resources, Scalar, Variant, View
from kernel_zoo.triton_compat import TESTED, is_tested
from minblas import log
from minblas.binaries import BINARIES
from minblas.launch import Prepared, Slots


class Address:
    """What triton's descriptor encoder reads of a tensor: where it starts and what it holds."""

    __slots__ = ("address", "dtype")

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address."""
        return self.address


class HostDescriptor:
    """A tensor descriptor with the attributes that triton's launcher reads, without the checks of its own class."""

    __slots__ = ("base", "block_shape", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(self, base: Address, shape: list[int], strides: list[int], block_shape: list[int]) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.block_shape = block_shape
        self.padding = "zero"
        self.round_f32_to_tf32 = False


class DirectLaunch:
    """One launch of a compiled kernel. Holds the argument list with gaps for addresses and scalars, and no tensor."""

    __slots__ = (
        "_arguments",
        "_binary",
        "_descriptors",
        "_function",
        "_grid",
        "_knobs",
        "_metadata",
        "_pointers",
        "_run",
        "_scalars",
    )

    def __init__(self, call: KernelCall, binary: Any, knobs: Any) -> None:
        self._binary = binary  # a strong reference: the module is unloaded with it
        self._run = binary.run
        self._function = binary.function
        self._metadata = binary.packed_metadata
        self._knobs = knobs
        self._grid = (*call.grid, 1, 1)[:3]
        names = call.kernel.arg_names
        # Constants take their places too: the launcher skips them, and a launch hook may want to read them.
        self._arguments: list[Any] = [*call.args, *(call.constants[name] for name in names[len(call.args) :])]
        numbered = list(enumerate(call.args))
        self._pointers = tuple((i, arg.slot) for i, arg in numbered if isinstance(arg, View))
        self._scalars = tuple((i, arg.name == "ALPHA") for i, arg in numbered if isinstance(arg, Scalar))
        self._descriptors = tuple(
            (i, arg.view.slot, TORCH_DTYPES[arg.view.dtype], list(arg.shape), list(arg.strides), list(arg.block))
            for i, arg in numbered
            if isinstance(arg, Descriptor)
        )

    def __call__(self, slots: Slots, addresses: Mapping[str, int], alpha: float, beta: float, stream: int) -> None:
        """Launch on a stream."""
        arguments = self._arguments.copy()
        for i, slot in self._pointers:
            arguments[i] = addresses[slot]
        for i, is_alpha in self._scalars:
            arguments[i] = alpha if is_alpha else beta
        for i, slot, dtype, shape, strides, block in self._descriptors:
            arguments[i] = HostDescriptor(Address(addresses[slot], dtype), shape, strides, block)
        enter, leave = self._knobs.launch_enter_hook, self._knobs.launch_exit_hook
        if _is_set(enter) or _is_set(leave):
            self._launch_hooked(slots, arguments, stream, enter, leave)
            return
        x, y, z = self._grid
        self._run(x, y, z, stream, self._function, self._metadata, None, None, None, *arguments)

    def _launch_hooked(self, slots: Slots, arguments: list[Any], stream: int, enter: Any, leave: Any) -> None:
        """Launch as triton itself does under a profiler; the hooks see tensors, not addresses."""
        for i, slot in self._pointers:
            arguments[i] = slots[slot]
        described = self._binary.launch_metadata(self._grid, stream, *arguments)
        self._run(*self._grid, stream, self._function, self._metadata, described, enter, leave, *arguments)


def _is_set(hook: Any) -> bool:
    """Whether a launch hook would do anything: None and an empty chain do not."""
    return hook is not None and bool(getattr(hook, "calls", True))


class TritonLaunch:
    """One launch through triton's own JIT: slower on the host, and right for any triton."""

    __slots__ = ("_call",)

    def __init__(self, call: KernelCall) -> None:
        self._call = call

    def __call__(self, slots: Slots, addresses: Mapping[str, int], alpha: float, beta: float, stream: int) -> None:
        """Launch on the current stream, which is the one given."""
        call = self._call
        arguments = [self._argument(arg, slots, alpha, beta) for arg in call.args]
        call.kernel[call.grid](*arguments, **call.constants, num_warps=call.num_warps, num_stages=call.num_stages)

    @staticmethod
    def _argument(arg: object, slots: Slots, alpha: float, beta: float) -> Any:
        if isinstance(arg, View):
            return _typed(slots[arg.slot], arg)
        if isinstance(arg, Descriptor):
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor(_typed(slots[arg.view.slot], arg.view), list(arg.shape), list(arg.strides), list(arg.block))
        if isinstance(arg, Scalar):
            return alpha if arg.name == "ALPHA" else beta
        return arg


def _typed(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """The slot's memory under the view's element type (a workspace is bytes)."""
    dtype = TORCH_DTYPES[view.dtype]
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


class Compiled(Prepared):
    """A recipe compiled and loaded on one GPU."""

    def __init__(self, variant: Variant, recipe: Recipe, arch: Arch, device: torch.device) -> None:
        self.variant = variant.name
        self.workspace_bytes = recipe.workspace_bytes
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._index: int = self._device.index
        started = time.perf_counter()
        self._binaries = [BINARIES.get(build.specialise(call), self._index, arch) for call in recipe.calls]
        self.compile_seconds = time.perf_counter() - started
        self._launches = [self._launch(call, binary, arch) for call, binary in zip(recipe.calls, self._binaries, strict=True)]

    def _launch(self, call: KernelCall, binary: Any, arch: Arch) -> DirectLaunch | TritonLaunch:
        scratch = getattr(binary.metadata, "global_scratch_size", 0) or getattr(binary.metadata, "profile_scratch_size", 0)
        described = any(isinstance(arg, Descriptor) for arg in call.args)
        if scratch or not direct_launch_works(described, arch, self._device):
            return TritonLaunch(call)
        import triton

        return DirectLaunch(call, binary, triton.knobs.runtime)

    def __call__(self, slots: Slots, alpha: complex, beta: complex) -> None:
        """Launch every call of the recipe on the device's current stream."""
        if torch._C._cuda_getDevice() == self._index:
            self._launch_all(slots, float(alpha.real), float(beta.real))
            return
        with torch.cuda.device(self._index):
            self._launch_all(slots, float(alpha.real), float(beta.real))

    def _launch_all(self, slots: Slots, alpha: float, beta: float) -> None:
        if self.workspace_bytes:
            slots = {**slots, "WS": torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self._device)}
        addresses = {name: tensor.data_ptr() for name, tensor in slots.items()}
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        for launch in self._launches:
            launch(slots, addresses, alpha, beta, stream)

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Read from the binaries' machine code: slow."""
        return tuple(build.resources(binary) for binary in self._binaries)

    @property
    def spills(self) -> int:
        """Triton asks the driver when it loads a binary."""
        return sum(getattr(binary, "n_spills", 0) or 0 for binary in self._binaries)


_VERDICTS: Final[dict[bool, bool]] = {}
_VERDICT_LOCK: Final = threading.RLock()


def direct_launch_works(described: bool, arch: Arch, device: torch.device) -> bool:
    """Whether the direct launch may be used, with tensor descriptors or without; found out once per process on a small product."""
    with _VERDICT_LOCK:
        if described not in _VERDICTS:
            _VERDICTS[described] = True  # the check below launches directly
            _VERDICTS[described] = _tested_version() and _self_check(described, arch, device)
        return _VERDICTS[described]


def _tested_version() -> bool:
    import triton

    if is_tested(triton.__version__):
        return True
    log.once(
        "launch",
        "triton %s was not tested with the direct launch; triton's own launch is used (tested: %s)",
        triton.__version__,
        ", ".join(TESTED),
    )
    return False


def _self_check(described: bool, arch: Arch, device: torch.device) -> bool:
    """Whether a directly launched kernel computes a small product of whole numbers exactly."""
    variant = catalog.get("tma" if described else "tiled")
    problem = GemmProblem.of(64, 64, 64, "fp16", "nt")
    tile = next((tile for tile in variant.space(problem, arch) if variant.refusal(problem, arch, tile) is None), None)
    if tile is None:
        return False
    with torch.cuda.device(device.index):
        ramp = torch.arange(64 * 64, device=device)  # no random numbers: the caller's generator is not ours to advance
        a, b = ((ramp * step % 5 - 2).half().reshape(64, 64) for step in (3, 7))
        out = torch.full((64, 64), float("nan"), dtype=torch.float16, device=device)
        try:
            Compiled(variant, variant.plan(problem, tile, arch), arch, device)({"A": a, "B": b, "OUT": out}, 1.0, 0.0)
            right = torch.equal(out.cpu().float(), a.cpu().float() @ b.cpu().float().T)
        except Exception as error:  # whatever it is, triton's own launch is tried next
            log.once(
                "launch", "the direct launch failed its check (%s: %s); triton's own launch is used", type(error).__name__, error
            )
            return False
    if not right:
        log.once("launch", "the direct launch gave a wrong product in its check; triton's own launch is used")
    return right
