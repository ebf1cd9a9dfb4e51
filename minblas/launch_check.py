"""Which adapter launches kernels here: the fastest that did exactly as triton's own launch, found out once at first use.

A version of triton that was not tested is launched by its own JIT, and so is one that no adapter agrees with; either is said once.
"""

from __future__ import annotations

import threading
from typing import Final

import torch

from kernel_zoo import build, catalog
from kernel_zoo.spec import Arch, Descriptor, Epilogue, GemmProblem, KernelCall, Operand, Recipe
from kernel_zoo.triton_compat import TESTED, is_tested
from minblas import log, settings
from minblas.binaries import BINARIES
from minblas.inside import with_torchs_own
from minblas.launch_adapters import DirectLaunch, adapters
from minblas.launch_arguments import values_of

_CHOSEN: Final[dict[bool, type[DirectLaunch] | None]] = {}
_LOCK: Final = threading.RLock()
_SIZE: Final = 64
_ALPHA: Final = 2.0
_BETA: Final = -1.0


def adapter_for(described: bool, arch: Arch, device: torch.device) -> type[DirectLaunch] | None:
    """What to launch by, kernels with tensor descriptors or without; None where it is triton's JIT."""
    with _LOCK:
        if described not in _CHOSEN:
            _CHOSEN[described] = _choose(described, arch, device)
        return _CHOSEN[described]


def is_decided(recipe: Recipe) -> bool:
    """Whether it is known how a recipe's kernels are launched, so that nothing has to be tried for it."""
    return all(has_descriptors(call) in _CHOSEN for call in recipe.calls)


def has_descriptors(call: KernelCall) -> bool:
    """Whether a launch passes tensor descriptors."""
    return any(isinstance(arg, Descriptor) for arg in call.args)


def _choose(described: bool, arch: Arch, device: torch.device) -> type[DirectLaunch] | None:
    import triton

    version, wanted = triton.__version__, settings.launch()
    if wanted == "triton":
        return None
    if not is_tested(version):
        words = "triton %s was not tested with the direct launch; triton's own launch is used (tested: %s)"
        log.once("launch", words, version, ", ".join(TESTED))
        return None
    for adapter in adapters(version, native=wanted == "native"):
        try:
            wrong = _disagreement(adapter, described, arch, device)
        except Exception as error:  # whatever it is, the next way is tried
            wrong = f"{type(error).__name__}: {error}"
        if not wrong:
            return adapter
        log.once("launch", "triton %s: %s failed its check (%s) and is not used", version, adapter.__name__, wrong)
    log.once("launch", "triton %s: no direct launch passed its check; triton's own launch is used", version)
    return None


@with_torchs_own
def _disagreement(adapter: type[DirectLaunch], described: bool, arch: Arch, device: torch.device) -> str:
    """What is wrong with a small product that is launched directly, beside the same binary launched by triton; "" where nothing is.

    Every kind of argument takes part: addresses, integers, scalars and, where `described`, tensor descriptors.
    """
    variant = catalog.get("tma" if described else "tiled")
    problem = GemmProblem.of(_SIZE, _SIZE, _SIZE, "fp16", "nt", epilogue=_everything())
    tiles = (tile for tile in variant.space(problem, arch) if variant.refusal(problem, arch, tile) is None)
    tile = next(tiles, None)
    if tile is None:
        return f"{variant.name} has no tile for it on {arch.name}"
    (call,) = variant.plan(problem, tile, arch).calls
    with torch.cuda.device(device.index):
        launch = adapter(call, BINARIES.get(build.specialise(call), device.index, arch), device.index)
        slots = _operands(device)
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        launch.hooked(slots, _ALPHA, _BETA, stream, None, None)
        theirs = slots["OUT"].cpu()
        slots["OUT"].fill_(float("nan"))
        launch.launch(values_of(slots, _ALPHA, _BETA, stream))
        ours = slots["OUT"].cpu()
    a, b, c, bias = (slots[name].cpu().float() for name in ("A", "B", "C", "BIAS"))
    if not torch.equal(theirs.float(), _ALPHA * (a @ b.T) + _BETA * c + bias):
        return "triton's own launch gave a wrong product"
    return "" if torch.equal(ours, theirs) else "a product that differs from the one of triton's own launch"


def _everything() -> Epilogue:
    return Epilogue("x", "x", Operand.dense("fp16", _SIZE, _SIZE), Operand("fp16", _SIZE, _SIZE, (0, 0, 1)))


def _operands(device: torch.device) -> dict[str, torch.Tensor]:
    """Small whole numbers, so that the product is exact. Not random ones: the caller's generator is not ours to advance."""
    ramp = torch.arange(_SIZE * _SIZE, device=device)
    a, b, c = ((ramp * step % 5 - 2).half().reshape(_SIZE, _SIZE) for step in (3, 7, 11))
    bias = (ramp[:_SIZE] % 7 - 3).half()
    return {"A": a, "B": b, "C": c, "BIAS": bias, "OUT": torch.full_like(a, float("nan"))}
