"""Kernels in Gluon for tests: a copy by TMA, and one whose loads and stores are another warp's than the default partition's."""

from __future__ import annotations

from kernel_zoo.spec import Descriptor, KernelCall, Operand, View
from kernel_zoo.triton_compat import gl, gluon, hopper

BLOCK = (64, 64)


@gluon.jit
def _load(x, buffer, ready, row, col):
    hopper.mbarrier.expect(ready, x.block_type.nbytes)
    hopper.tma.async_copy_global_to_shared(x, [row, col], ready, buffer)


@gluon.jit(do_not_specialize=["ROWS", "COLS"])
def copy(x, out, ROWS, COLS):
    """out = x, a block a program; the grid is (rows of blocks, columns of blocks)."""
    row = gl.program_id(0) * x.block_type.shape[0]
    col = gl.program_id(1) * x.block_type.shape[1]
    buffer = gl.allocate_shared_memory(x.dtype, x.block_type.shape, x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
    hopper.mbarrier.init(ready, count=1)
    if row < ROWS and col < COLS:
        _load(x, buffer, ready, row, col)
        hopper.mbarrier.wait(ready, 0)
        hopper.tma.async_copy_shared_to_global(out, [row, col], buffer)
        hopper.tma.store_wait(0)
    hopper.mbarrier.invalidate(ready)


@gluon.jit
def _store(out, buffer, ready, row, col):
    hopper.mbarrier.wait(ready, 0)
    hopper.tma.async_copy_shared_to_global(out, [row, col], buffer)
    hopper.tma.store_wait(0)


@gluon.jit(do_not_specialize=["ROWS", "COLS"])
def handed_copy(x, out, ROWS, COLS):
    """The same, loaded by a warp of its own, and stored by the default partition."""
    row = gl.program_id(0) * x.block_type.shape[0]
    col = gl.program_id(1) * x.block_type.shape[1]
    buffer = gl.allocate_shared_memory(x.dtype, x.block_type.shape, x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
    hopper.mbarrier.init(ready, count=1)
    hopper.fence_async_shared()
    gl.warp_specialize(
        [(_store, (out, buffer, ready, row, col)), (_load, (x, buffer, ready, row, col))],
        [1],
        [24],
    )


def copying(kernel: object, rows: int, cols: int, dtype: str = "bf16", offset: int = 0) -> KernelCall:
    """A copy of A, from so many bytes into it, to OUT."""
    operand = Operand.dense(dtype, rows, cols)
    views = View("A", operand, offset), View("OUT", operand)
    x, out = (Descriptor(view, (rows, cols), (cols, 1), BLOCK) for view in views)
    return KernelCall(kernel, (-(-rows // BLOCK[0]), -(-cols // BLOCK[1])), (x, out, rows, cols), {}, num_warps=4, num_stages=1)
