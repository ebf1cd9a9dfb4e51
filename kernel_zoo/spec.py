"""The vocabulary: what a GEMM call, a tile, a launch and a kernel variant are.

Lowest floor of the project. Imports the standard library only, so that choosing a kernel needs neither torch nor triton.
Every other room speaks in these words; nothing here knows how a kernel is written or launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

INT32_MAX: Final = 2**31 - 1
VECTOR_BYTES: Final = 16  # the widest global access of one thread, and what a TMA row must be a multiple of

ITEMSIZE: Final[dict[str, int]] = {
    "fp64": 8,
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "fp8e4m3": 1,
    "fp8e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}

DTYPE_ALIASES: Final[dict[str, str]] = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
    "fp8": "fp8e4m3",
}

ACTIVATIONS: Final = ("none", "relu", "gelu", "gelu_tanh", "silu", "leaky_relu")

#: How a product of fp32 numbers may be formed: exactly, on tensor cores with inputs rounded to TF32, or from sums of bf16 parts.
FP32_PRECISIONS: Final = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")

ScalarClass = Literal["0", "1", "x"]
Layout = Literal["n", "t", "s"]


def canonical_dtype(name: object) -> str:
    """The project's name of a dtype given as "bf16", "bfloat16" or torch.bfloat16.

    Raises:
        ValueError: the name is not known; the message lists the known ones.
    """
    text = str(name).removeprefix("torch.")
    text = DTYPE_ALIASES.get(text, text)
    if text not in ITEMSIZE:
        raise ValueError(f"dtype {name!r} is not known; known: {', '.join(ITEMSIZE)}")
    return text


def accumulator_dtype(dtype: str) -> str:
    """The type in which products of `dtype` are summed, alpha and beta applied, and split-K partial sums kept."""
    if dtype in ("fp64", "complex64", "complex128"):
        return dtype
    return "int32" if dtype in ("int8", "uint8", "int16", "int32", "int64") else "fp32"


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def pow2_divisor(value: int, limit: int) -> int:
    """The largest power of two, at most `limit`, that divides `value` (`limit` for 0)."""
    return math.gcd(value, limit)


def next_pow2(value: int) -> int:
    """The smallest power of two that is at least `value` and at least 1."""
    return 1 << max(value - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix, or a batch of them, as stored: (batch, rows, cols) with strides in elements.

    A batch stride of 0 means one matrix serves the whole batch. `align` is the largest power of two, at most 16, that divides the
    address in bytes.
    """

    dtype: str
    rows: int
    cols: int
    strides: tuple[int, int, int]
    align: int = VECTOR_BYTES

    @classmethod
    def of(cls, dtype: str, rows: int, cols: int, strides: tuple[int, int, int], align: int = VECTOR_BYTES, batch: int = 1) -> Operand:
        """An operand whose meaningless strides (those of size-1 dims) are replaced by the most regular ones."""
        batch_stride, row, col = strides
        padded = VECTOR_BYTES * cdiv(max(rows, cols, 1), VECTOR_BYTES)
        if rows <= 1 and cols <= 1:
            row, col = padded, 1
        elif rows <= 1:
            row = padded if col == 1 else max(row, 1)
        elif cols <= 1:
            row, col = (1, padded) if row == 1 else (row, 1)
        return cls(dtype, rows, cols, (batch_stride if batch > 1 else 0, row, col), align)

    @classmethod
    def dense(cls, dtype: str, rows: int, cols: int, *, transposed: bool = False, batch: int = 1) -> Operand:
        """A contiguous operand: row-major, or, where `transposed`, stored (cols, rows)."""
        strides = (rows * cols, 1, rows) if transposed else (rows * cols, cols, 1)
        return cls.of(dtype, rows, cols, strides, batch=batch)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def layout(self) -> Layout:
        """'n': rows are contiguous; 't': columns are (stored transposed); 's': neither."""
        if self.strides[2] == 1:
            return "n"
        return "t" if self.strides[1] == 1 else "s"

    @property
    def leading(self) -> int:
        """The stride, in elements, between two lines of the contiguous dimension (BLAS's leading dimension)."""
        return self.strides[2] if self.layout == "t" else self.strides[1]

    @property
    def line_align(self) -> int:
        """The largest power of two in bytes, at most 16, to which every contiguous line starts aligned (one element if strided)."""
        if self.layout == "s":
            return min(self.itemsize, VECTOR_BYTES)
        align = min(self.align, pow2_divisor(self.leading * self.itemsize, VECTOR_BYTES))
        return min(align, pow2_divisor(self.strides[0] * self.itemsize, VECTOR_BYTES))

    @property
    def T(self) -> Operand:  # noqa: N802  (the field's own name)
        """The same memory read as (cols, rows)."""
        batch, row, col = self.strides
        return Operand(self.dtype, self.cols, self.rows, (batch, col, row), self.align)

    def last_offset(self, batch: int) -> int:
        """The largest offset in elements that a kernel reaches, from which the index width follows."""
        sizes = (batch, self.rows, self.cols)
        return sum((size - 1) * abs(stride) for size, stride in zip(sizes, self.strides, strict=True) if size > 0)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to the accumulator before the store: activation(alpha * acc + beta * C + bias).

    alpha and beta are classes: "0", "1" or "x" for any other value. `c` is absent where beta is 0. `bias` is broadcast to (M, N)
    through strides of 0.
    """

    alpha: ScalarClass = "1"
    beta: ScalarClass = "0"
    c: Operand | None = None
    bias: Operand | None = None
    activation: str = "none"

    @property
    def plain(self) -> bool:
        """The accumulator is only rounded and stored."""
        return self.alpha == "1" and self.c is None and self.bias is None and self.activation == "none"


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """One call, described: out(batch, m, n) = epilogue(a(batch, m, k) @ b(batch, k, n)).

    `precision` is one of FP32_PRECISIONS for fp32 inputs and "" for the others. k is 0 where nothing is to be multiplied (K = 0 or
    alpha = 0): a and b are then never read.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    out: Operand
    epilogue: Epilogue = Epilogue()
    precision: str = ""
    deterministic: bool = False
    batch_invariant: bool = False

    @classmethod
    def of(
        cls,
        m: int,
        n: int,
        k: int,
        dtype: str = "bf16",
        layout: str = "nn",
        *,
        batch: int = 1,
        out_dtype: str | None = None,
        precision: str = "",
        epilogue: Epilogue = Epilogue(),  # noqa: B008  (frozen)
        deterministic: bool = False,
        batch_invariant: bool = False,
    ) -> GemmProblem:
        """A problem over contiguous, aligned matrices; `layout` "nt" means B is stored (N, K)."""
        dtype = canonical_dtype(dtype)
        if sorted(layout) not in (["n", "n"], ["n", "t"], ["t", "t"]):
            raise ValueError(f"layout {layout!r} is not known; known: nn, nt, tn, tt (the second letter 't': B is stored (N, K))")
        out_dtype = canonical_dtype(out_dtype) if out_dtype else default_out_dtype(dtype)
        return cls(
            batch,
            m,
            n,
            k,
            Operand.dense(dtype, m, k, transposed=layout[0] == "t", batch=batch),
            Operand.dense(dtype, k, n, transposed=layout[1] == "t", batch=batch),
            Operand.dense(out_dtype, m, n, batch=batch),
            epilogue,
            precision or ("ieee" if dtype == "fp32" else ""),
            deterministic,
            batch_invariant,
        )

    @property
    def dtype(self) -> str:
        """The inputs' dtype."""
        return self.a.dtype

    @property
    def acc_dtype(self) -> str:
        """The type products are summed in."""
        return accumulator_dtype(self.a.dtype)

    @property
    def layout(self) -> str:
        """The layouts of A and B as two letters, e.g. "nt" where B is stored (N, K)."""
        return self.a.layout + self.b.layout

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """Bytes moved if every operand is read, and out written, exactly once."""
        total = 0
        c = self.epilogue.c
        for operand in (self.a, self.b, self.out, *((c,) if c is not None else ())):
            copies = self.batch if operand.strides[0] or self.batch == 1 else 1
            total += copies * operand.rows * operand.cols * operand.itemsize
        return total

    @property
    def operands(self) -> dict[str, Operand]:
        """The operands present, by slot name."""
        named = {"A": self.a, "B": self.b, "C": self.epilogue.c, "BIAS": self.epilogue.bias, "OUT": self.out}
        return {name: operand for name, operand in named.items() if operand is not None}

    @property
    def shape_class(self) -> str:
        """The class under which results are reported: the first that matches."""
        if self.batch > 1:
            return "batched"
        if min(self.a.line_align, self.b.line_align, self.out.line_align) < VECTOR_BYTES:
            return "ragged"
        if min(self.m, self.n) <= 4:
            return "gemv"
        if min(self.m, self.n) <= 64:
            return "decode"
        if self.k >= 4096 and self.m * self.n <= 768**2:
            return "split-K"
        if self.m >= 4096 and self.n >= 4096 and self.k >= 1024:
            return "large"
        dims = (self.m, self.n, self.k)
        return "square" if max(dims) <= 3072 and max(dims) <= 4 * min(dims) else "prefill"

    def needs_int64(self) -> bool:
        """Some operand is reached by offsets that do not fit in 32 bits."""
        return any(operand.last_offset(self.batch) > INT32_MAX for operand in self.operands.values())

    def describe(self) -> str:
        """One line for errors, logs and reports."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        precision = f" {self.precision}" if self.precision else ""
        out = "" if self.out.dtype == self.dtype else f" -> {self.out.dtype}"
        return f"{batch}{self.m} x {self.n} x {self.k} {self.dtype}{precision}{out} {self.layout}"


def default_out_dtype(dtype: str) -> str:
    """The result's dtype where none is asked for."""
    return {"fp8e4m3": "bf16", "fp8e5m2": "bf16", "int8": "int32"}.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class Arch:
    """A device as the choice sees it. Rates are dense; `sources` says where each figure comes from."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    smem_per_block: int
    smem_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    clock_ghz: float
    bandwidth_gbps: float
    tflops: Mapping[str, float] = field(hash=False)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def cc(self) -> int:
        """The compute capability as one number: 90 for 9.0."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def has_tma(self) -> bool:
        """Tensor Memory Accelerator: bulk copies through descriptors."""
        return self.capability[0] >= 9


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How a variant cuts a problem up. What follows from the problem (even K, alignment, TMA legality) is derived, never stored."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 3
    knobs: tuple[tuple[str, int], ...] = ()

    def knob(self, name: str, default: int = 0) -> int:
        """The value of a variant's own knob."""
        return dict(self.knobs).get(name, default)

    def describe(self) -> str:
        """e.g. 128x256x64 g8 w8 s3 split4 subtile2."""
        split = f" split{self.split_k}" if self.split_k > 1 else ""
        knobs = "".join(f" {name}{value}" for name, value in self.knobs)
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{tile} g{self.group_m} w{self.num_warps} s{self.num_stages}{split}{knobs}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a variant cannot take a problem or a tile. explain and the error show the same sentence."""

    rule: str
    given: str
    needed: str

    @property
    def sentence(self) -> str:
        """given; needed."""
        return f"{self.given}; needs {self.needed}"


@dataclass(frozen=True, slots=True)
class View:
    """A kernel argument that points at an operand: its slot, and the memory behind it."""

    slot: str
    operand: Operand

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
        return View(self.slot, self.operand.T)


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
    """One launch, as data: the kernel, its grid, positional arguments, compile-time constants and launch options."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Argument, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True, slots=True)
class Recipe:
    """The launches a variant needs for one problem and tile, in order, and the workspace they share. Pure data; compiles nothing."""

    calls: tuple[KernelCall, ...]
    workspace_bytes: int = 0


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


def _accepts(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    return None


@dataclass(frozen=True)
class Variant:
    """One way to compute a GEMM.

    Attributes:
        name: unique; user variants carry a dot ("me.tutorial").
        summary: one sentence: what it is good for.
        supports: None where the variant can take the problem on the device, else the reason.
        space: candidate tiles for a problem, best guesses first; legality is checked by `fits`.
        fits: None where the tile is legal for the problem on the device, else the reason.
        recipe: the launches, from a call and a tile. None for an opaque variant, which has `launch` instead.
        launch: an opaque variant's own launch(problem, slots, alpha, beta); slots are torch tensors by slot name.
        reduction: names the order and instruction family of the K sum; equal strings mean equal bits per row.
        kernels: the jitted functions the recipe may launch; the source digest covers what they call.
        deterministic: repeats bit for bit.
        interpretable: the CPU interpreter can run it on this problem.
    """

    name: str
    summary: str
    supports: Callable[[GemmProblem, Arch], Refusal | None]
    space: Callable[[GemmProblem, Arch], Sequence[TileConfig]]
    recipe: Callable[[GemmCall, TileConfig], Recipe | KernelCall] | None = None
    fits: Callable[[GemmProblem, TileConfig, Arch], Refusal | None] = _accepts
    launch: Callable[..., None] | None = None
    reduction: Callable[[GemmProblem, TileConfig], str] = lambda problem, tile: "unspecified"
    kernels: tuple[Any, ...] = ()
    deterministic: bool = True
    interpretable: bool = True
    origin: Literal["zoo", "user"] = "zoo"

    @cached_property
    def digest(self) -> str:
        """Hash of the kernels' source, comments and docstrings left out, over all they call."""
        from kernel_zoo.digest import digest

        return digest(self.kernels or (self.launch,))

    def refusal(self, problem: GemmProblem, arch: Arch, tile: TileConfig | None = None) -> Refusal | None:
        """The single statement of legality: may this variant (with this tile) serve this problem on this device?"""
        refusal = self.supports(problem, arch)
        if refusal is None and tile is not None:
            refusal = self.fits(problem, tile, arch)
        return refusal

    def plan(self, problem: GemmProblem, tile: TileConfig, arch: Arch) -> Recipe:
        """The launches for one problem and tile."""
        if self.recipe is None:
            raise TypeError(f"variant {self.name} is opaque: it launches by itself and has no recipe")
        made = self.recipe(GemmCall.of(problem, arch), tile)
        return made if isinstance(made, Recipe) else Recipe((made,))


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel needs, read from its binary."""

    shared_bytes: int
    registers: int
    spills: int  # local-memory loads and stores (LDL, STL)
    instructions: tuple[str, ...]  # the kinds that matter: wgmma, mma, tma, cp.async, ffma


@dataclass(frozen=True, slots=True)
class Estimate:
    """A model's time for one tile, in microseconds, and what it is made of."""

    time_us: float
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal or refused way to serve the problem, as ranked by the choice."""

    variant: str
    tile: TileConfig | None
    estimate: Estimate | None = None
    refusal: Refusal | None = None
