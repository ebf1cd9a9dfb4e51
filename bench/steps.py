"""The steps of the ladder, and the kernels of it that the zoo lacks because nobody should use them.

`scalar` is the GEMM of every first CUDA lesson: one thread holds one element of the result and walks along K, both factors read
from global memory each time. No shared memory, no tensor core, no reuse but what the caches happen to give. It is not registered,
so no choice can ever pick it. All other steps are variants of the zoo, most with a forced tile.
"""

# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernel_zoo.spec import Arch, GemmCall, GemmProblem, KernelCall, Refusal, TileConfig, Variant, cdiv
from kernel_zoo.triton_compat import tl, triton


@triton.jit
def scalar_kernel(
    A, B, OUT, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_om, stride_on,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One element of the result a thread, tiles in the order of memory."""
    # One dimension, so that there is one way to lay the tile over the threads and nothing is exchanged between them.
    element = tl.arange(0, BLOCK_M * BLOCK_N)
    tiles_n = tl.cdiv(N, BLOCK_N)
    row = (tl.program_id(0) // tiles_n) * BLOCK_M + element // BLOCK_N
    col = (tl.program_id(0) % tiles_n) * BLOCK_N + element % BLOCK_N
    mask = (row < M) & (col < N)
    a_ptrs = A + row * stride_am
    b_ptrs = B + col * stride_bn
    acc = tl.full((BLOCK_M * BLOCK_N,), 0, tl.float32)
    for _ in range(0, K):
        a = tl.load(a_ptrs, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=mask, other=0.0).to(tl.float32)
        acc += a * b
        a_ptrs += stride_ak
        b_ptrs += stride_bk
    tl.store(OUT + row * stride_om + col * stride_on, acc.to(OUT.dtype.element_ty), mask=mask)


_FLOATS: Final = ("fp16", "bf16", "fp32")
#: 32 x 32 elements on 32 warps: as many threads as elements.
SCALAR_TILE: Final = TileConfig(32, 32, 1, group_m=1, num_warps=32, num_stages=1)


def supports(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """One plain product of floats within reach of 32-bit offsets."""
    if problem.dtype not in _FLOATS or problem.precision not in ("", "ieee"):
        return Refusal("dtype", f"inputs are {problem.dtype} {problem.precision}".rstrip(), "fp16, bf16 or fp32 (ieee)")
    if problem.batch != 1 or not problem.epilogue.plain:
        return Refusal("problem", f"{problem.describe()} is more than one plain product", "a @ b and nothing else")
    return Refusal("size", "offsets pass 2^31", "smaller operands") if problem.needs_int64() else None


def space(problem: GemmProblem, arch: Arch) -> tuple[TileConfig, ...]:
    """The one tile there is."""
    return (SCALAR_TILE,)


def recipe(call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch of a program a tile."""
    return KernelCall(
        scalar_kernel,
        (cdiv(call.m, tile.block_m) * cdiv(call.n, tile.block_n),),
        (call.a, call.b, call.out, call.m, call.n, call.k, *call.a.strides, *call.b.strides, *call.out.strides),
        {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n},
        tile.num_warps,
        tile.num_stages,
    )


SCALAR: Final = Variant(
    name="scalar",
    summary="one element a thread, for the ladder only",
    supports=supports,
    space=space,
    recipe=recipe,
    kernels=(scalar_kernel,),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One rung.

    Attributes:
        name: what it adds to the step before.
        variant: the kernel, by its name in the zoo; "" is what minblas picks of all.
        tile: its tile; None is the one that minblas picks for the variant.
        precision: how fp32 products are formed, where that is not the ladder's own way: then the step is compared with none before.
    """

    name: str
    variant: str = ""
    tile: TileConfig | None = None
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Steps from the naive kernel to the fastest, for one product.

    Attributes:
        sizes: M, N and K that are timed.
        small: M, N and K that the interpreter checks: ragged, and with lines as well aligned as those of `sizes`.
    """

    dtype: str
    sizes: tuple[int, int, int]
    small: tuple[int, int, int]
    steps: tuple[Step, ...]

    def problem(self, sizes: tuple[int, int, int], precision: str = "") -> GemmProblem:
        """The plain row-major product of those sizes, as a step forms it."""
        return GemmProblem.of(*sizes, self.dtype, "nn", precision=precision)


def _tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8, **knobs: int) -> TileConfig:
    return TileConfig(m, n, k, group_m=group, num_warps=warps, num_stages=stages, knobs=tuple(sorted(knobs.items())))


_BF16: Final = (
    Step("one element a thread", SCALAR.name, SCALAR_TILE),
    Step("a 32 x 32 tile on tensor cores", "tiled", _tile(32, 32, 32, 4, 1, group=1)),
    Step("a 128 x 128 tile", "tiled", _tile(128, 128, 64, 8, 1, group=1)),
    Step("tiles in groups that share L2", "tiled", _tile(128, 128, 64, 8, 1)),
    Step("loads 4 stages ahead", "tiled", _tile(128, 128, 64, 8, 4)),
    Step("a 128 x 256 tile", "tiled", _tile(128, 256, 64, 8, 3)),
    Step("TMA descriptors", "tma", _tile(128, 256, 64, 8, 3)),
    Step("resident programs", "tma", _tile(128, 256, 64, 8, 3, persistent=1)),
    Step("tiles and K as one loop", "tma", _tile(128, 256, 64, 8, 3, persistent=1, flatten=1)),
    Step("the store in two pieces, a 4th stage", "tma", _tile(128, 256, 64, 8, 4, persistent=1, flatten=1, subtile=2)),
    Step("warps for loading, two that share a tile", "warp_specialised"),
    Step("two tiles that take turns", "ping_pong"),
    Step("what minblas picks"),
)
_FP32: Final = (
    Step("one element a thread", SCALAR.name, SCALAR_TILE),
    Step("a 32 x 32 tile in shared memory", "tiled", _tile(32, 32, 32, 4, 1, group=1)),
    Step("a 64 x 64 tile", "tiled", _tile(64, 64, 32, 4, 1, group=1)),
    Step("tiles in groups that share L2", "tiled", _tile(64, 64, 32, 4, 1)),
    Step("loads 3 stages ahead", "tiled", _tile(64, 64, 32, 4, 3)),
    Step("a 64 x 128 tile, shorter along K", "tiled", _tile(64, 128, 16, 4, 3)),
    Step("resident programs", "persistent", _tile(64, 128, 16, 4, 3)),
    Step("what minblas picks"),
    Step("other precision: six bf16 products", precision="bf16x6"),
    Step("other precision: inputs rounded to TF32", precision="tf32"),
)
LADDERS: Final = (
    Ladder("bf16", (4096, 4096, 4096), (136, 152, 104), _BF16),
    Ladder("fp32", (4092, 4092, 4092), (68, 140, 44), _FP32),
)
