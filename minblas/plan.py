"""A resolved call: everything that was decided, ready to be repeated on other tensors of the same description.

The plan cache keeps plans under keys that hold all they assume; `minblas.plan` hands one to the caller, who calls it like a
function. A plan holds no tensor and nothing that belongs to a stream, a graph or a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernel_zoo.spec import VECTOR_BYTES, GemmProblem, TileConfig, pow2_divisor
from minblas import operands
from minblas.errors import GradientError, OverlapError, PlanMismatch
from minblas.overlap import Extent, overlaps, same_elements, span
from minblas.problem import ScalarClass

if TYPE_CHECKING:
    from minblas.dispatch import Resolved
    from minblas.problem import Described, Request


def scalar_class(value: complex) -> ScalarClass:
    """The class ("0", "1" or "x") of alpha or beta that a kernel is made for."""
    return "0" if value == 0 else "1" if value == 1 else "x"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a plan assumes of one operand. Strides of size-1 dimensions are left out; `align` is what the address must divide by."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device
    align: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Signature:
        """The signature of a tensor."""
        shape = tuple(tensor.shape)
        strides = tuple(stride for size, stride in zip(shape, tensor.stride(), strict=True) if size != 1)
        return cls(tensor.dtype, shape, strides, tensor.device, pow2_divisor(tensor.data_ptr(), VECTOR_BYTES))

    def difference(self, other: Signature) -> str:
        """What of `other` breaks the assumption: "" where nothing does."""
        for name in ("dtype", "shape", "strides", "device"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {theirs} instead of {mine}"
        if other.align < self.align:
            return f"an address that is a multiple of {other.align} bytes only, instead of {self.align}"
        return ""


class LaunchPlan:
    """A product made ready. Made by `minblas.plan`; call it with operands like those it was made for.

    >>> plan = minblas.plan(a, b)      # doctest: +SKIP
    >>> plan(a, b, out=out)            # doctest: +SKIP

    Attributes:
        problem: the product; None where the result is empty.
        variant: what computes it.
        tile: the variant's tile.
        rung: how it was chosen.
        reason: why, where the variant is aten.
    """

    __slots__ = (
        "_allocates",
        "_c_like_out", "_copies", "_integer", "_prepared", "_reads_c", "_scalars", "_signatures", "_spans", "_staged", "_trans",
        "calls", "device", "dtype", "forced", "in_place", "problem", "provisional", "reason", "rung", "shape", "tile", "used",
        "variant",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        described: Described,
        resolved: Resolved | None,
        scalars: tuple[complex, complex],
        trans: tuple[bool, bool],
    ) -> None:
        self.problem: GemmProblem | None = described.problem
        self.shape = described.shape
        self.dtype = described.dtype
        self.device = described.device
        self.in_place = described.in_place
        self.variant: str = resolved.variant if resolved else "empty"
        self.tile: TileConfig | None = resolved.tile if resolved else None
        self.rung: str = resolved.rung if resolved else "default"
        self.reason: str = resolved.reason if resolved else ""
        self.forced = resolved.forced if resolved else False
        self.provisional = resolved.provisional if resolved else False
        self.calls = 0
        self.used = True
        self._prepared = resolved.prepared if resolved else None
        self._copies = described.copies
        self._staged = described.staged
        self._trans = trans
        self._integer = not (described.dtype.is_floating_point or described.dtype.is_complex)
        self._reads_c = described.problem is not None and described.problem.epilogue.c is not None
        self._scalars = {"alpha": scalars[0], "beta": scalars[1]}
        self._note_memory(request, described)

    def _note_memory(self, request: Request, described: Described) -> None:
        """What a later call's operands are held against."""
        named = {**request.inputs, "out": request.out}
        made = {name: tensor for name, tensor in named.items() if tensor is not None}
        if self._trans[0]:
            made["a"] = request.a.mT
        if self._trans[1]:
            made["b"] = request.b.mT
        self._spans = {
            name: span(t.shape, [s * t.element_size() for s in t.stride()], t.element_size()) for name, t in made.items()
        }
        self._signatures = {name: Signature.of(tensor) for name, tensor in made.items()}
        dense = torch.empty(self.shape, dtype=self.dtype, device="meta")
        strides = tuple(stride for size, stride in zip(dense.shape, dense.stride(), strict=True) if size != 1)
        fresh = Signature(self.dtype, self.shape, strides, self.device, VECTOR_BYTES)
        self._allocates = not self._signatures.setdefault("out", fresh).difference(fresh)
        self._spans.setdefault("out", span(dense.shape, [s * dense.element_size() for s in dense.stride()], dense.element_size()))
        c, out = self._signatures.get("c"), self._signatures["out"]
        self._c_like_out = c is not None and c.dtype == out.dtype and same_elements(_at_zero(c), _at_zero(out))

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        bias: torch.Tensor | None,
        out: torch.Tensor | None,
        alpha: complex,
        beta: complex,
    ) -> torch.Tensor:
        """Compute, for operands that are known to fit the plan (the cache's key says so)."""
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        else:
            self._check_overlap(a, b, c, bias, out)
        prepared = self._prepared
        if prepared is None:
            return out
        slots = {"A": a, "B": b, "OUT": out}
        if self._reads_c and c is not None:
            slots["C"] = c
        if bias is not None:
            slots["BIAS"] = bias
        if self._integer:
            alpha, beta = (operands.check_scalar(name, value, "int32") for name, value in (("alpha", alpha), ("beta", beta)))
        if self._copies or self._staged:
            return self._run_copied(slots, alpha, beta)
        prepared(slots, alpha, beta)
        return out

    def _run_copied(self, slots: dict[str, torch.Tensor], alpha: complex, beta: complex) -> torch.Tensor:
        """Compute through dense copies of what one batch stride cannot reach."""
        assert self._prepared is not None
        out = slots["OUT"]
        for slot, sizes in self._copies:
            tensor = slots[slot]
            if (slot == "A" and self._trans[0]) or (slot == "B" and self._trans[1]):
                tensor = tensor.mT
            slots[slot] = tensor.detach().expand(sizes).clone(memory_format=torch.contiguous_format)
        if self._staged:
            slots["OUT"] = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        self._prepared(slots, alpha, beta)
        if self._staged:
            out.copy_(slots["OUT"])
        return out

    def _check_overlap(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """Addresses are not part of the key, so that out shares no memory with an input is found out at every call."""
        spans = self._spans
        start = out.data_ptr()
        end = start + spans["out"]
        for name, tensor in (("a", a), ("b", b), ("c", c), ("bias", bias)):
            if tensor is None:
                continue
            other = tensor.data_ptr()
            if other >= end or start >= other + spans[name] or (name == "c" and other == start and self._c_like_out):
                continue
            if overlaps(operands.extent(tensor), operands.extent(out)):
                raise OverlapError(
                    f"out shares memory with {name}", "an out apart from every input", f"pass another out, or {name}.clone()"
                )

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        *,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> torch.Tensor:
        """Compute with other operands of the same description; alpha and beta default to those of the plan.

        Raises:
            PlanMismatch: an operand, alpha or beta is not what the plan was made for; the message names it.
            GradientError: an operand requires a gradient; plans have none.
        """
        given: dict[str, torch.Tensor | None] = {"a": a, "b": b, "c": c, "bias": bias, "out": out}
        for name, tensor in given.items():
            self._check_operand(name, tensor)
        alpha_value, beta_value = self._scalar("alpha", alpha), self._scalar("beta", beta)
        self.calls += 1
        return self.run(a, b, c, bias, out, alpha_value, beta_value)

    def _check_operand(self, name: str, tensor: torch.Tensor | None) -> None:
        wanted = self._signatures.get(name)
        if name == "out" and tensor is None and not self._allocates:
            raise PlanMismatch(
                "out was left out", "an out with the strides the plan was made for", "pass out=, or make another plan"
            )
        if tensor is None or wanted is None:
            if name != "out" and (tensor is None) != (wanted is None):
                state = "was left out" if tensor is None else "is given"
                needed = f"the operands the plan was made with ({', '.join(self._signatures)})"
                number = tensor is not None and not isinstance(tensor, torch.Tensor)
                remedy = "alpha and beta go by name here" if number else "make another plan"
                raise PlanMismatch(f"{name} {state}", needed, remedy)
            return
        operands.check_plain(name, tensor)
        if tensor.requires_grad and torch.is_grad_enabled():
            raise GradientError(
                f"{name} requires a gradient", "operands without gradients: a plan has none", "use minblas.gemm, or torch.no_grad()"
            )
        difference = wanted.difference(Signature.of(tensor)) or (
            "a conjugate or negative view" if tensor.is_conj() or tensor.is_neg() else ""
        )
        if difference:
            raise PlanMismatch(
                f"{name} has {difference}", f"the {name} the plan was made for", "make another plan, or use minblas.gemm"
            )

    def _scalar(self, name: str, value: float | None) -> complex:
        made_with = self._scalars[name]
        if value is None:
            return made_with
        number = operands.check_scalar(name, value, operands.DTYPE_NAMES[self._signatures["a"].dtype])
        if scalar_class(number) != scalar_class(made_with) and scalar_class(made_with) != "x":
            raise PlanMismatch(
                f"{name} is {number}", f"{made_with}, for which the plan was made", f"make the plan with {name}={number}"
            )
        return number

    def __repr__(self) -> str:
        what = self.problem.describe() if self.problem is not None else f"empty {self.shape}"
        tile = f" {self.tile.describe()}" if self.tile is not None else ""
        return f"<minblas plan: {what} on {self.device}: {self.variant}{tile} ({self.rung})>"


def _at_zero(signature: Signature) -> Extent:
    """The signature's memory, as if it began at address 0."""
    size = signature.dtype.itemsize
    sizes = tuple(n for n in signature.shape if n != 1)
    return Extent(0, size, sizes, tuple(stride * size for stride in signature.strides))
