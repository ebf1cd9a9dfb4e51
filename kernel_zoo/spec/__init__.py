"""The vocabulary: what a GEMM call, a tile, a launch and a kernel variant are.

Lowest floor of the project. Imports the standard library only, so that choosing a kernel needs neither torch nor triton.
Every other room speaks in these words; nothing here knows how a kernel is written or launched.
"""

from kernel_zoo.spec.choice import SPLITS, Arch, Candidate, Estimate, Refusal, Resources, TileConfig
from kernel_zoo.spec.dtypes import (
    ACTIVATIONS,
    DTYPE_ALIASES,
    FP32_PRECISIONS,
    INT32_MAX,
    ITEMSIZE,
    VECTOR_BYTES,
    accumulator_dtype,
    canonical_dtype,
    cdiv,
    default_out_dtype,
    next_pow2,
    pow2_divisor,
)
from kernel_zoo.spec.kind import FEW, ByForm, ByKind, Form, Kind
from kernel_zoo.spec.launches import ALPHA, BETA, Argument, Descriptor, GemmCall, KernelCall, Recipe, Scalar, View
from kernel_zoo.spec.needs import FORMS, binary_class, is_vectorised, tails, tile_key
from kernel_zoo.spec.problem import Epilogue, GemmProblem, Layout, Operand, ScalarClass
from kernel_zoo.spec.variant import Variant

__all__ = [
    "ACTIVATIONS",
    "ALPHA",
    "BETA",
    "DTYPE_ALIASES",
    "FEW",
    "FORMS",
    "FP32_PRECISIONS",
    "INT32_MAX",
    "ITEMSIZE",
    "SPLITS",
    "VECTOR_BYTES",
    "Arch",
    "Argument",
    "ByForm",
    "ByKind",
    "Candidate",
    "Descriptor",
    "Epilogue",
    "Estimate",
    "Form",
    "GemmCall",
    "GemmProblem",
    "KernelCall",
    "Kind",
    "Layout",
    "Operand",
    "Recipe",
    "Refusal",
    "Resources",
    "Scalar",
    "ScalarClass",
    "TileConfig",
    "Variant",
    "View",
    "accumulator_dtype",
    "binary_class",
    "canonical_dtype",
    "cdiv",
    "default_out_dtype",
    "is_vectorised",
    "next_pow2",
    "pow2_divisor",
    "tails",
    "tile_key",
]
