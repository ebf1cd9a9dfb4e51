"""Running a recipe on the CPU through triton's interpreter, whatever the process did with triton before.

The interpreter executes a kernel's Python on numpy arrays. Three of its habits are worked around here rather than in the
kernels: bf16 and fp8 arithmetic acts on raw bits, so such operands are widened to fp32 and the result is rounded to nearest
even afterwards; library helpers (tl.sum, tl.cdiv, ...) cannot be called by an interpreted kernel unless triton was imported
under TRITON_INTERPRET, so they are interpreted too; and none of it is thread-safe, so one lock is held, which whoever compiles in
the same process takes too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from kernel_zoo.build import specialise
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import Descriptor, KernelCall, Recipe, Scalar, View, cdiv
from kernel_zoo.triton_compat import is_gluon

LOCK: Final = threading.RLock()
_OURS: Final = ("WS", "COUNTERS")  # slots of raw bytes: their views choose the type
_WIDENED: Final = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def run(recipe: Recipe, slots: Mapping[str, torch.Tensor], scalars: Mapping[str, float]) -> None:
    """Execute a recipe's launches in order on CPU tensors.

    Args:
        recipe: launches that name slots.
        slots: a tensor for every slot, positioned at the slot's address; only its storage and offset are used.
        scalars: values of ALPHA and BETA.

    Raises:
        triton.runtime.errors.InterpreterError: the kernel failed.
        DirtyCountersError: the launches left counters that are not zero.
    """
    host = {name: _widen(tensor) for name, tensor in slots.items()}
    if recipe.workspace_bytes:  # every byte 0xff: NaN in all floating types
        host["WS"] = torch.full((cdiv(recipe.workspace_bytes, 4),), -1, dtype=torch.int32).view(torch.float32)
    if recipe.counters:
        host["COUNTERS"] = torch.zeros(recipe.counters, dtype=torch.int32)
    before = {name: host[name].clone() for name, tensor in slots.items() if host[name] is not tensor}
    memory = _Memory(host, frozenset(before))
    with LOCK, _interpreted_helpers(), np.errstate(all="ignore"):
        for call in recipe.calls:
            _launch(call, memory, scalars)
    for name, old in before.items():
        # Only what the kernel wrote: converting the rest back and forth could change the bits of a NaN beside the result.
        written = host[name].view(torch.int32) != old.view(torch.int32)
        if written.any():  # autograd counts an assignment of nothing as a change, too
            _storage(slots[name])[written] = host[name][written].to(slots[name].dtype)
    if recipe.counters and host["COUNTERS"].any():
        dirty = host["COUNTERS"].nonzero().flatten()
        raise DirtyCountersError(
            f"{len(dirty)} of {recipe.counters} counters are not zero after {recipe.calls[-1].kernel.__name__}, the first at "
            f"{int(dirty[0])}; needed: zero, which the next launch on the stream starts from"
        )


class DirtyCountersError(RuntimeError):
    """A kernel did not leave its counters as it found them."""


class _Memory:
    """What kernels see of the slots: memory under a view's element type, from where the view starts.

    The views of a slot share its memory, but for those of a workspace in a type that is widened: such a view has memory of its own,
    shared by all with the same start and type.
    """

    def __init__(self, host: Mapping[str, torch.Tensor], widened: frozenset[str]) -> None:
        self._host = host
        self._widened = widened
        self._apart: dict[tuple[str, int, str], torch.Tensor] = {}

    def at(self, view: View) -> torch.Tensor:
        """The memory behind a view."""
        whole, dtype = self._host[view.slot], TORCH_DTYPES[view.dtype]
        if view.slot in self._widened:  # as many elements as the slot itself has
            return whole[view.offset // dtype.itemsize :] if view.offset else whole
        if whole.dtype == dtype:
            return _storage(whole)[view.offset // dtype.itemsize :] if view.offset else whole
        if dtype not in _WIDENED:
            return whole.view(torch.uint8)[view.offset :].view(dtype) if view.slot in _OURS else whole
        if view.slot not in _OURS:
            return whole
        place = (view.slot, view.offset, view.dtype)
        if place not in self._apart:
            count = (whole.numel() * whole.element_size() - view.offset) // dtype.itemsize
            self._apart[place] = torch.full((count,), float("nan"), dtype=torch.float32)
        return self._apart[place]


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """Everything from the tensor's address to the end of its storage, flat."""
    size = max(0, tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset())
    return tensor.as_strided((size,), (1,))


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy of its storage in fp32 where the interpreter cannot compute in its type."""
    return _storage(tensor).to(torch.float32) if tensor.dtype in _WIDENED else tensor


def _launch(call: KernelCall, memory: _Memory, scalars: Mapping[str, float]) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    if is_gluon(call.kernel):
        raise TypeError(f"{call.kernel.__name__} is written in Gluon, which triton's interpreter cannot run")
    specialise(call)  # refuses what the compiler would: the interpreter drops constants it does not know
    constants = dict(call.constants)
    if constants.get("PRECISION") in ("bf16x3", "bf16x6", "tf32x3"):
        constants["PRECISION"] = "ieee"  # emulations of fp32 that the interpreter lacks
    if "DEPENDENT" in constants:
        constants["DEPENDENT"] = False  # launches run one after another
    args = [_argument(arg, memory, scalars) for arg in call.args]
    InterpretedFunction(call.kernel.fn)[call.grid](*args, **constants)


def _argument(arg: object, memory: _Memory, scalars: Mapping[str, float]) -> Any:
    if isinstance(arg, View):
        return memory.at(arg)
    if isinstance(arg, Descriptor):
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(memory.at(arg.view), list(arg.shape), list(arg.strides), list(arg.block))
    return scalars[arg.name] if isinstance(arg, Scalar) else arg


@contextmanager
def _interpreted_helpers() -> Iterator[None]:
    """Let interpreted kernels call any jitted function, triton's own library included."""
    import triton.compiler.code_generator  # noqa: F401  (captures library functions when imported: must not see patched ones)
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = interpreter.InterpretedFunction(self.fn)
        scope = interpreter._patch_lang(self.fn)
        try:
            return function.rewrite()(*args, **kwargs)
        finally:
            scope.restore()

    original = JITFunction.__call__
    JITFunction.__call__ = call
    outer = interpreter._patch_lang(tl.standard.sum.fn)  # triton.language.core, which library helpers use
    try:
        yield
    finally:
        outer.restore()
        JITFunction.__call__ = original


__all__ = ["LOCK", "DirtyCountersError", "run"]
