"""Launches as data: views over slots, descriptors, scalars, kernel calls, and the call a recipe is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kernel_zoo.spec.choice import Arch
from kernel_zoo.spec.dtypes import accumulator_dtype
from kernel_zoo.spec.problem import GemmProblem, Operand


@dataclass(frozen=True, slots=True)
class View:
    """A kernel argument that points at an operand: its slot, the memory behind it, and how many bytes into the slot that begins.

    Slots that no caller gives: "WS" is scratch memory, raw bytes aligned to 256, whose contents are undefined; "COUNTERS" is int32
    words that are zero before a launch and that the launch leaves zero.
    """

    slot: str
    operand: Operand
    offset: int = 0

    @property
    def dtype(self) -> str:
        """The element type the pointer has."""
        return self.operand.dtype

    @property
    def strides(self) -> tuple[int, int]:
        """(row, col) strides in elements."""
        return self.operand.strides[1:]

    @property
    def batch_stride(self) -> int:
        """Elements from one matrix of the batch to the next; 0 where all share one."""
        return self.operand.strides[0]

    @property
    def T(self) -> View:  # noqa: N802
        """The transposed view of the same slot."""
        return View(self.slot, self.operand.T, self.offset)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel argument that is a TMA tensor descriptor over a slot; the last stride is 1."""

    view: View
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A kernel argument read at every launch: ALPHA or BETA, in the accumulator's type."""

    name: Literal["ALPHA", "BETA"]
    dtype: str = "fp32"


ALPHA: Final = Scalar("ALPHA")
BETA: Final = Scalar("BETA")
Argument = View | Descriptor | Scalar | int | None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch, as data: the kernel, its grid, positional arguments, compile-time constants and launch options.

    `num_warps` of a warp-specialised kernel is that of its default partition. `dependent`: on capability 9.0 and newer it may start
    while the kernel before it on the stream still runs, and waits itself (griddepcontrol.wait) before it reads or writes memory.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Argument, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    dependent: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """The launches a variant needs for one problem and tile, in order, and the memory they share. Pure data.

    `workspace_bytes` is the size of the slot "WS"; `counters` is the number of words of the slot "COUNTERS".
    """

    calls: tuple[KernelCall, ...]
    workspace_bytes: int = 0
    counters: int = 0


@dataclass(frozen=True, slots=True)
class GemmCall:
    """What a recipe is made from: the problem as views over slots, and the device."""

    batch: int
    m: int
    n: int
    k: int
    a: View
    b: View
    out: View
    c: View | None
    bias: View | None
    activation: str
    precision: str
    wide: bool  # offsets need 64 bits
    arch: Arch
    alpha: Scalar = ALPHA
    beta: Scalar = BETA

    @classmethod
    def of(cls, problem: GemmProblem, arch: Arch) -> GemmCall:
        """The call that a problem describes."""
        c, bias = problem.epilogue.c, problem.epilogue.bias
        return cls(
            problem.batch,
            problem.m,
            problem.n,
            problem.k,
            View("A", problem.a),
            View("B", problem.b),
            View("OUT", problem.out),
            View("C", c) if c is not None else None,
            View("BIAS", bias) if bias is not None else None,
            problem.epilogue.activation,
            problem.precision,
            problem.needs_int64(),
            arch,
        )

    @property
    def dtype(self) -> str:
        """The inputs' dtype."""
        return self.a.dtype

    @property
    def acc_dtype(self) -> str:
        """The type products are summed in."""
        return accumulator_dtype(self.a.dtype)

    def swapped(self) -> GemmCall:
        """The same product as out.T = b.T @ a.T: a kernel's M side then holds N."""
        return replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b.T,
            b=self.a.T,
            out=self.out.T,
            c=self.c.T if self.c is not None else None,
            bias=self.bias.T if self.bias is not None else None,
        )
