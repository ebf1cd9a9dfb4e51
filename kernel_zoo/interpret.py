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
from kernel_zoo.spec import Descriptor, KernelCall, Recipe, Scalar, View

LOCK: Final = threading.RLock()
_WIDENED: Final = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def run(recipe: Recipe, slots: Mapping[str, torch.Tensor], scalars: Mapping[str, float]) -> None:
    """Execute a recipe's launches in order on CPU tensors.

    Args:
        recipe: launches that name slots.
        slots: a tensor for every slot, positioned at the slot's address; only its storage and offset are used.
        scalars: values of ALPHA and BETA.

    Raises:
        triton.runtime.errors.InterpreterError: the kernel failed.
    """
    host = {name: _widen(tensor) for name, tensor in slots.items()}
    if recipe.workspace_bytes:
        host["WS"] = torch.full((recipe.workspace_bytes // 4,), float("nan"), dtype=torch.float32)
    before = host["OUT"].clone() if host["OUT"] is not slots["OUT"] else None
    with LOCK, _interpreted_helpers(), np.errstate(all="ignore"):
        for call in recipe.calls:
            _launch(call, host, scalars)
    if before is not None:
        # Only what the kernel wrote: converting the rest back and forth could change the bits of a NaN beside the result.
        written = host["OUT"].view(torch.int32) != before.view(torch.int32)
        _storage(slots["OUT"])[written] = host["OUT"][written].to(slots["OUT"].dtype)


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """Everything from the tensor's address to the end of its storage, flat."""
    size = max(0, tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset())
    return tensor.as_strided((size,), (1,))


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy of its storage in fp32 where the interpreter cannot compute in its type."""
    return _storage(tensor).to(torch.float32) if tensor.dtype in _WIDENED else tensor


def _launch(call: KernelCall, host: Mapping[str, torch.Tensor], scalars: Mapping[str, float]) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    specialise(call)  # refuses what the compiler would: the interpreter drops constants it does not know
    constants = dict(call.constants)
    if constants.get("PRECISION") in ("bf16x3", "bf16x6", "tf32x3"):
        constants["PRECISION"] = "ieee"  # emulations of fp32 that the interpreter lacks
    args = [_argument(arg, host, scalars) for arg in call.args]
    InterpretedFunction(call.kernel.fn)[call.grid](*args, **constants)


def _argument(arg: object, host: Mapping[str, torch.Tensor], scalars: Mapping[str, float]) -> Any:
    if isinstance(arg, View):
        return host[arg.slot]
    if isinstance(arg, Descriptor):
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(host[arg.view.slot], list(arg.shape), list(arg.strides), list(arg.block))
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


__all__ = ["LOCK", "run"]
