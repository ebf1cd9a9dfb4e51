"""Host-side facts shared by the kernel files: argument tuples, derived constants, and the rules several variants have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kernel_zoo.spec import (
    FP32_PRECISIONS,
    ITEMSIZE,
    VECTOR_BYTES,
    Arch,
    Argument,
    Descriptor,
    GemmCall,
    GemmProblem,
    Operand,
    Refusal,
    TileConfig,
    View,
    cdiv,
)

FLOAT_INPUTS: Final = ("fp16", "bf16", "fp32")
MAX_GRID_Y: Final = 65535  # CUDA's limit on the second and third grid dimension
TMA_BOX: Final = 256  # a TMA box has at most 256 elements a side


def first(refusals: Iterable[Refusal | None]) -> Refusal | None:
    """The first refusal, if any."""
    return next((refusal for refusal in refusals if refusal is not None), None)


def supports_float(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """What every Triton kernel of the zoo asks: floating-point types that it sums in fp32, and an Ampere GPU or newer."""
    if problem.dtype not in FLOAT_INPUTS or problem.b.dtype != problem.dtype:
        return Refusal("dtype", f"inputs are {problem.dtype}", "fp16, bf16 or fp32")
    for name, operand in problem.operands.items():
        if operand.dtype not in FLOAT_INPUTS:
            return Refusal("dtype", f"{name.lower()} is {operand.dtype}", "fp16, bf16 or fp32")
    if problem.dtype == "fp32" and problem.precision not in FP32_PRECISIONS:
        return Refusal("precision", f"precision is {problem.precision!r}", " or ".join(FP32_PRECISIONS))
    if arch.cc < 80:
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "8.0 or newer")
    return None


def needs_product(problem: GemmProblem) -> Refusal | None:
    """A kernel that always multiplies cannot serve a call with nothing to multiply."""
    return Refusal("empty", "k is 0 or alpha is 0: nothing is multiplied", "a product to compute") if problem.k == 0 else None


def register_limit(tile: TileConfig) -> Refusal | None:
    """The fp32 accumulator must leave room in a thread's 255 registers."""
    per_thread = tile.block_m * tile.block_n / (32 * tile.num_warps)
    if per_thread > 128:
        return Refusal("registers", f"the accumulator takes {per_thread:.0f} registers a thread", "at most 128")
    return None


def shared_memory_limit(problem: GemmProblem, tile: TileConfig, arch: Arch, epilogue_bytes: int = 0) -> Refusal | None:
    """The pipeline's buffers, and what the epilogue stages beside them, must fit a block's shared memory."""
    stage = (tile.block_m + tile.block_n) * tile.block_k * problem.a.itemsize
    needed = stage * tile.num_stages + epilogue_bytes
    if needed > arch.smem_per_block:
        return Refusal("shared memory", f"the tile takes {needed:,} bytes of shared memory", f"at most {arch.smem_per_block:,} on {arch.name}")
    return None


def tma_operand(name: str, operand: Operand, arch: Arch) -> Refusal | None:
    """Whether a tensor descriptor can be laid over an operand."""
    if not arch.has_tma:
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "9.0 or newer (TMA)")
    if operand.layout == "s":
        return Refusal("strides", f"{name} has strides {operand.strides[1:]}", "a unit stride in one dimension (TMA)")
    if operand.line_align < VECTOR_BYTES:
        given = f"{name}'s lines start at multiples of {operand.line_align} bytes (leading dimension {operand.leading}, {operand.dtype})"
        return Refusal("alignment", given, f"multiples of {VECTOR_BYTES} bytes (TMA)")
    if max(operand.rows, operand.cols) >= 2**31:
        return Refusal("size", f"{name} is {operand.rows} x {operand.cols}", "dimensions under 2^31 (TMA coordinates are 32-bit)")
    return None


def mma_tile(problem: GemmProblem, tile: TileConfig) -> Refusal | None:
    """Blocks are powers of two that a tensor-core (or FMA) dot accepts."""
    for name, value, least in (("block_m", tile.block_m, 8), ("block_n", tile.block_n, 8), ("block_k", tile.block_k, 16)):
        if value < least or value & (value - 1):
            return Refusal("tile", f"{name} is {value}", f"a power of two, at least {least}")
    return None


def refuses_ieee_tma(problem: GemmProblem) -> Refusal | None:
    """FMA dots read operands out of descriptors' swizzled tiles at the price of spilled registers."""
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return Refusal("precision", "precision is ieee, formed on FMA units", "a tensor-core precision (TMA tiles feed tensor cores)")
    return None


def tma_box(problem: GemmProblem, tile: TileConfig) -> Refusal | None:
    """A descriptor's box has at most 256 elements a side and 16 bytes along the contiguous one."""
    side = max(tile.block_m, tile.block_n, tile.block_k)
    if side > TMA_BOX:
        return Refusal("tile", f"a side of the tile is {side}", f"at most {TMA_BOX} (TMA box)")
    shortest = min(tile.block_m, tile.block_n, tile.block_k) * problem.a.itemsize
    if shortest < VECTOR_BYTES:
        return Refusal("tile", f"a side of the tile is {shortest} bytes", f"at least {VECTOR_BYTES} (TMA box)")
    return None


def descriptor_constants(call: GemmCall) -> dict[str, bool]:
    """How the operands' descriptors are laid: their own matrix per batch, stored transposed."""
    return {
        "A_BATCHED": call.a.batch_stride != 0,
        "B_BATCHED": call.b.batch_stride != 0,
        "A_TRANSPOSED": call.a.operand.layout == "t",
        "B_TRANSPOSED": call.b.operand.layout == "t",
    }


def descriptor(view: View, rows: int, cols: int, batch: int) -> Descriptor:
    """A descriptor that serves (rows, cols) tiles of a view, in the order the matrix is stored; 3-D where the batch has its own."""
    operand = view.operand
    if operand.layout == "t":
        shape, strides, block = (operand.cols, operand.rows), (operand.leading, 1), (cols, rows)
    else:
        shape, strides, block = (operand.rows, operand.cols), (operand.leading, 1), (rows, cols)
    if view.batch_stride:
        return Descriptor(view, (batch, *shape), (view.batch_stride, *strides), (1, *block))
    return Descriptor(view, shape, strides, block)


def even(call: GemmCall, tile: TileConfig) -> dict[str, bool]:
    """Which dimensions the tile divides, so that masks can be left out."""
    return {
        "EVEN_M": call.m % tile.block_m == 0,
        "EVEN_N": call.n % tile.block_n == 0,
        "EVEN_K": call.k % tile.block_k == 0,
    }


def blocks(tile: TileConfig) -> dict[str, int]:
    """The tile's sides as constants."""
    return {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}


def precision(call: GemmCall) -> dict[str, str]:
    """How the dot forms its products; narrow inputs are exact in fp32 whatever is asked."""
    return {"PRECISION": call.precision or "ieee"}


def epilogue_args(call: GemmCall) -> tuple[Argument, ...]:
    """C, bias, alpha, beta and the strides of C and bias, as every epilogue takes them."""
    return (
        call.c,
        call.bias,
        call.alpha,
        call.beta,
        *((call.c.batch_stride, *call.c.strides) if call.c else (0, 0, 0)),
        *((call.bias.batch_stride, *call.bias.strides) if call.bias else (0, 0, 0)),
    )


def epilogue_constants(call: GemmCall) -> dict[str, Any]:
    """Which parts the epilogue has."""
    kind = "none"
    if call.bias is not None:
        row, col = call.bias.strides
        rows_differ, cols_differ = row != 0 and call.m > 1, col != 0 and call.n > 1
        kind = "mn" if rows_differ and cols_differ else "m" if rows_differ else "n"
    return {"HAS_C": call.c is not None, "BIAS": kind, "ACTIVATION": call.activation}


def pointer_constants(call: GemmCall, tile: TileConfig) -> dict[str, Any]:
    """The constants of a kernel that reads through pointers and sums K in one pass."""
    return {
        **blocks(tile),
        "GROUP_M": tile.group_m,
        **even(call, tile),
        **precision(call),
        **epilogue_constants(call),
        "WIDE": call.wide,
    }


def one_pass(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    """A tile for a kernel that sums all of K in one program."""
    if tile.split_k != 1:
        return Refusal("tile", f"split_k is {tile.split_k}", "1: this variant sums K in one program")
    return first((mma_tile(problem, tile), register_limit(tile), shared_memory_limit(problem, tile, arch)))


def occupancy(itemsize: int, tile: TileConfig, arch: Arch) -> int:
    """Programs an SM is expected to hold, from shared memory, the accumulator's registers and threads. At least 1, at most 4."""
    shared = (tile.block_m + tile.block_n) * tile.block_k * itemsize * tile.num_stages + 1024
    threads = 32 * tile.num_warps
    registers = threads * min(255, tile.block_m * tile.block_n // threads + 72)
    return max(1, min(4, arch.smem_per_sm // shared, arch.registers_per_sm // registers, arch.threads_per_sm // threads))


def batch_grid(batch: int) -> tuple[int, int]:
    """The batch over grid dimensions 1 and 2, each within CUDA's 65535."""
    return min(batch, MAX_GRID_Y), cdiv(batch, MAX_GRID_Y)


def out_itemsize(problem: GemmProblem) -> int:
    """Bytes of one element of the result."""
    return ITEMSIZE[problem.out.dtype]


def product_args(call: GemmCall) -> tuple[Argument, ...]:
    """Operands, sizes and strides, as every pointer kernel takes them."""
    return (
        call.a,
        call.b,
        call.out,
        call.m,
        call.n,
        call.k,
        call.batch,
        call.a.batch_stride,
        *call.a.strides,
        call.b.batch_stride,
        *call.b.strides,
        call.out.batch_stride,
        *call.out.strides,
    )


def instruction_family(problem: GemmProblem, tile: TileConfig) -> str:
    """Which units form the products: their internal order of summation is part of a result's bits."""
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return f"fma-k{tile.block_k}"
    wgmma = tile.block_m >= 64 and tile.num_warps >= 4
    return f"{'wgmma' if wgmma else 'mma'}-{problem.precision or problem.dtype}-k{tile.block_k}"


def sequential_reduction(problem: GemmProblem, tile: TileConfig) -> str:
    """K summed front to back by one program."""
    return f"sequential {instruction_family(problem, tile)}"


def tiles(*specs: tuple[int, ...]) -> list[TileConfig]:
    """TileConfigs from (block_m, block_n, block_k, num_stages, num_warps) rows."""
    return [TileConfig(m, n, k, num_stages=s, num_warps=w) for m, n, k, s, w in specs]


def pointer_tiles(problem: GemmProblem) -> list[TileConfig]:
    """Candidate tiles for a main loop through pointers."""
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return tiles(
            (16, 64, 32, 3, 4), (32, 32, 32, 3, 4), (32, 64, 32, 3, 4), (64, 32, 32, 3, 4), (64, 64, 16, 4, 4),
            (64, 64, 32, 3, 4), (64, 128, 16, 3, 4), (128, 64, 16, 3, 4), (128, 64, 16, 3, 8), (128, 128, 16, 3, 8),
            (128, 128, 16, 2, 8), (128, 128, 8, 4, 8),
        )  # fmt: skip
    if problem.dtype == "fp32":
        return tiles(
            (16, 64, 64, 3, 4), (32, 64, 32, 4, 4), (64, 64, 32, 3, 4), (64, 128, 32, 3, 4), (128, 64, 32, 3, 4),
            (128, 128, 32, 3, 8), (128, 128, 16, 3, 8), (64, 64, 64, 2, 4),
        )  # fmt: skip
    return tiles(
        (16, 32, 128, 4, 4), (16, 64, 128, 4, 4), (32, 32, 128, 4, 4), (32, 64, 128, 4, 4), (64, 16, 128, 5, 4), (64, 32, 128, 5, 4),
        (64, 64, 64, 4, 4), (64, 64, 128, 3, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (128, 128, 32, 4, 8), (128, 128, 64, 3, 4),
        (128, 128, 64, 4, 8), (128, 256, 64, 3, 8), (256, 128, 64, 3, 8),
    )  # fmt: skip
