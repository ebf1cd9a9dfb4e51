"""explain: what would serve a call, and why, without computing it. The form with sizes needs neither torch nor a GPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, Final

from heuristics.choose import Selection
from kernel_zoo.spec import ITEMSIZE, VECTOR_BYTES, Arch, Epilogue, GemmProblem, Operand, TileConfig, canonical_dtype
from minblas import device as devices
from minblas import dispatch, settings
from minblas.errors import ArgumentError, DTypeError, ShapeError, suggestion
from minblas.values import check_activation, check_activation_type, check_out_dtype, check_precision


def explain(a: Any, b: Any, k: Any = None, /, *rest: Any, arch: str | Arch | None = None, **keywords: Any) -> Selection:
    """The Selection for gemm(a, b, ...) or for a product of given sizes: print it, or take it as data with `.as_dict()`.

    explain(a, b, ...) takes gemm's arguments and reads only the operands' descriptions.
    explain(m, n, k, dtype="bf16", layout="nn", arch="h200") takes sizes; also batch, out_dtype, precision, beta, bias, activation,
    deterministic, batch_invariant, variant and tile.

    Args:
        a: an operand, or M.
        b: an operand, or N.
        k: K, where a and b are sizes; alpha otherwise.
        *rest: beta and c, where a and b are operands.
        arch: the device to choose for ("h200", "sm_90", or an Arch); by default the operands' own, or that of the options.
        **keywords: the rest, by name.

    Raises:
        MinblasError: the call would be refused.
    """
    if isinstance(a, Integral) and isinstance(b, Integral):
        if not isinstance(k, Integral) or rest:
            raise ArgumentError(
                f"explain({a}, {b}, {k!r})", "explain(m, n, k) with three whole numbers", "sizes come in the order M, N, K"
            )
        unknown = next((name for name in keywords if name not in _SIZES_TAKE), None)
        if unknown is not None:
            raise ArgumentError(
                f"keyword {unknown!r} is not known beside sizes", "a keyword of explain", suggestion(unknown, _SIZES_TAKE)
            )
        selection = _explain_sizes(int(a), int(b), int(k), arch, **keywords)
        return replace(selection, assumed=_assumed(selection.problem, selection.arch, arch, keywords))
    return _explain_call(a, b, *(() if k is None else (k,)), *rest, arch=arch, **keywords)


def _explain_sizes(
    m: int,
    n: int,
    k: int,
    arch: str | Arch | None,
    *,
    dtype: object = "bf16",
    layout: str = "nn",
    batch: int = 1,
    out_dtype: object = None,
    precision: str | None = None,
    alpha: float = 1,
    beta: float = 0,
    bias: bool = False,
    activation: str | None = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
    variant: str | None = None,
    tile: TileConfig | None = None,
) -> Selection:
    if min(m, n, k, batch) < 0:
        raise ShapeError(f"sizes are {batch} x {m} x {n} x {k}", "sizes of at least 0")
    name = "fp32" if dtype == "tf32" else _dtype_name("dtype", dtype, "tf32")
    out = check_out_dtype("out_dtype", _dtype_name("out_dtype", out_dtype), name) if out_dtype is not None else None
    activation = check_activation(activation)
    check_activation_type(activation, name)
    precision = _precision(name, "tf32" if dtype == "tf32" and precision is None else precision)
    try:
        problem = GemmProblem.of(
            m, n, k, name, layout,
            batch=batch, out_dtype=out, precision=precision,
            deterministic=_asked(deterministic, settings.current().deterministic, _torch_is_deterministic()),
            batch_invariant=_asked(batch_invariant, settings.current().batch_invariant, False),
        )  # fmt: skip
    except ValueError:
        remedy = "a second letter 't' says that B is stored (N, K)"
        raise ArgumentError(f"layout is {layout!r}", "nn, nt, tn or tt", remedy) from None
    problem = _with_epilogue(problem, alpha, beta, bias, activation)
    return dispatch.select(problem, _place(arch), variant, tile)


def _place(arch: str | Arch | None) -> Arch:
    """The device that is meant: by default the options'."""
    return arch if isinstance(arch, Arch) else settings.named_arch(arch or settings.current().arch)


def _assumed(problem: GemmProblem, arch: Arch, named: object, given: Mapping[str, Any]) -> tuple[str, ...]:
    """What sizes alone leave open and the choice took for granted."""
    a, b, out = problem.a, problem.b, problem.out
    left_out = {"dtype": problem.dtype, "layout": problem.layout}
    taken = [f"{name} {value}" for name, value in left_out.items() if name not in given]
    memory = f"dense matrices at addresses that are multiples of {VECTOR_BYTES} bytes"
    aligns = (a.line_align, b.line_align, out.line_align)
    if min(aligns) < VECTOR_BYTES:
        memory += f", so that lines of A/B/out start at multiples of {'/'.join(map(str, aligns))} (padding them would help)"
    taken.append(memory)
    if problem.dtype == "fp32" and given.get("precision") is None and given.get("dtype") != "tf32":
        why = "torch's setting" if sys.modules.get("torch") is not None else "torch is not loaded"
        taken.append(f"precision {problem.precision} ({why})")
    if problem.epilogue.c is not None:
        taken.append(f"C dense and {problem.epilogue.c.dtype}")
    if problem.epilogue.bias is not None:
        taken.append(f"bias one row of {problem.epilogue.bias.dtype}")
    if named is None:
        taken.append(f"device {arch.name}, since none was named")
    return tuple(taken)


_SIZES_TAKE: Final = frozenset(_explain_sizes.__kwdefaults__ or ())


def _dtype_name(keyword: str, value: object, *also: str) -> str:
    """The dtype's name; `also` are words that the caller takes beside dtypes."""
    try:
        return canonical_dtype(value)
    except ValueError:
        raise DTypeError(f"{keyword} is {value!r}", "a dtype the project knows", suggestion(value, (*ITEMSIZE, *also))) from None


def _asked(*values: bool | None) -> bool:
    return next(bool(value) for value in values if value is not None)


def _torch_is_deterministic() -> bool:
    """torch's own switch, where torch is in use."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.are_deterministic_algorithms_enabled())


def _precision(dtype: str, asked: str | None) -> str:
    """As a call on a GPU would have it: what is asked for, else torch's setting where torch is in use, else exact products."""
    if dtype != "fp32":
        return ""
    if asked is not None:
        return check_precision(asked)
    return devices.precision_setting("cuda") if sys.modules.get("torch") is not None else "ieee"


def _with_epilogue(problem: GemmProblem, alpha: float, beta: float, bias: bool, activation: str) -> GemmProblem:
    def kind(value: float) -> Any:
        return "0" if value == 0 else "1" if value == 1 else "x"

    row = Operand(problem.out.dtype, problem.m, problem.n, (0, 0, 1)) if bias else None
    epilogue = Epilogue(kind(alpha), kind(beta), problem.out if beta != 0 else None, row, activation)
    return replace(problem, epilogue=epilogue, k=problem.k if alpha != 0 else 0)


def _explain_call(*arguments: Any, arch: str | Arch | None, **keywords: Any) -> Selection:
    from minblas.cold import Call, describe_call

    call = Call.of(*arguments, **keywords)
    described = describe_call(call)
    problem = described.problem
    if problem is None:  # an empty result, or operands without data: the choice can still be told from the sizes
        batch, (m, n) = math.prod(described.shape[:-2]), described.shape[-2:]
        k = call.a.shape[-2 if call.trans_a else -1]
        problem = GemmProblem.of(m, n, k, canonical_dtype(call.a.dtype), batch=batch, out_dtype=canonical_dtype(described.dtype))
    place = _place(arch) if arch or described.device.type == "meta" else described.device
    return dispatch.select(problem, place, call.variant, call.tile)
