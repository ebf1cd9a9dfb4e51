"""A chosen variant made ready to run: compiled and loaded on a GPU, interpreted on a CPU, or handed to the variant's own launch.

`prepare` does all that is slow; what it returns is called with the tensors and holds none of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kernel_zoo import catalog
from kernel_zoo.spec import Arch, GemmProblem, Recipe, Resources, TileConfig, Variant
from minblas import log, settings
from minblas.inside import INSIDE

if TYPE_CHECKING:
    import torch

    from minblas.launch_adapters import DirectLaunch

#: The order in which a direct launch takes addresses.
SLOTS: Final = ("A", "B", "C", "BIAS", "OUT", "WS", "COUNTERS")
Slots = Mapping[str, "torch.Tensor"]

#: Emulations of fp32 that the interpreter computes as plain fp32: a CPU result would not be theirs.
_NOT_INTERPRETED: Final = ("bf16x3", "bf16x6", "tf32x3")
#: A program of a grid takes about 10 ms to interpret.
MOST_PROGRAMS: Final = 512


class Prepared(ABC):
    """A launch made ready: call it with tensors by slot, and alpha and beta.

    Attributes:
        variant: the name of what runs, which on a CPU may be aten where a kernel was chosen.
        reason: why, where that is aten.
        compile_seconds: what preparing cost.
        workspace_bytes: scratch memory taken from torch's allocator at each call.
        counters: int32 words of the stream's counters that it uses.
        index: the number of the GPU it was compiled and loaded for; None where there is none.
    """

    variant: str
    reason: str = ""
    compile_seconds: float = 0.0
    workspace_bytes: int = 0
    counters: int = 0
    index: int | None = None

    @abstractmethod
    def __call__(self, slots: Slots, alpha: complex, beta: complex) -> None:
        """Run it on the current stream of the slots' device."""

    @property
    def direct(self) -> tuple[DirectLaunch, ...]:
        """The same as launches that take addresses; empty where it can only be called with tensors."""
        return ()

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Shared memory, registers and instructions of each launch; empty where nothing was compiled."""
        return ()

    @property
    def spills(self) -> int:
        """Words of local memory that a thread's registers spill to, as the driver says; 0 where nothing was compiled."""
        return 0


class Opaque(Prepared):
    """A variant that launches by itself."""

    def __init__(self, variant: Variant, problem: GemmProblem, device: torch.device, reason: str = "") -> None:
        if variant.launch is None:
            raise TypeError(f"variant {variant.name} has neither a recipe nor a launch of its own")
        self.variant = variant.name
        self.reason = reason
        self._launch = variant.launch
        self._problem = problem
        self._index = device.index if device.type == "cuda" else None

    def __call__(self, slots: Slots, alpha: complex, beta: complex) -> None:
        """Run the variant's launch with the operands' device current."""
        with INSIDE:
            if self._index is not None:
                import torch

                if torch._C._cuda_getDevice() != self._index:
                    with torch.cuda.device(self._index):
                        self._launch(self._problem, slots, alpha, beta)
                    return
            self._launch(self._problem, slots, alpha, beta)


class Interpreted(Prepared):
    """A recipe run by triton's interpreter on CPU tensors."""

    def __init__(self, variant: Variant, recipe: Recipe) -> None:
        self.variant = variant.name
        self.workspace_bytes = recipe.workspace_bytes
        self.counters = recipe.counters
        self._recipe = recipe

    def __call__(self, slots: Slots, alpha: complex, beta: complex) -> None:
        """Interpret the launches in order."""
        from kernel_zoo import interpret

        # An empty operand is never read, and may lie past the end of its own storage.
        plain = {name: tensor.detach() if tensor.numel() else tensor.new_zeros(1) for name, tensor in slots.items()}
        interpret.run(self._recipe, plain, {"ALPHA": float(alpha.real), "BETA": float(beta.real)})


def prepare(
    variant: Variant, problem: GemmProblem, tile: TileConfig | None, arch: Arch, device: torch.device, *, forced: bool = False
) -> Prepared:
    """Make a variant ready for a problem on a device.

    Args:
        variant: what was chosen.
        problem: what it is to compute; the variant does not refuse it.
        tile: its tile; None for an opaque variant.
        arch: the device as the choice sees it.
        device: where the tensors live.
        forced: the caller named the variant: a CPU interprets it whatever it costs.

    Raises:
        LaunchError: the kernel needs more than the device has.
        Exception: whatever the compiler or the driver raised.
    """
    if variant.recipe is None or tile is None:
        return _opaque(variant, problem, device)
    recipe = variant.plan(problem, tile, arch)
    if device.type == "cuda":
        from minblas import launch_cuda

        return launch_cuda.Compiled(variant, recipe, arch, device)
    reason = _not_interpreted(variant, problem, recipe, forced)
    if reason:
        log.once("launch", "CPU tensors: %s; PyTorch's own product serves instead", reason)
        return Opaque(catalog.get("aten"), problem, device, f"CPU: {reason}")
    log.once("launch", "CPU tensors run in Triton's interpreter: right, and slow")
    return Interpreted(variant, recipe)


def is_ready(variant: Variant, problem: GemmProblem, tile: TileConfig | None, arch: Arch, device: torch.device) -> bool:
    """Whether `prepare` would neither compile nor load anything."""
    if variant.recipe is None or tile is None or device.type != "cuda":
        return True
    from minblas.binaries import BINARIES
    from minblas.launch_check import is_decided

    recipe = variant.plan(problem, tile, arch)
    return BINARIES.holds(recipe, device) and is_decided(recipe)


def _opaque(variant: Variant, problem: GemmProblem, device: torch.device) -> Prepared:
    if device.type != "cuda" and not variant.interpretable:
        reason = f"{variant.name} launches by itself and needs a GPU"
        log.once("launch", "CPU tensors: %s; PyTorch's own product serves instead", reason)
        return Opaque(catalog.get("aten"), problem, device, f"CPU: {reason}")
    return Opaque(variant, problem, device)


def _not_interpreted(variant: Variant, problem: GemmProblem, recipe: Recipe, forced: bool) -> str:
    """Why the interpreter is not to run this; "" where it may."""
    if not variant.interpretable:
        return f"{variant.name} cannot be interpreted"
    if problem.precision in _NOT_INTERPRETED:
        return f"{problem.precision} cannot be interpreted"
    work = problem.batch * problem.m * problem.n * max(problem.k, 1)
    cap = settings.current().interpret_cap
    programs = sum(math.prod(call.grid) for call in recipe.calls)
    if forced or (work <= cap and programs <= MOST_PROGRAMS):
        return ""
    return f"a product over the interpreter's cap ({cap} multiply-adds, {MOST_PROGRAMS} programs)"
