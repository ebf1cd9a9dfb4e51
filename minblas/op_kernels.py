"""What the ops do under autocast, under autograd, and when nothing is left but to compute.

Each function here makes the kernels of one op, as (dispatch key, function, whether it is handed the dispatch keys).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from kernel_zoo.spec import TileConfig
from minblas import api  # its gemm is looked up when it is called: api imports the op
from minblas.autograd import Multiply, record
from minblas.cold import Call
from minblas.dynamo import unseen_by_dynamo
from minblas.errors import GradientError

_C: Final = torch._C
_KEYS: Final = _C.DispatchKey
Kernel = tuple[str, Callable[..., Any], bool]

#: What follows the operands a, b (and out), in the schema's order; the dispatcher leaves defaults at the end away.
_REST: Final = (
    "alpha", "beta", "c", "bias", "trans_a", "trans_b", "activation", "out_dtype", "precision", "deterministic", "batch_invariant",
    "variant", "tile", "alpha_tensor", "beta_tensor",
)  # fmt: skip
_DEFAULTS: Final = (1, None, None, None, False, False, None)  # of those before out_dtype
_OUT_PLACE: Final = 2
_REASON: Final = "it chooses a kernel by shapes and addresses"

_grad_enabled = torch.is_grad_enabled
_any_requires_grad = _C._any_requires_grad
_increment_version = torch.autograd.graph.increment_version
_tracing_state = _C._get_tracing_state
_set_tracing_state: Any = _C._set_tracing_state  # type: ignore[attr-defined]


def _plain_keys(*beside: str) -> frozenset[int]:
    """Dispatch keys of a call that nothing but autograd watches: nothing need be dispatched to any more."""
    sets = []
    for device in ("CPU", "CUDA"):
        keys = _C.DispatchKeySet(getattr(_KEYS, device))
        for name in (f"Autograd{device}", *beside):
            keys = keys | _C.DispatchKeySet(getattr(_KEYS, name))
        sets.append(int(keys.raw_repr()))
    return frozenset(sets)


_PLAIN: Final = _plain_keys()
_PLAIN_OUT: Final = _plain_keys("ADInplaceOrView")


def kernels(op: Any, multiply: Multiply) -> list[Kernel]:
    """The kernels of gemm; `multiply` computes a product through the op."""

    def autograd(keys: Any, *args: Any) -> Tensor:
        forward_mode = forward_ad._current_level >= 0
        if not forward_mode and not (_grad_enabled() and _any_requires_grad(*args)):
            if keys.raw_repr() in _PLAIN:
                return compute(*args)
            with _C._AutoDispatchBelowAutograd():
                result: Tensor = op.redispatch(keys & _C._after_autograd_keyset, *args)
                return result
        call = call_of(*args)
        _refuse_scalar_gradients(call)
        scalars, rest = (*args[2:4], *_DEFAULTS[len(args) - 2 : 2]), args[6:]

        def below(call: Call) -> Tensor:
            with _C._AutoDispatchBelowAutograd():
                made: Tensor = op.redispatch(keys & _C._after_autograd_keyset, call.a, call.b, *scalars, call.c, call.bias, *rest)
                return made

        if not _C._are_functorch_transforms_active():
            return record(call, below, multiply)

        def below_this_level(call: Call) -> Tensor:
            # An autograd function turns gradients off in its forward pass: the transforms further out still want theirs.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return below(call)

        with enable_single_level_autograd_function():
            return record(call, below_this_level, multiply)

    unseen_by_dynamo([compute, autograd], _REASON)
    return [
        ("CompositeExplicitAutograd", compute, False),
        ("Autograd", autograd, True),
        *[(f"Autocast{device}", _autocast(op, device, operands=6), False) for device in ("CPU", "CUDA")],
    ]


def out_kernels(op: Any) -> list[Kernel]:
    """The kernels of gemm_out. Under autocast nothing is cast, as nothing is for torch's own out= overloads."""

    def autograd(keys: Any, *args: Any) -> None:
        if forward_ad._current_level >= 0 or (_grad_enabled() and _any_requires_grad(*args)):
            _refuse_gradients(args)
        if keys.raw_repr() in _PLAIN_OUT:
            _increment_version(args[_OUT_PLACE])
            return compute_out(*args)
        with _C._AutoDispatchBelowAutograd():
            op.redispatch(keys & _C._after_autograd_keyset, *args)

    def count_version(keys: Any, *args: Any) -> None:
        _increment_version(args[_OUT_PLACE])
        with _C._AutoDispatchBelowADInplaceOrView():
            op.redispatch(keys & _C._after_ADInplaceOrView_keyset, *args)

    unseen_by_dynamo([compute_out, autograd, count_version], _REASON)
    return [
        ("CompositeExplicitAutograd", compute_out, False),
        ("Autograd", autograd, True),
        ("ADInplaceOrView", count_version, True),
        *[(f"Autocast{device}", _autocast(op, device, operands=0), False) for device in ("CPU", "CUDA")],
    ]


def compute(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    """gemm of the op's arguments: chosen now."""
    if _tracing_state() is not None:
        with _Untraced():
            return compute(a, b, *rest)
    return api.gemm(a, b, **_keywords(rest)) if rest else api.gemm(a, b)


def compute_out(a: Tensor, b: Tensor, out: Tensor, *rest: Any) -> None:
    """Likewise, into out."""
    if _tracing_state() is not None:
        with _Untraced():
            return compute_out(a, b, out, *rest)
    api.gemm(a, b, out=out, **_keywords(rest))


class _Untraced:
    """A block that torch.jit.trace, which has recorded the op itself, does not look into: sizes are tensors while it does."""

    def __enter__(self) -> None:
        self._state = _tracing_state()
        _set_tracing_state(None)

    def __exit__(self, *exc: object) -> None:
        _set_tracing_state(self._state)


def _keywords(rest: tuple[Any, ...]) -> dict[str, Any]:
    given = dict(zip(_REST, rest, strict=False))
    for name in ("alpha", "beta"):
        tensor = given.pop(f"{name}_tensor", None)
        if tensor is not None:
            given[name] = tensor
    tile = given.get("tile")
    if tile is not None:
        given["tile"] = _tile(tile)
    return given


@functools.cache
def _tile(text: str) -> TileConfig:
    from heuristics.schema import parse_tile

    return parse_tile(text)


def call_of(a: Tensor, b: Tensor, *rest: Any) -> Call:
    """The op's arguments as a call, out left away."""
    given = {"alpha": 1.0, **_keywords(rest)}
    if given.get("beta") is None:
        given["beta"] = 0.0 if given.get("c") is None else 1.0
    return Call(a, b, **given)


def with_out_dtype(rest: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """What follows a and b, with the result's dtype given."""
    place = _REST.index("out_dtype")
    return [*rest[:place], *_DEFAULTS[len(rest) : place], dtype, *rest[place + 1 :]]


def _autocast(op: Any, device: str, operands: int) -> Callable[..., Any]:
    """The first arguments, as many as may be operands, in autocast's type, as torch casts those of its own mm and addmm.

    float64 is left as it is, as torch leaves it; and so is fp8, which is asked for.
    """
    kind = device.lower()
    keys = _C.DispatchKeySet(getattr(_KEYS, f"Autocast{device}"))

    def autocast(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype(kind)

        def cast(value: Any) -> Any:
            eligible = isinstance(value, Tensor) and value.device.type == kind and value.dtype in _CAST
            return value.to(dtype) if eligible else value

        with _C._ExcludeDispatchKeyGuard(keys):
            return op(*map(cast, args[:operands]), *args[operands:])

    unseen_by_dynamo([autocast], _REASON)
    return autocast


_CAST: Final = (torch.float32, torch.float16, torch.bfloat16)


def _refuse_scalar_gradients(call: Call) -> None:
    for name in ("alpha", "beta"):
        value = getattr(call, name)
        if isinstance(value, Tensor) and value.requires_grad:
            raise GradientError(f"{name} requires a gradient", "a number without one", "scale the result with torch instead")


def _refuse_gradients(args: tuple[Any, ...]) -> None:
    """Writing into out cannot be differentiated, in either direction."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    remedy = "leave out= away, or call under torch.no_grad()"
    if _grad_enabled() and _any_requires_grad(*tensors):
        raise GradientError("out= is given and an operand requires a gradient", "operands without gradients", remedy)
    if forward_ad._current_level >= 0 and any(_tangent(tensor) is not None for tensor in tensors):
        raise GradientError("out= is given and an operand has a tangent", "operands without tangents", "leave out= away")


def _tangent(tensor: Tensor) -> Tensor | None:
    tangent: Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return tangent
