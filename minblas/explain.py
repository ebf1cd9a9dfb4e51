"""explain: what would serve a call, and why, without computing it. The form with sizes needs neither torch nor a GPU."""

from __future__ import annotations

import math
import sys
from typing import Any

from heuristics.choose import Selection
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig, canonical_dtype
from minblas import device as devices
from minblas import dispatch, settings
from minblas.errors import ArgumentError, DTypeError, ShapeError


def explain(a: Any, b: Any, k: Any = None, /, *rest: Any, arch: str | None = None, **keywords: Any) -> Selection:
    """The Selection for gemm(a, b, ...) or for a product of given sizes: print it, or take it as data with `.as_dict()`.

    explain(a, b, ...) takes gemm's arguments and reads only the operands' descriptions.
    explain(m, n, k, dtype="bf16", layout="nn", arch="h200") takes sizes; also batch, out_dtype, precision, beta, bias, activation,
    deterministic, batch_invariant, variant and tile.

    Args:
        a: an operand, or M.
        b: an operand, or N.
        k: K, where a and b are sizes; alpha otherwise.
        *rest: beta and c, where a and b are operands.
        arch: the device to choose for ("h200", "sm_90"); by default the operands' own, or that of the options.
        **keywords: the rest, by name.

    Raises:
        MinblasError: the call would be refused.
    """
    if isinstance(a, int) and isinstance(b, int):
        if not isinstance(k, int) or rest:
            raise ArgumentError(
                f"explain({a}, {b}, {k!r})", "explain(m, n, k) with three whole numbers", "sizes come in the order M, N, K"
            )
        return _explain_sizes(a, b, k, arch, **keywords)
    return _explain_call(a, b, *(() if k is None else (k,)), *rest, arch=arch, **keywords)


def _explain_sizes(
    m: int,
    n: int,
    k: int,
    arch: str | None,
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
    deterministic: bool = False,
    batch_invariant: bool = False,
    variant: str | None = None,
    tile: TileConfig | None = None,
) -> Selection:
    if min(m, n, k, batch) < 0:
        raise ShapeError(f"sizes are {batch} x {m} x {n} x {k}", "sizes of at least 0")
    try:
        name = "fp32" if dtype == "tf32" else canonical_dtype(dtype)
        out = canonical_dtype(out_dtype) if out_dtype is not None else None
    except ValueError as error:
        raise DTypeError(f"dtype is {dtype!r}", "a dtype the project knows, or 'tf32'", str(error)) from None
    precision = "tf32" if dtype == "tf32" and precision is None else precision
    try:
        problem = GemmProblem.of(
            m, n, k, name, layout,
            batch=batch, out_dtype=out, precision=_precision(name, precision),
            deterministic=deterministic, batch_invariant=batch_invariant,
        )  # fmt: skip
    except ValueError as error:
        raise ArgumentError(f"layout is {layout!r}", "nn, nt, tn or tt", str(error)) from None
    problem = _with_epilogue(problem, alpha, beta, bias, activation)
    return dispatch.select(problem, devices.named_arch(arch or settings.current().arch), variant, tile)


def _precision(dtype: str, asked: str | None) -> str:
    """As a call on a GPU would have it: what is asked for, else torch's setting where torch is in use, else exact products."""
    if dtype != "fp32":
        return ""
    if asked is not None:
        from minblas.problem import check_precision

        return check_precision(asked)
    return devices.precision_setting("cuda") if "torch" in sys.modules else "ieee"


def _with_epilogue(problem: GemmProblem, alpha: float, beta: float, bias: bool, activation: str | None) -> GemmProblem:
    from dataclasses import replace

    def kind(value: float) -> Any:
        return "0" if value == 0 else "1" if value == 1 else "x"

    row = Operand(problem.out.dtype, problem.m, problem.n, (0, 0, 1)) if bias else None
    epilogue = Epilogue(kind(alpha), kind(beta), problem.out if beta != 0 else None, row, activation or "none")
    return replace(problem, epilogue=epilogue, k=problem.k if alpha != 0 else 0)


def _explain_call(*arguments: Any, arch: str | None, **keywords: Any) -> Selection:
    from minblas.cold import Call, describe_call

    call = Call.of(*arguments, **keywords)
    described = describe_call(call)
    problem = described.problem
    if problem is None:  # an empty result, or operands without data: the choice can still be told from the sizes
        batch, (m, n) = math.prod(described.shape[:-2]), described.shape[-2:]
        k = call.a.shape[-2 if call.trans_a else -1]
        problem = GemmProblem.of(m, n, k, canonical_dtype(call.a.dtype), batch=batch, out_dtype=canonical_dtype(described.dtype))
    place = devices.named_arch(arch or settings.current().arch) if arch or described.device.type == "meta" else described.device
    return dispatch.select(problem, place, call.variant, call.tile)
