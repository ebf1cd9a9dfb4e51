"""What takes the place of torch's own products inside `accelerate`: kernels for aten::mm and its relatives.

They sit on the device's dispatch key, below autograd, autocast and every mode, where operands are plain tensors. Each asks
`product` for the result and, where the answer is None, calls the kernel it replaced: what is not served is torch's own, errors
included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from minblas.accelerate_product import product

Kernel = Callable[..., Any]

#: Overloads by the shape of their arguments. mv is an addmv_ with beta 0, addbmm a row of addmm_.
_PRODUCTS: Final = ("mm", "bmm")
_SUMS: Final = ("addmm", "baddbmm")
OVERLOADS: Final = (
    *(f"{name}{suffix}" for name in (*_PRODUCTS, *_SUMS) for suffix in ("", ".out", ".dtype", ".dtype_out")),
    *(f"{name}_" for name in (*_SUMS, "addmv")),
    "addmv",
    "addmv.out",
)


def kernel_for(overload: str, original: Any) -> Kernel:
    """A kernel for an overload of `OVERLOADS`, which calls the original for what it does not serve."""
    name = overload.split(".")[0]
    if name == "addmv":
        return _vector_sum(overload, original)
    if name == "addmv_":
        return _vector_sum_in_place(overload, original)
    if name.endswith("_"):
        return _sum_in_place(overload, original)
    return (_product if name in _PRODUCTS else _sum)(overload, original)


def _product(name: str, original: Any) -> Kernel:
    """(M, K) @ (K, N), or a batch of them; the type of the result where the overload names one."""

    def kernel(keyset: Any, self: Tensor, mat2: Tensor, *out_dtype: torch.dtype, out: Tensor | None = None) -> Any:
        served = product(name, self, mat2, None, out, 1.0, 0.0, *out_dtype)
        if served is not None:
            return served
        target = {} if out is None else {"out": out}
        return original.call_boxed(keyset, self, mat2, *out_dtype, **target)

    return kernel


def _sum(name: str, original: Any) -> Kernel:
    """beta * input + alpha * (M, K) @ (K, N), or a batch of them."""

    def kernel(
        keyset: Any, self: Tensor, one: Tensor, two: Tensor, *out_dtype: torch.dtype,
        beta: Any = 1, alpha: Any = 1, out: Tensor | None = None,
    ) -> Any:  # fmt: skip
        served = product(name, one, two, self, out, alpha, beta, *out_dtype)
        if served is not None:
            return served
        target = {} if out is None else {"out": out}
        return original.call_boxed(keyset, self, one, two, *out_dtype, beta=beta, alpha=alpha, **target)

    return kernel


def _sum_in_place(name: str, original: Any) -> Kernel:
    def kernel(keyset: Any, self: Tensor, one: Tensor, two: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if product(name, one, two, self, self, alpha, beta) is not None:
            return self
        return original.call_boxed(keyset, self, one, two, beta=beta, alpha=alpha)

    return kernel


def _vector_sum(name: str, original: Any) -> Kernel:
    """beta * input + alpha * (M, K) @ (K,): the vector as a matrix of one column."""

    def kernel(
        keyset: Any, self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
    ) -> Any:
        if vec.dim() == 1 and self.dim() <= 1 and (out is None or out.dim() == 1):
            target = None if out is None else out.unsqueeze(1)
            served = product(name, mat, vec.unsqueeze(1), self.unsqueeze(-1), target, alpha, beta)
            if served is not None:
                return served.squeeze(1) if out is None else out
        rest = {} if out is None else {"out": out}
        return original.call_boxed(keyset, self, mat, vec, beta=beta, alpha=alpha, **rest)

    return kernel


def _vector_sum_in_place(name: str, original: Any) -> Kernel:
    def kernel(keyset: Any, self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if vec.dim() == 1 and self.dim() == 1:
            column = self.unsqueeze(1)
            if product(name, mat, vec.unsqueeze(1), column, column, alpha, beta) is not None:
                return self
        return original.call_boxed(keyset, self, mat, vec, beta=beta, alpha=alpha)

    return kernel
