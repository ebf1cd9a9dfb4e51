"""The cold path of a call: check, describe, choose, make ready, run, keep the plan."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from minblas import device as devices
from minblas import dispatch, operands, record, settings
from minblas.cache import CACHE
from minblas.errors import ArgumentError, MinblasError, OperandError, suggestion
from minblas.guards import PLAIN
from minblas.plan import LaunchPlan, scalar_class
from minblas.problem import Described, Request, describe
from minblas.stats import COUNTERS
from minblas.values import check_activation, check_flag, check_precision

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """gemm's arguments as they were given, unchecked; beta filled in."""

    a: Any
    b: Any
    alpha: Any = 1.0
    beta: Any = None
    c: Any = None
    trans_a: bool = False
    trans_b: bool = False
    bias: Any = None
    activation: str | None = None
    out: Any = None
    out_dtype: Any = None
    precision: str | None = None
    deterministic: bool | None = None
    batch_invariant: bool | None = None
    variant: str | None = None
    tile: Any = None

    @classmethod
    def of(cls, *arguments: Any, **keywords: Any) -> Call:
        """A call from arguments that are passed on.

        Raises:
            ArgumentError: a keyword is not gemm's.
        """
        known = [entry.name for entry in fields(cls)]
        for name in keywords:
            if name not in known:
                raise ArgumentError(f"keyword {name!r} is not known", "a keyword of gemm", suggestion(name, known))
        call = cls(*arguments, **keywords)
        return call if call.beta is not None else replace(call, beta=0.0 if call.c is None else 1.0)

    @property
    def has_data(self) -> bool:
        """False for tensors that have shapes only."""
        return not (self.a.is_meta or operands.is_fake(self.a))

    @property
    def wants_gradient(self) -> bool:
        """Whether a gradient flows through the call; out= beside one is left for `describe` to refuse."""
        read = (self.a, self.b, self.c, self.bias)
        return torch.is_grad_enabled() and self.out is None and any(t is not None and t.requires_grad for t in read)

    def plain(self) -> Call:
        """The call with conjugate and negative views computed, and subclasses that only rename torch.Tensor undone."""
        made = {name: _plain(getattr(self, name)) for name in ("a", "b", "c", "bias")}
        return self if all(getattr(self, name) is tensor for name, tensor in made.items()) else replace(self, **made)

    def repeat(self) -> Tensor:
        """gemm of these arguments."""
        from minblas.api import gemm

        named = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return gemm(**named)


def _plain(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    dispatch_of = getattr(type(tensor), "__torch_dispatch__", None)
    renamed = type(tensor) not in PLAIN and dispatch_of is torch._C._disabled_torch_dispatch_impl
    return tensor.as_subclass(torch.Tensor) if renamed else tensor


def cold(key: Hashable, call: Call) -> Tensor:
    """Compute, and keep the plan under `key` (None: it is not to be kept).

    Raises:
        MinblasError: the call is refused.
    """
    generation = CACHE.generation
    plain = call.plain()
    if plain is not call:
        return plain.repeat()
    if isinstance(call.a, torch.Tensor) and not call.has_data:
        return _without_data(call)
    plan = make_plan(call)
    while True:
        try:
            result = plan.run(call.a, call.b, call.c, call.bias, call.out, call.alpha, call.beta)
            break
        except (MinblasError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a kernel that did not launch: pass it over and choose again
            _report(plan, error, call.beta)
        plan = make_plan(call)
    COUNTERS.add_calls(plan.variant, plan.reason, 1, warm=False)
    if key is not None:
        CACHE.put(key, plan, generation)
    return result


def _report(plan: LaunchPlan, error: Exception, beta: complex) -> None:
    """Pass a plan's pick over from now on.

    Raises:
        LaunchError: there is nothing to choose instead, or nothing left to compute from.
    """
    if plan.problem is None:
        raise error
    # A kernel that failed half-way may have written to c where c is out.
    final = plan.forced or (plan.in_place and beta != 0)
    tile = plan.tile if final else None  # what fails to launch, rather than to compile, fails with every tile
    dispatch.report_failure(plan.problem, devices.arch_of(plan.device), plan.variant, tile, error, final)


def _without_data(call: Call) -> Tensor:
    """The result's shape, as a tensor of the operands' kind."""
    described = describe_call(call)
    if call.variant is not None:
        dispatch.get(call.variant)
    if call.wants_gradient:
        from minblas.autograd import differentiable_gemm

        return differentiable_gemm(call)
    made: Tensor = call.out if call.out is not None else call.a.new_empty(described.shape, dtype=described.dtype)
    return made


def make_plan(call: Call) -> LaunchPlan:
    """Check a call and decide everything about it; runs nothing.

    Raises:
        MinblasError: the call is refused.
    """
    request = request_of(call)
    described = describe(request)
    if not call.has_data:
        raise OperandError(
            "the operands have shapes and no data", "tensors with memory", "use minblas.explain to see what would serve"
        )
    for name, tensor in (*request.inputs.items(), *([("out", request.out)] if request.out is not None else [])):
        operands.check_memory(name, tensor)
    resolved = None
    if described.problem is not None:
        record.note(described.problem)
        resolved = dispatch.resolve(described.problem, described.device, call.variant, call.tile)
    elif call.variant is not None:
        dispatch.get(call.variant)
    return LaunchPlan(request, described, resolved, (call.alpha, call.beta), (call.trans_a, call.trans_b))


def describe_call(call: Call) -> Described:
    """Check a call and describe it; chooses nothing.

    Raises:
        MinblasError: the call is refused.
    """
    return describe(request_of(call.plain()))


def request_of(call: Call) -> Request:
    """A call with transposes applied, its scalars as classes, and every setting resolved.

    Raises:
        MinblasError: an argument cannot be used.
    """
    a, b = call.a, call.b
    for name, tensor in (("a", a), ("b", b)):
        operands.check_plain(name, tensor)
    for name in ("trans_a", "trans_b", "deterministic", "batch_invariant"):
        check_flag(name, getattr(call, name))
    alpha, beta = number("alpha", call.alpha, a), number("beta", call.beta, a)
    if call.c is None and beta != 0:
        raise ArgumentError(f"beta is {beta} and c is None", "a c to scale", "pass c=, or leave beta away")
    for name, turned, tensor in (("trans_a", call.trans_a, a), ("trans_b", call.trans_b, b)):
        if turned and tensor.dim() < 2:
            given = f"{name} is True and the operand is {operands.shape_of(tensor)}"
            raise ArgumentError(given, "at least 2 dimensions", "use minblas.matmul for vectors")
    options = settings.current()
    return Request(
        a=a.mT if call.trans_a else a,
        b=b.mT if call.trans_b else b,
        c=call.c,
        bias=call.bias,
        out=call.out,
        alpha=scalar_class(alpha),
        beta=scalar_class(beta),
        activation=check_activation(call.activation),
        out_dtype=call.out_dtype,
        precision=devices.precision_setting(a.device.type) if call.precision is None else check_precision(call.precision),
        deterministic=_first_set(call.deterministic, options.deterministic, torch.are_deterministic_algorithms_enabled()),
        batch_invariant=_first_set(call.batch_invariant, options.batch_invariant, False),
        transposed=(bool(call.trans_a), bool(call.trans_b)),
    )


def number(name: str, value: Any, a: Any) -> Any:
    """alpha or beta as a Python number that a's type can hold.

    Raises:
        ArgumentError: it is none.
    """
    dtype = a.dtype if isinstance(a, torch.Tensor) else None
    return operands.check_scalar(name, value, operands.DTYPE_NAMES.get(dtype, "fp32") if dtype is not None else "fp32")


def _first_set(*values: bool | None) -> bool:
    return next(bool(value) for value in values if value is not None)
