"""A GEMM call, described: operands as stored, the epilogue, the problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kernel_zoo.spec.dtypes import (
    INT32_MAX,
    ITEMSIZE,
    VECTOR_BYTES,
    accumulator_dtype,
    canonical_dtype,
    cdiv,
    default_out_dtype,
)

ScalarClass = Literal["0", "1", "x"]
Layout = Literal["n", "t", "s"]


class _Aligned:
    """Room for what is worked out of an operand when it is first asked for: a choice asks for it a dozen times."""

    __slots__ = ("_line_align",)
    _line_align: int


@dataclass(frozen=True, slots=True)
class Operand(_Aligned):
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
    def of(
        cls, dtype: str, rows: int, cols: int, strides: tuple[int, int, int], align: int = VECTOR_BYTES, batch: int = 1
    ) -> Operand:
        """An operand whose meaningless strides (those of size-1 dims) are replaced by the most regular ones."""
        batch_stride, row, col = strides
        padded = VECTOR_BYTES * cdiv(max(rows, cols, 1), VECTOR_BYTES)
        if rows <= 1 and cols <= 1:
            row, col = padded, 1
        elif rows <= 1:
            row = padded if col == 1 else 1
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
        _, row, col = self.strides
        return "n" if col == 1 else "t" if row == 1 else "s"

    @property
    def leading(self) -> int:
        """The stride, in elements, between two lines of the contiguous dimension (BLAS's leading dimension)."""
        _, row, col = self.strides
        return col if row == 1 and col != 1 else row

    @property
    def line_align(self) -> int:
        """The largest power of two in bytes, at most 16, to which every contiguous line starts aligned (one element if strided)."""
        found: int | None = getattr(self, "_line_align", None)
        if found is None:  # not asked for yet
            itemsize, (batch, row, col) = ITEMSIZE[self.dtype], self.strides
            if row != 1 and col != 1:
                found = min(itemsize, VECTOR_BYTES)
            else:
                leading = row if col == 1 else col
                found = math.gcd(self.align, VECTOR_BYTES, leading * itemsize, batch * itemsize)  # of powers of two: the least
            object.__setattr__(self, "_line_align", found)
        return found

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
        epilogue: Epilogue = Epilogue(),
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
    def empty(self) -> bool:
        """There is no result to compute. K of 0 is another matter: it leaves the epilogue."""
        return self.m <= 0 or self.n <= 0 or self.batch <= 0

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """Bytes moved if every operand is read, and out written, exactly once."""
        total, batch, c = 0, self.batch, self.epilogue.c
        for operand in (self.a, self.b, self.out, c) if c is not None else (self.a, self.b, self.out):
            copies = batch if operand.strides[0] or batch == 1 else 1
            total += copies * operand.rows * operand.cols * ITEMSIZE[operand.dtype]
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
