"""Which calls of gemm must be seen as a call of the op: those that something other than plain autograd is watching.

A dispatch mode (FakeTensorMode, make_fx, a FLOP counter, a profiler of somebody's), a tensor subclass that dispatches, a function
transform, autocast and forward-mode differentiation all work on operations. The op's own kernels come back to gemm when these have
had their turn; then their dispatch keys are out of force, and the answer here is no.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import forward_ad

from minblas.dynamo import unseen_by_dynamo
from minblas.errors import OutError
from minblas.guards import PLAIN

if TYPE_CHECKING:
    from torch import Tensor

_C: Final = torch._C
_KEYS: Final = _C.DispatchKey
_WATCHING: Final = (
    "Python", "PythonTLSSnapshot", "PreDispatch", "Functionalize", "AutocastCPU", "AutocastCUDA", "FuncTorchGradWrapper",
    "FuncTorchBatched", "FuncTorchVmapMode", "FuncTorchDynamicLayerBackMode", "FuncTorchDynamicLayerFrontMode",
)  # fmt: skip


def _bits(*names: str) -> int:
    """The dispatch keys of those names that this torch has, as bits."""
    sets = [_C.DispatchKeySet(getattr(_KEYS, name)).raw_repr() for name in names if hasattr(_KEYS, name)]
    return functools.reduce(operator.or_, sets, 0)


_WATCHED: Final = _bits(*_WATCHING)
_is_zero: Final = torch._is_zerotensor
_AUTOGRAD: Final = _bits("AutogradCPU", "AutogradCUDA") & ~_bits("CPU", "CUDA")


def must_be_seen(*operands: Tensor | None) -> bool:
    """Whether a call with these operands is to go through the op."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.layout is torch.strided]
    if not all(map(_C._has_storage, tensors)) or any(map(_is_zero, tensors)) or _C._get_tracing_state() is not None:
        return True  # a wrapper of torch.vmap, torch.func.grad or is_grads_batched; zeros without memory; torch.jit.trace
    forward_mode = forward_ad._current_level >= 0
    if not (
        forward_mode
        or _C._len_torch_dispatch_stack()
        or _C._are_functorch_transforms_active()
        or _C._is_any_autocast_enabled()
        or _C._dispatch_tls_is_dispatch_key_included(_KEYS.PreDispatch)
        or any(tensor.__class__ not in PLAIN for tensor in tensors)
    ):
        return False
    keys = functools.reduce(operator.or_, map(_C._dispatch_keys, tensors), _C._dispatch_tls_local_include_set())
    in_force: int = (keys - _C._dispatch_tls_local_exclude_set()).raw_repr()
    return bool(in_force & (_WATCHED | _AUTOGRAD if forward_mode else _WATCHED))


unseen_by_dynamo([must_be_seen], "it looks at the thread's dispatch keys")


def prepare_sharding(*operands: Any) -> None:
    """Teach DTensor the op where an operand is one.

    Raises:
        OutError: the last operand, out, is one.
        OperandError: this torch's DTensor cannot be told.
    """
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not any(isinstance(operand, module.DTensor) for operand in operands):
        return
    if isinstance(operands[-1], module.DTensor):
        raise OutError("out is a DTensor", "no out=: DTensor decides where the result is placed", "leave out= away")
    prepare_sharding_of_any()


def prepare_sharding_of_any() -> None:
    """Teach DTensor the op where this process has imported DTensor."""
    if "torch.distributed.tensor" in sys.modules:
        from minblas import sharding

        sharding.ensure_registered()


#: As torch._dynamo.assume_constant_result marks what is called once, while a graph is traced, and leaves nothing in it.
prepare_sharding_of_any._dynamo_marked_constant = True  # type: ignore[attr-defined]
