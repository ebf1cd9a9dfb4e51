"""A warm call: one C-level check recognises the operands, and the plan's launches get their addresses."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from kernel_zoo.triton_compat import triton
from minblas.counters import ZEROED
from minblas.guards import PLAIN, can_recognise, guards_of, marked_view
from minblas.signature import lows_of

if TYPE_CHECKING:
    from torch import Tensor

    from minblas.plan import LaunchPlan

    Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]

_ALIGNED: Final = 15  # an address divides by 16 bytes where these bits are 0
_BYTES: Final = torch.uint8
_DENSE: Final = (1,)

#: Tells autograd that tensors change, as torch's own functions do; called before they are written.
written: Callable[[tuple[Tensor, ...]], None] = torch._C._increment_version

_grad_enabled = torch.is_grad_enabled
_fp32_precision = torch._C._get_fp32_precision_getter


class Route:
    """A way to a plan for operands of one description. `serve` computes, or returns None for operands that it is not for.

    Attributes:
        plan: where it leads, as far as the cache knows; a plan's own route does not say.
        next: the route to try where this one does not serve.
        pattern: which operands there are, and which are one object; see `pattern_of`.
    """

    __slots__ = ("_check", "_conditions", "_low", "_lows", "_mark", "_pick", "next", "pattern", "plan")

    def __init__(self, plan: LaunchPlan, given: Given, precision: tuple[str, str] | None) -> None:
        places = _distinct(given)
        tensors = [tensor for i, tensor in enumerate(given) if i in places and tensor is not None]
        self.plan: LaunchPlan | None = None
        self.next: Route | None = None
        self.pattern = pattern_of(*given)
        self._mark = marked_view()
        self._check: Callable[..., bool] = guards_of([*tensors, self._mark])
        self._pick: Callable[[Given], tuple[Tensor, ...]] = (
            operator.itemgetter(*places) if len(places) > 1 else lambda given: given[:1]
        )
        self._lows = lows_of(tensors)
        self._low = _any_bits(self._lows)
        conditions: list[Callable[[], bool]] = []
        if precision is not None:
            kind, chosen = precision
            conditions.append(lambda: _fp32_precision(kind, "matmul") == chosen)
        if any(tensor.requires_grad for tensor in tensors):
            conditions.append(lambda: not _grad_enabled())
        self._conditions = tuple(conditions)

    def serve(
        self,
        plan: LaunchPlan,
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        bias: Tensor | None,
        out: Tensor | None,
        alpha: complex,
        beta: complex,
    ) -> Tensor | None:
        """Compute by the plan; None where it is not for these operands. Their pattern must be the route's."""
        given = self._pick((a, b, c, bias, out))
        if not self._check(*given, self._mark) or lows_of(given) != self._lows:
            return None
        for holds in self._conditions:
            if not holds():
                return None
        plan.calls += 1
        plan.used = True
        return plan.run(a, b, c, bias, out, alpha, beta)


class DirectRoute(Route):
    """A route to launches that take addresses, on a GPU."""

    __slots__ = (
        "_counters", "_dtype", "_empty", "_enter", "_guarded", "_index", "_knobs", "_launches", "_leave", "_plain", "_scratch",
        "_shape", "_span_a", "_span_b", "_span_out", "_stream", "_strides", "_workspace",
    )  # fmt: skip

    def __init__(self, plan: LaunchPlan, given: Given, precision: tuple[str, str] | None) -> None:
        super().__init__(plan, given, precision)
        _, _, c, bias, _ = given
        self._plain = c is None and bias is None and given[0] is not given[1]
        self._launches = tuple(direct.launch for direct in plan.direct)
        self._workspace, self._counters = plan.workspace_bytes, plan.counters
        self._scratch = bool(self._workspace or self._counters)
        self._shape, self._strides, self._dtype = plan.shape, plan.strides, plan.dtype
        self._span_a, self._span_b, self._span_out = (plan.spans[name] for name in ("a", "b", "out"))
        self._index = plan.index
        self._guarded = torch.cuda.device_count() > 1
        self._empty = _empty_on_gpu()
        self._stream: Callable[..., int] = torch._C._cuda_getCurrentRawStream
        self._knobs = triton.knobs.runtime
        self._enter, self._leave = self._knobs.launch_enter_hook, self._knobs.launch_exit_hook

    def serve(
        self,
        plan: LaunchPlan,
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        bias: Tensor | None,
        out: Tensor | None,
        alpha: complex,
        beta: complex,
    ) -> Tensor | None:
        """Compute by the plan; None where it is not for these operands. Their pattern must be the route's."""
        if self._plain:
            if not (self._check(a, b, self._mark) if out is None else self._check(a, b, out, self._mark)):
                return None
            at_a, at_b, at_c, at_bias = a.data_ptr(), b.data_ptr(), 0, 0
        else:
            if not self._check(*self._pick((a, b, c, bias, out)), self._mark):
                return None
            at_a, at_b = a.data_ptr(), b.data_ptr()
            at_c = 0 if c is None else c.data_ptr()
            at_bias = 0 if bias is None else bias.data_ptr()
            if not (at_c or c is None) or not (at_bias or bias is None):
                return None
        at_out = 0 if out is None else out.data_ptr()
        if not (at_a and at_b and (at_out or out is None)):
            return None  # memory that was freed: the long way says so
        low = (at_a | at_b | at_c | at_bias | at_out) & _ALIGNED
        if low != self._low or (low and lows_of(self._pick((a, b, c, bias, out))) != self._lows):
            return None
        for holds in self._conditions:
            if not holds():
                return None
        plan.calls += 1
        plan.used = True
        enter, leave = self._knobs.launch_enter_hook, self._knobs.launch_exit_hook
        if (
            enter is not self._enter or leave is not self._leave or enter.calls or leave.calls
            or (self._guarded and torch._C._cuda_getDevice() != self._index)
        ):  # fmt: skip
            return plan.run(a, b, c, bias, out, alpha, beta)
        if out is None:
            out = self._empty(self._shape, self._strides, self._dtype)
            at_out = out.data_ptr()
        else:
            end = at_out + self._span_out
            if (
                (at_a < end and at_out < at_a + self._span_a)
                or (at_b < end and at_out < at_b + self._span_b)
                or not self._plain
            ):  # fmt: skip
                plan.check_overlap(a, b, c, bias, out)
            written((out,))
        stream = self._stream(self._index)
        if self._scratch:
            workspace = self._empty((self._workspace,), _DENSE, _BYTES) if self._workspace else None
            counters = ZEROED.get(self._counters, self._index or 0, stream) if self._counters else None
            at_workspace = 0 if workspace is None else workspace.data_ptr()
            at_counters = 0 if counters is None else counters.data_ptr()
            values = (at_a, at_b, at_c, at_bias, at_out, at_workspace, at_counters, alpha, beta, stream)
        else:
            values = (at_a, at_b, at_c, at_bias, at_out, 0, 0, alpha, beta, stream)
        for launch in self._launches:
            launch(values)
        return out


def route_to(plan: LaunchPlan, given: Given, precision: tuple[str, str] | None = None) -> Route | None:
    """A route to a plan for operands like these; None where they cannot be recognised.

    Args:
        plan: it serves them.
        given: a, b, c, bias and out.
        precision: the kind of device whose setting says how fp32 products are formed, and what it says; None where none matters.
    """
    tensors = [given[i] for i in _distinct(given)]
    if len({id(tensor) for tensor in tensors}) < len(tensors) or not can_recognise():
        return None  # torch's check wants different objects
    if any(tensor.__class__ not in PLAIN for tensor in tensors):
        return None  # torch's check does not keep the class that it compares with alive
    direct = plan.direct and _has_chains() and all(tensor.data_ptr() for tensor in tensors if tensor is not None)
    return (DirectRoute if direct else Route)(plan, given, precision)


def pattern_of(
    a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, out: Tensor | None
) -> tuple[bool, bool, bool, bool, bool]:
    """Which operands there are, and which are one object where that is usual: a matrix squared, a c that is written in place."""
    return a is b, c is None, c is out, bias is None, out is None


def _distinct(given: Given) -> list[int]:
    """The places of the operands that the pattern does not make others of."""
    a, b, c, _, out = given
    return [i for i, tensor in enumerate(given) if tensor is not None and not (i == 1 and a is b) and not (i == 2 and c is out)]


def _any_bits(lows: list[int]) -> int:
    bits = 0
    for low in lows:
        bits |= low
    return bits


def _has_chains() -> bool:
    """Triton's launch hooks are the chains that they are made as, which say whether they hold anything."""
    runtime = triton.knobs.runtime
    return all(hasattr(hook, "calls") for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook))


def _empty_on_gpu() -> Callable[[Any, Any, torch.dtype], Tensor]:
    """Memory on the current GPU for sizes, strides and a dtype: torch's shortest way, which compiled code takes."""
    made: Callable[[Any, Any, torch.dtype], Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    return made or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda"))
