"""One of torch's products computed by minblas, below autograd; None where it is to stay torch's.

A warm call goes by a route, as gemm's own do (see `warm`); a second one finds its plan by a key that holds all it depends on.
Whatever torch and gemm see differently (shapes that broadcast, types that mix, out= that is resized, integers) is told apart when a
key is first met, and the answer is kept in the plan cache like a plan.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Final

import torch
from torch import Tensor

from minblas import device as devices
from minblas import dispatch, errors, settings
from minblas.accelerate_rules import STAYS, Left, refusal, torchs_own
from minblas.cache import CACHE
from minblas.cold import Call, make_plan
from minblas.guards import PLAIN
from minblas.inside import INSIDE
from minblas.plan import LaunchPlan
from minblas.signature import CLASSES, REAL, key_of
from minblas.stats import COUNTERS
from minblas.warm import route_to

Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]

_find_route = CACHE.route
_grad_enabled = torch.is_grad_enabled
_set_grad_enabled = torch._C._set_grad_enabled
_served = COUNTERS.served
_left = COUNTERS.left
_fp32_precision = torch._C._get_fp32_precision_getter
_deterministic = torch._C._get_deterministic_algorithms
_function_modes = torch._C._len_torch_function_stack
#: Options that `accelerate` was entered under, the innermost last: replaced, not changed, since products read it at any moment.
_taken: tuple[settings.Options, ...] = ()
_LOCK: Final = threading.Lock()


def take(options: settings.Options) -> None:
    """Let options hold in threads that have none of their own: those that autograd computes in."""
    global _taken
    with _LOCK:
        _taken = (*_taken, options)


def untake(options: settings.Options) -> None:
    """Undo the latest `take` of these options."""
    global _taken
    with _LOCK:
        latest = max(i for i, each in enumerate(_taken) if each is options)
        _taken = (*_taken[:latest], *_taken[latest + 1 :])


def product(
    name: str, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any, out_dtype: Any = None
) -> Tensor | None:
    """alpha * a @ b + beta * c as torch's op of that name defines it: 2-D or 3-D, only c broadcast. None: it stays torch's.

    Raises:
        LaunchError: a launch failed that may have written to c, where c is out.
    """
    if INSIDE.depth:
        return None
    taken = _taken
    if taken and settings.local() is None:
        with settings.under(taken[-1]):
            return product(name, a, b, c, out, alpha, beta, out_dtype)
    if _function_modes():  # they are told of torch's calls, not of what a kernel asks its tensors
        with torch._C.DisableTorchFunction():
            return _product(name, a, b, c, out, alpha, beta, out_dtype)
    return _product(name, a, b, c, out, alpha, beta, out_dtype)


def _product(
    name: str, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any, out_dtype: Any
) -> Tensor | None:
    if alpha.__class__ not in REAL or beta.__class__ not in REAL:
        _left[name, "alpha or beta is not a real number"] += 1
        return None
    if a.__class__ not in PLAIN or b.__class__ not in PLAIN:
        return _renamed(name, (a, b, c, None, out), alpha, beta, out_dtype)
    scalars = CLASSES.get(alpha, 2), CLASSES.get(beta, 2)
    short = (name, a.shape, b.shape, scalars, out_dtype, a is b, c is out, _deterministic(), settings.current().token)
    route = _find_route(short)
    recording = _grad_enabled()
    if recording:  # autograd has had its turn, and a weight's wish for a gradient must not turn a route away
        _set_grad_enabled(False)
    try:
        while route is not None:
            result: Tensor | None = route.serve(route.plan, a, b, c, None, out, alpha, beta)
            if result is STAYS:
                _left[name, route.plan.reason] += 1
                return None
            if result is not None:
                _served[name, route.plan.variant] += 1
                return result
            route = route.next
        return _by_whole_key(name, short, (a, b, c, None, out), alpha, beta, out_dtype)
    except Exception as error:  # a warm kernel that did not launch: torch's serves
        if route is None:
            raise
        route.plan.calls -= 1
        _left[name, _failed(route.plan, error, beta)] += 1
        return None
    finally:
        if recording:
            _set_grad_enabled(True)


def _by_whole_key(name: str, short: Hashable, given: Given, alpha: float, beta: float, out_dtype: Any) -> Tensor | None:
    """A call that no route served: by its plan where there is one, to which `short` leads from then on; else it is a first one."""
    a, b, c, _, out = given
    if not all(tensor is None or tensor.__class__ in PLAIN for tensor in given):
        return _renamed(name, given, alpha, beta, out_dtype)
    kind = "cuda" if a.is_cuda else "mkldnn"
    precision = (kind, _fp32_precision(kind, "matmul"))
    try:
        key = (short, *[None if tensor is None else key_of(tensor) for tensor in given], precision)
    except RuntimeError:  # no address
        _left[name, "operands without memory of their own"] += 1
        return None
    plan = CACHE.get(key)
    if plan is None:
        return _first(key, name, Call(a, b, alpha, beta, c, out=out, out_dtype=out_dtype or a.dtype))
    plan.used = True
    result = _run(name, plan, given, alpha, beta)
    if result is not None or plan.variant == "left":
        plan.calls += 1
        route = route_to(plan, given, precision if a.dtype is torch.float32 else None)
        if route is not None:
            CACHE.learn(key, short, plan, route)
    return result


def _run(name: str, plan: LaunchPlan | Left, given: Given, alpha: float, beta: float) -> Tensor | None:
    try:
        result = plan.run(*given, alpha, beta)
    except Exception as error:  # a kernel that did not launch: torch's serves
        _left[name, _failed(plan, error, beta)] += 1
        return None
    if result is STAYS:
        _left[name, plan.reason] += 1
        return None
    _served[name, plan.variant] += 1
    return result


def _renamed(name: str, given: Given, alpha: float, beta: float, out_dtype: Any) -> Tensor | None:
    """Operands that only bear another class's name are unwrapped; others stay torch's."""
    kinds = {type(x) for x in given if x is not None} - PLAIN
    if any(kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl for kind in kinds):
        _left[name, "a tensor subclass with a dispatch of its own"] += 1
        return None
    with torch._C.DisableTorchFunctionSubclass():
        plain: list[Any] = [None if x is None else x.as_subclass(Tensor) for x in given]
    served = _product(name, plain[0], plain[1], plain[2], plain[4], alpha, beta, out_dtype)
    return served if served is None or given[4] is None else given[4]


def _first(key: Hashable, name: str, call: Call) -> Tensor | None:
    """A call of a kind that was not met before. What it came to is kept, unless that was of the moment."""
    generation = CACHE.generation
    reason, lasts = torchs_own(name, call), True
    plan: LaunchPlan | Left = Left(reason)
    if not reason:
        try:
            with INSIDE:
                plan = make_plan(call)
        except (errors.MinblasError, torch.OutOfMemoryError) as error:
            reason, lasts = refusal(error)
            plan = Left(reason)
        if plan.variant in ("aten", "empty"):
            plan = Left(plan.reason, plan.provisional)
    result = _run(name, plan, (call.a, call.b, call.c, None, call.out), call.alpha, call.beta)
    if plan.variant != "left":
        lasts = result is not None
        COUNTERS.add_calls(plan.variant, plan.reason, lasts, warm=False)
    if lasts:
        CACHE.put(key, plan, generation)
    return result


def _failed(plan: Any, error: Exception, beta: float) -> str:
    """Why a launch came to nothing, in words.

    Raises:
        LaunchError: it failed half-way, and may have written to the addend that torch's own kernel would read.
    """
    if not isinstance(error, (errors.MinblasError, torch.OutOfMemoryError)):
        assert plan.problem is not None  # an empty plan runs nothing
        spoiled = plan.in_place and beta != 0
        dispatch.report_failure(plan.problem, devices.arch_of(plan.device), plan.variant, None, error, spoiled)
        error = errors.LaunchError("")
    return refusal(error)[0]
