"""Recognising operands by one C-level check.

The check is torch's own `TensorGuards`, by which compiled code recognises tensors: class, dtype, device, sizes, strides, whether a
gradient is wanted, and the dispatch keys as the thread's modes change them. So a conjugate view, a tensor inside vmap, or a call
under a dispatch mode, autocast or inference mode is not taken for a plain one. It is a private name of torch: a probe on small CPU
tensors must see it tell all of that apart, or plans are found by their whole key alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minblas import log

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

#: Types whose memory is their own; others are looked at by the cold path.
PLAIN: Final[frozenset[Any]] = frozenset((torch.Tensor, torch.nn.Parameter))

_is_hidden = torch._C._dispatch_tls_is_dispatch_key_excluded
_VIEW_KEYS = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)


def guards_of(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A check that is true of as many tensors like these, each another object, in a thread whose modes are as they are now."""
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    check: Callable[..., bool] = guards.check
    return check


def can_recognise() -> bool:
    """Whether checks can be made here and now.

    They cannot where torch's own is not what it was, and not inside a dispatch mode's handler: there the keys that conjugate and
    negative views have are hidden from everyone.
    """
    return guards_work() and not any(map(_is_hidden, _VIEW_KEYS))


@cache
def marked_view() -> Tensor:
    """A view that is conjugate and negative, to be checked beside the operands: it fails where its keys are hidden."""
    return _in_a_plain_thread(lambda: torch._neg_view(torch.zeros((), dtype=torch.complex64).conj()))


@cache
def guards_work() -> bool:
    """Whether this torch's check tells apart what a plan may not confuse; said once where it does not."""
    confused = _in_a_plain_thread(_confused)
    if confused:
        words = "torch %s: its tensor guards confuse %s; plans are found by their whole key, which takes longer"
        log.once("launch", words, torch.__version__, ", ".join(confused))
    return not confused


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that must see operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Subclass(torch.Tensor):
    pass


def _confused() -> list[str]:
    """What the check takes for a plain matrix, of all that is not to be taken for one; or how it fails."""
    try:
        matrix, complex_ = torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.complex64)
        check, check_complex = guards_of([matrix]), guards_of([complex_])
        others = {
            "sizes": torch.zeros(4, 7)[:, :5],
            "strides": torch.zeros(4, 7)[:, :6],
            "rank": torch.zeros(1, 4, 6),
            "dtypes": torch.zeros(4, 6, dtype=torch.int32),
            "devices": torch.zeros(4, 6, device="meta"),
            "gradients": torch.zeros(4, 6, requires_grad=True),
            "negative views": torch._neg_view(torch.zeros(4, 6)),
            "subclasses": torch.zeros(4, 6).as_subclass(_Subclass),
            "parameters": torch.nn.Parameter(torch.zeros(4, 6), requires_grad=False),
        }
        confused = [name for name, other in others.items() if check(other)]
        confused += ["conjugate views"] if check_complex(complex_.conj()) else []
        confused += [] if check(torch.ones(4, 6)) else ["equal tensors"]
        with _Mode():  # type: ignore[no-untyped-call]
            confused += ["dispatch modes"] if check(matrix) else []
        with torch.autocast("cpu", torch.bfloat16):
            confused += ["autocast"] if check(matrix) else []
        with torch.inference_mode():
            confused += ["inference mode"] if check(matrix) else []
    except Exception as error:  # whatever a torch of another version raises
        return [f"{type(error).__name__}: {error}"]
    return confused


def _in_a_plain_thread(function: Callable[[], T]) -> T:
    """A function's result from a thread where no mode, transform or guard of the caller's is in force."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]
