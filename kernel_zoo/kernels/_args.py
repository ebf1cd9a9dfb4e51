"""What launches are made of: argument tuples in the order the kernels take them, and constants derived from a call and a tile."""

from __future__ import annotations

from typing import Any, Final

from kernel_zoo.spec import Argument, Descriptor, GemmCall, TileConfig, View, cdiv

DEPENDENT_CC: Final = 90  # griddepcontrol came with Hopper
SHORT_US: Final = 2.5
MAX_GRID_Y: Final = 65535  # CUDA's limit on the second and third grid dimension


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


def blocks(tile: TileConfig) -> dict[str, int]:
    """The tile's sides as constants."""
    return {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}


def even(call: GemmCall, tile: TileConfig) -> dict[str, bool]:
    """Which dimensions the tile divides, so that masks can be left out."""
    return {
        "EVEN_M": call.m % tile.block_m == 0,
        "EVEN_N": call.n % tile.block_n == 0,
        "EVEN_K": call.k % tile.block_k == 0,
    }


def precision(call: GemmCall) -> dict[str, str]:
    """How the dot forms its products; narrow inputs are exact in fp32 whatever is asked."""
    return {"PRECISION": call.precision or "ieee"}


def epilogue_constants(call: GemmCall) -> dict[str, Any]:
    """Which parts the epilogue has."""
    kind = "none"
    if call.bias is not None:
        row, col = call.bias.strides
        rows_differ, cols_differ = row != 0 and call.m > 1, col != 0 and call.n > 1
        kind = "mn" if rows_differ and cols_differ else "m" if rows_differ else "n"
    return {"HAS_C": call.c is not None, "BIAS": kind, "ACTIVATION": call.activation}


def descriptor_constants(call: GemmCall) -> dict[str, bool]:
    """How the operands' descriptors are laid: their own matrix per batch, stored transposed."""
    return {
        "A_BATCHED": call.a.batch_stride != 0,
        "B_BATCHED": call.b.batch_stride != 0,
        "A_TRANSPOSED": call.a.operand.layout == "t",
        "B_TRANSPOSED": call.b.operand.layout == "t",
    }


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


def is_dependent(call: GemmCall, tile: TileConfig, longest_us: float = SHORT_US) -> bool:
    """Whether a launch may start while the one before it on the stream ends: as the tile says, else where the roof is short.

    It takes away about a microsecond. But programs that start early go to whatever SM is free by then, not evenly over all, and
    where they live long that costs more: on an H200 1.1 to 1.3 times as fast under a roof of 2 us, 0.97 beyond 10 us
    (docs/kernels.md). Between them it is the shape's own affair, which is what the knob is for.
    """
    if call.arch.cc < DEPENDENT_CC:
        return False
    early = tile.knob("early", -1)
    return bool(early) if early >= 0 else roof_us(call) <= longest_us


def roof_us(call: GemmCall) -> float:
    """Microseconds below which the device's rates do not let a product fall."""
    item = call.a.operand.itemsize
    moved = call.batch * (item * call.k * (call.m + call.n) + call.out.operand.itemsize * call.m * call.n)
    products_us = 2 * call.batch * call.m * call.n * call.k / (call.arch.tflops["bf16"] * 1e6)
    return max(products_us * item / 2, moved / (call.arch.bandwidth_gbps * 1e3))


def batch_grid(batch: int) -> tuple[int, int]:
    """The batch over grid dimensions 1 and 2, each within CUDA's 65535."""
    return min(batch, MAX_GRID_Y), cdiv(batch, MAX_GRID_Y)
