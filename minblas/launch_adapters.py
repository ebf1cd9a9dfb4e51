"""How a compiled kernel is launched with addresses: one class for each calling convention that triton's C launcher has had.

Triton's JIT costs several times as much host time as the launch itself, and what lies between `CompiledKernel.run` and the C
function under it as much again. An adapter calls that function. Whether a launch is cooperative or programmatically dependent is
read off the compiled kernel, as triton reads it.

`adapters` says what the installed triton may be launched by; `launch_check` finds out which of them do as triton does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from kernel_zoo.spec import Descriptor, KernelCall
from kernel_zoo.triton_compat import triton
from minblas.launch import Slots
from minblas.launch_arguments import VALUES, Arguments, HostDescriptor, as_triton_takes_them, constants_of

Launch = Callable[[tuple[Any, ...]], None]

_STREAM: Final = 3  # its place in the list, after the grid
_NO_HOOKS: Final = (None, None, None)  # what they would be told, the one before, the one after
_NO_SCRATCH: Final = (None, None)  # global, profile


class DirectLaunch(ABC):
    """One launch of a compiled kernel. Holds no tensor.

    Attributes:
        launch: called with VALUES, launches; no hook is called. A function, which costs less to call than a method.

    Raises:
        LookupError: the compiled kernel is not launched as this class expects.
    """

    __slots__ = ("_binary", "_call", "_grid", "_index", "launch")

    def __init__(self, call: KernelCall, binary: Any, index: int) -> None:
        """`index` is the number of the GPU that the kernel is loaded on."""
        self._call = call
        self._index = index
        self._binary = binary  # a strong reference: the module is unloaded with it
        self._grid = (*call.grid, 1, 1)[:3]
        self.launch: Launch = self._made()

    @abstractmethod
    def _made(self) -> Launch:
        """The function that launches, with everything in place that is known before a call."""

    def hooked(self, slots: Slots, alpha: float, beta: float, stream: int, enter: Any, leave: Any) -> None:
        """Launch as triton itself does under a profiler: the hooks see tensors, not addresses."""
        binary = self._binary
        given = [*as_triton_takes_them(self._call, slots, alpha, beta), *constants_of(self._call)]
        described = binary.launch_metadata(self._grid, stream, *given)
        binary.run(*self._grid, stream, binary.function, binary.packed_metadata, described, enter, leave, *given)


class RunLaunch(DirectLaunch):
    """Through `CompiledKernel.run`, whose signature has been the same in every triton so far."""

    __slots__ = ()

    def _made(self) -> Launch:
        binary = self._binary
        head = (*self._grid, 0, binary.function, binary.packed_metadata, *_NO_HOOKS)
        return _flat(binary.run, Arguments(self._call, binary, _host_descriptor, head))


class FlatLaunch(DirectLaunch):
    """Triton 3.6: a C function compiled per signature, which takes everything in one flat list."""

    __slots__ = ()

    def _made(self) -> Launch:
        binary, run = self._binary, self._binary.run
        how = (run.launch_cooperative_grid, run.launch_pdl)
        head = (*self._grid, 0, binary.function, *how, *_NO_SCRATCH, binary.packed_metadata, *_NO_HOOKS)
        return _flat(_under_descriptors(run.launch), Arguments(self._call, binary, tensor_map, head))


class NestedLaunch(DirectLaunch):
    """Triton 3.7: one C function for all kernels, which is told how to read the kernel's arguments and takes them as one list."""

    __slots__ = ()

    def _made(self) -> Launch:
        binary, run = self._binary, self._binary.run
        how = (run.launch_cooperative_grid, run.launch_pdl, binary.packed_metadata)
        reading = (run.arg_annotations, run.kernel_signature)
        after = (binary.function, *how, *_NO_HOOKS, *_NO_SCRATCH, *reading)
        return _nested(triton.runtime.driver.active.utils.launch, self._grid, after, Arguments(self._call, binary, tensor_map))


def _flat(function: Callable[..., None], arguments: Arguments) -> Launch:
    """Calls a function with everything in one list, the stream after the grid."""
    ready, made = arguments.ready, arguments.made
    gaps = (*arguments.gaps, (_STREAM, VALUES.index("STREAM")))

    def launch(values: tuple[Any, ...]) -> None:
        filled = ready.copy()
        for i, j in gaps:
            filled[i] = values[j]
        for i, j, kept in made:
            filled[i] = kept[values[j]]
        function(*filled)

    return launch


def _nested(function: Callable[..., None], before: tuple[int, ...], after: tuple[Any, ...], arguments: Arguments) -> Launch:
    """Calls a function with the kernel's own arguments in a list of their own, the last of all."""
    ready, gaps, made = arguments.ready, arguments.gaps, arguments.made

    def launch(values: tuple[Any, ...]) -> None:
        filled = ready.copy()
        for i, j in gaps:
            filled[i] = values[j]
        for i, j, kept in made:
            filled[i] = kept[values[j]]
        function(*before, values[-1], *after, filled)

    return launch


def adapters(version: str, *, native: bool = True) -> tuple[type[DirectLaunch], ...]:
    """What a version of triton may be launched by, fastest first; `native` is with the one that is written in C."""
    from minblas.launch_native import NativeLaunch

    major, minor = (int(part) for part in version.split(".")[:2])
    python = FlatLaunch if (major, minor) <= (3, 6) else NestedLaunch
    return (NativeLaunch, python, RunLaunch) if native else (python, RunLaunch)


def launch_hooks() -> tuple[Any, Any] | None:
    """Triton's hooks before and after a launch, as profilers set them; None where neither would do anything."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    # A chain of hooks has `calls`; whatever else somebody put in its place is called.
    if (enter is not None and getattr(enter, "calls", True)) or (leave is not None and getattr(leave, "calls", True)):
        return enter, leave
    return None


def _under_descriptors(launch: Any) -> Callable[..., None]:
    """The C function, also where triton wrapped it in one that expands descriptors first."""
    code = getattr(launch, "__code__", None)
    if code is None:
        return launch  # type: ignore[no-any-return]
    cells = dict(zip(code.co_freevars, launch.__closure__ or (), strict=True))
    if "launcher" not in cells:
        raise LookupError(f"triton's launcher is wrapped in {launch.__qualname__}, which holds {sorted(cells)} and no launcher")
    return cells["launcher"].cell_contents  # type: ignore[no-any-return]


def _host_descriptor(described: Descriptor, metadata: Any) -> tuple[Callable[[int], Any], Sequence[int]]:
    """A descriptor that triton's launcher encodes at every launch."""
    return (lambda address: HostDescriptor(described, address)), ()


def tensor_map(described: Descriptor, metadata: Any) -> tuple[Callable[[int], Any], Sequence[int]]:
    """What triton's launcher makes of a descriptor: an encoded map, the sizes and the strides."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    rest = [*described.shape, *described.strides]
    if metadata is None:
        raise LookupError("a descriptor was not compiled to a tensor map")
    made = make_tensordesc_arg(HostDescriptor(described, 1 << 20), metadata)  # any aligned address shows its form
    if made[1:] != rest:
        raise LookupError(f"triton makes a map and {made[1:]} of a descriptor instead of a map and {rest}")
    return (lambda address: make_tensordesc_arg(HostDescriptor(described, address), metadata)[0]), rest
