"""Element types, and the small arithmetic every room shares."""

from __future__ import annotations

import math
from typing import Final

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


def default_out_dtype(dtype: str) -> str:
    """The result's dtype where none is asked for."""
    return {"fp8e4m3": "bf16", "fp8e5m2": "bf16", "int8": "int32"}.get(dtype, dtype)


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def pow2_divisor(value: int, limit: int) -> int:
    """The largest power of two, at most `limit`, that divides `value` (`limit` for 0)."""
    return math.gcd(value, limit)


def next_pow2(value: int) -> int:
    """The smallest power of two that is at least `value` and at least 1."""
    return 1 << max(value - 1, 0).bit_length()
