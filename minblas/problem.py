"""From a call's tensors to a GemmProblem: broadcasting, batch collapsing and folding, out= rules. Cold path only.

Nothing is computed and nothing is copied here: `describe` says which operands cannot be read through one batch stride and must be
copied first. Strides are read as they are; those of size-1 dimensions mean nothing and are normalised away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import (
    VECTOR_BYTES,
    Epilogue,
    GemmProblem,
    Operand,
    default_out_dtype,
)
from minblas import operands
from minblas.errors import OutError, OverlapError, ShapeError
from minblas.layout import Laid, fold, lay
from minblas.overlap import overlaps, same_elements, self_overlaps
from minblas.values import check_activation_type

ScalarClass = Literal["0", "1", "x"]


@dataclass(frozen=True, slots=True)
class Request:
    """One call as its caller wrote it, transposes applied; alpha and beta by class, every setting resolved.

    `transposed` says which of a and b were given the other way round: messages speak of what was given.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    out: torch.Tensor | None = None
    alpha: ScalarClass = "1"
    beta: ScalarClass = "0"
    activation: str = "none"
    out_dtype: object = None
    precision: str = "ieee"
    deterministic: bool = False
    batch_invariant: bool = False
    transposed: tuple[bool, bool] = (False, False)

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The operands that are read, by name."""
        named = {"a": self.a, "b": self.b, "c": self.c, "bias": self.bias}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


@dataclass(frozen=True, slots=True)
class Described:
    """A valid call: the problem (None where the result is empty or has no data), the result, and what must be copied to make it so.

    Attributes:
        copies: operands, by slot, to be copied densely at the given sizes, because no single batch stride reaches them.
        staged: out's batch cannot be reached by one stride: compute into a fresh tensor, then copy.
        in_place: c and out are the same matrix.
    """

    problem: GemmProblem | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    copies: tuple[tuple[str, tuple[int, ...]], ...] = ()
    staged: bool = False
    in_place: bool = False


def describe(request: Request) -> Described:
    """Check a call and describe it.

    Raises:
        MinblasError: the call is refused; nothing was written.
    """
    for name, tensor in request.inputs.items():
        operands.check_plain(name, tensor)
    if request.out is not None:
        operands.check_plain("out", request.out)
    everything = {**request.inputs, **({"out": request.out} if request.out is not None else {})}
    device = operands.check_devices(everything)
    operands.check_gradients(request.inputs, request.out)
    batch_shape, m, n, k = _sizes(request.a, request.b, request.transposed)
    shape = (*batch_shape, m, n)
    for name in ("c", "bias"):
        if name in request.inputs:
            _check_broadcast(name, request.inputs[name], shape)
    inputs = operands.input_dtype(everything)
    result = operands.result_dtype(inputs, default_out_dtype(inputs), request.out_dtype, request.out)
    addends = {name: operands.check_addend(name, t, inputs, result) for name, t in request.inputs.items() if name in ("c", "bias")}
    check_activation_type(request.activation, inputs)
    in_place = _check_out(request, shape) if request.out is not None else False
    dtype = TORCH_DTYPES[result]
    if 0 in shape or device.type == "meta" or any(map(operands.is_fake, everything.values())):
        return Described(None, shape, dtype, device, in_place=in_place)
    if request.alpha == "0":
        k = 0
    laid = _lay_out(request, batch_shape, shape, k)
    batch = math.prod(batch_shape)
    folds = batch > 1 and fold(laid, m)
    problem = _problem(request, laid, (1, batch * m, n, k) if folds else (batch, m, n, k), inputs, result, addends)
    copies = tuple(
        (slot, _copy_sizes(slot, batch_shape, (m, n, k))) for slot, lay in laid.items() if lay.strides is None and slot != "OUT"
    )
    return Described(problem, shape, dtype, device, copies, laid["OUT"].strides is None, in_place)


def _sizes(a: torch.Tensor, b: torch.Tensor, transposed: tuple[bool, bool]) -> tuple[tuple[int, ...], int, int, int]:
    """The broadcast batch shape, and M, N, K."""
    shapes = f"{_given('a', a, transposed[0])} and {_given('b', b, transposed[1])}"
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() < 2:
            raise ShapeError(
                shapes,
                f"{name} with at least 2 dimensions",
                f"add one with {name}.unsqueeze, or use minblas.matmul, which takes vectors",
            )
    (m, k), (rows, n) = a.shape[-2:], b.shape[-2:]
    if k != rows:
        ends = ("last", "second to last")
        needed = f"a's {ends[transposed[0]]} dimension ({k}) equal to b's {ends[not transposed[1]]} ({rows})"
        raise ShapeError(shapes, needed, _turn((m, k), (rows, n), transposed))
    batch = operands.broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise ShapeError(shapes, "leading dimensions that broadcast, as in torch.matmul", "each pair must be equal or 1")
    return batch, m, n, k


def _given(name: str, tensor: torch.Tensor, transposed: bool) -> str:
    shape = operands.shape_of(tensor.mT if transposed else tensor)
    return f"{name} is {shape}" + (f" with trans_{name}=True" if transposed else "")


def _turn(a: tuple[int, int], b: tuple[int, int], transposed: tuple[bool, bool]) -> str:
    """Which transpose would make the operands fit."""
    fits = {"a": a[0] == b[0], "b": a[1] == b[1]}
    turns = [
        f"leave trans_{name} away" if turned else f"pass trans_{name}=True (or {name}.mT)"
        for name, turned in zip("ab", transposed, strict=True)
        if fits[name]
    ]
    return " or ".join(turns) or "no transpose makes them fit: check the sizes"


def _check_broadcast(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    given = operands.shape_of(tensor)
    fits = len(given) <= len(shape) and all(size in (1, full) for size, full in zip(given[::-1], shape[::-1], strict=False))
    if not fits:
        raise ShapeError(
            f"{name} is {given} and the result is {shape}", f"a {name} that broadcasts to the result", f"reshape or expand {name}"
        )


def _check_out(request: Request, shape: tuple[int, ...]) -> bool:
    """Whether out is c itself; out must have the result's shape and share no memory otherwise."""
    out = request.out
    assert out is not None
    given = operands.shape_of(out)
    if given != shape:
        raise OutError(
            f"out is {given} and the result is {shape}",
            "an out of the result's shape",
            "out is never resized: allocate it with that shape",
        )
    if out.is_conj() or out.is_neg():
        raise OutError(
            "out is a conjugate or negative view", "an out that stores its own values", "pass a tensor made by torch.empty"
        )
    if out.device.type == "meta" or operands.is_fake(out):
        return False
    memory = operands.extent(out)
    if self_overlaps(memory):
        raise OverlapError(
            f"out has shape {given} and strides {out.stride()}: elements share memory",
            "an out without overlap",
            "leave out= away, or pass one from torch.empty",
        )
    in_place = False
    for name, tensor in request.inputs.items():
        other = operands.extent(tensor)
        if name == "c" and tensor.dtype == out.dtype and same_elements(other, memory):
            in_place = True
        elif overlaps(other, memory):
            allowed = "an out apart from every input (out=c with c's own strides is the exception)"
            raise OverlapError(f"out shares memory with {name}", allowed, f"pass another out, or {name}.clone()")
    return in_place


def _lay_out(request: Request, batch_shape: tuple[int, ...], shape: tuple[int, ...], k: int) -> dict[str, Laid]:
    """Every operand over the flattened batch. a and b are left out where nothing is multiplied: they are never read."""
    m, n = shape[-2:]
    targets = {"C": (request.c if request.beta != "0" else None, shape), "BIAS": (request.bias, shape)}
    if k:
        targets |= {"A": (request.a, (*batch_shape, m, k)), "B": (request.b, (*batch_shape, k, n))}
    laid = {slot: lay(tensor, target) for slot, (tensor, target) in targets.items() if tensor is not None}
    laid["OUT"] = lay(request.out, shape) if request.out is not None else Laid((m * n, n, 1), VECTOR_BYTES)
    return laid


def _problem(
    request: Request, laid: dict[str, Laid], sizes: tuple[int, int, int, int], inputs: str, result: str, addends: dict[str, str]
) -> GemmProblem:
    batch, m, n, k = sizes

    def operand(slot: str, dtype: str, rows: int, cols: int) -> Operand:
        lay = laid.get(slot)
        if lay is None or lay.strides is None:
            return Operand.dense(dtype, rows, cols, batch=batch)
        return Operand.of(dtype, rows, cols, lay.strides, lay.align, batch)

    epilogue = Epilogue(
        alpha=request.alpha,
        beta=request.beta,
        c=operand("C", addends["c"], m, n) if "C" in laid else None,
        bias=operand("BIAS", addends["bias"], m, n) if "BIAS" in laid else None,
        activation=request.activation,
    )
    return GemmProblem(
        batch, m, n, k,
        operand("A", inputs, m, k), operand("B", inputs, k, n), operand("OUT", result, m, n),
        epilogue,
        request.precision if inputs == "fp32" else "",
        request.deterministic, request.batch_invariant,
    )  # fmt: skip


def _copy_sizes(slot: str, batch_shape: tuple[int, ...], sizes: tuple[int, int, int]) -> tuple[int, ...]:
    m, n, k = sizes
    return (*batch_shape, *{"A": (m, k), "B": (k, n)}.get(slot, (m, n)))
