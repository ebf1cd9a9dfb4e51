"""A kernel that leaves its process without a GPU, under a name that another process can import."""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_zoo.spec import KernelCall


@triton.jit
def wild_kernel(c_ptr, BLOCK: tl.constexpr):
    """Writes far outside of every allocation."""
    offsets = tl.arange(0, BLOCK).to(tl.int64) + 17592186044416
    tl.store(c_ptr + offsets, tl.zeros((BLOCK,), dtype=c_ptr.dtype.element_ty))


def wild_recipe(call, tile):
    """One program of it, whatever the problem."""
    return KernelCall(wild_kernel, (1,), (call.out,), {"BLOCK": 1024}, tile.num_warps, tile.num_stages)
