"""A resolved call: everything that was decided, ready to be repeated on other tensors of the same description.

The plan cache keeps plans under keys that hold all they assume; `minblas.plan` hands one to the caller, who calls it like a
function. A plan holds no tensor and nothing that belongs to a stream, a graph or a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernel_zoo.spec import VECTOR_BYTES, GemmProblem, TileConfig
from minblas import operands
from minblas.errors import GradientError, OverlapError, PlanMismatch
from minblas.overlap import overlaps, same_elements, span
from minblas.problem import ScalarClass
from minblas.signature import Signature
from minblas.warm import Route, pattern_of, route_to, written

if TYPE_CHECKING:
    from minblas.dispatch import Resolved
    from minblas.problem import Described, Request


def scalar_class(value: complex) -> ScalarClass:
    """The class ("0", "1" or "x") of alpha or beta that a kernel is made for."""
    return "0" if value == 0 else "1" if value == 1 else "x"


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
        direct: its launches, where they may be called with the operands' addresses as they are; else empty.
        workspace_bytes: scratch memory that these take.
        counters: words of their stream's counters that these use.
        index: the number of the GPU that these are for.
        strides: those of a result that is not given.
        spans: bytes from each operand's first element to the end of its last.
    """

    __slots__ = (
        "_allocates", "_c_like_out", "_copies", "_integer", "_prepared", "_reads_c", "_routes", "_scalars", "_signatures",
        "_staged", "_trans", "calls", "counters", "device", "direct", "dtype", "forced", "in_place", "index", "problem",
        "provisional", "reason", "rung", "shape", "spans", "strides", "tile", "used", "variant", "workspace_bytes",
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
        self._routes: dict[tuple[bool, ...], Route] = {}
        self._note_memory(request, described)
        prepared = self._prepared
        as_given = prepared is not None and not self._copies and not self._staged
        # A whole number's scalars are checked at every call, unless they are 0 or 1.
        simple = not self._integer or {scalar_class(scalar) for scalar in scalars} <= {"0", "1"}
        self.direct = prepared.direct if prepared is not None and as_given and simple else ()
        self.workspace_bytes = prepared.workspace_bytes if prepared is not None else 0
        self.counters = prepared.counters if prepared is not None else 0
        self.index = prepared.index if prepared is not None else None

    def _note_memory(self, request: Request, described: Described) -> None:
        """What a later call's operands are held against."""
        named = {**request.inputs, "out": request.out}
        made = {name: tensor for name, tensor in named.items() if tensor is not None}
        if self._trans[0]:
            made["a"] = request.a.mT
        if self._trans[1]:
            made["b"] = request.b.mT
        self.spans = {name: span(t.shape, [s * t.element_size() for s in t.stride()], t.element_size()) for name, t in made.items()}
        self._signatures = {name: Signature.of(tensor) for name, tensor in made.items()}
        dense = torch.empty(self.shape, dtype=self.dtype, device="meta")
        self.strides = dense.stride()
        strides = tuple(stride for size, stride in zip(dense.shape, dense.stride(), strict=True) if size != 1)
        fresh = Signature(self.dtype, self.shape, strides, self.device, VECTOR_BYTES)
        self._allocates = not self._signatures.setdefault("out", fresh).difference(fresh)
        self.spans.setdefault("out", span(dense.shape, [s * dense.element_size() for s in dense.stride()], dense.element_size()))
        c, out = self._signatures.get("c"), self._signatures["out"]
        self._c_like_out = c is not None and c.dtype == out.dtype and same_elements(c.at_zero, out.at_zero)

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
            operands.check_version(out)
            self.check_overlap(a, b, c, bias, out)
            written((out,))
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

    def check_overlap(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """Addresses are not part of the key, so that out shares no memory with an input is found out at every call."""
        spans = self.spans
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
        pattern = pattern_of(a, b, c, bias, out)
        route = self._routes.get(pattern)
        if route is not None and alpha is None and beta is None:
            served = route.serve(self, a, b, c, bias, out, self._scalars["alpha"], self._scalars["beta"])
            if served is not None:
                return served
        given: dict[str, torch.Tensor | None] = {"a": a, "b": b, "c": c, "bias": bias, "out": out}
        for name, tensor in given.items():
            self._check_operand(name, tensor)
        alpha_value, beta_value = self._scalar("alpha", alpha), self._scalar("beta", beta)
        self.calls += 1
        result = self.run(a, b, c, bias, out, alpha_value, beta_value)
        learned = route_to(self, (a, b, c, bias, out))
        if learned is not None:
            self._routes[pattern] = learned
        return result

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
        operands.check_memory(name, tensor)
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
