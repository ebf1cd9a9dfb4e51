"""A kernel that counts its programs, for tests of counters and of views that start inside their slot."""

from __future__ import annotations

from typing import Any

from kernel_zoo.spec import GemmCall, KernelCall, Operand, Recipe, TileConfig, Variant, View
from kernel_zoo.triton_compat import tl, triton

PROGRAMS = 8
WORDS = 40  # of counters; the kernel counts in the last


@triton.jit(do_not_specialize=["AT", "TIMES"])
def tally(out, work, counters, AT, TIMES, CLEAN: tl.constexpr):
    """The last program to arrive writes how many there were, by way of the workspace, and clears the counter if CLEAN."""
    before = tl.atomic_add(counters + AT, TIMES)
    if before == (tl.num_programs(0) - 1) * TIMES:
        count = (before + TIMES).to(tl.float32)
        if work is not None:
            tl.store(work, count)
            tl.debug_barrier()
            count = tl.load(work)
        tl.store(out, count.to(out.dtype.element_ty))
        if CLEAN:
            tl.store(counters + AT, 0)


def variant_of(
    name: str = "test.tally", clean: bool = True, dependent: bool = False, workspace: bool = True, **changes: Any
) -> Variant:
    """A variant that writes PROGRAMS into OUT's first element."""

    def recipe(call: GemmCall, tile: TileConfig) -> Recipe:
        work = View("WS", Operand.dense("fp32", 1, 1), 256) if workspace else None
        counters = View("COUNTERS", Operand.dense("int32", 1, WORDS))
        arguments = (call.out, work, counters, WORDS - 1, 1)
        launched = KernelCall(tally, (PROGRAMS,), arguments, {"CLEAN": clean}, 1, 1, dependent=dependent)
        return Recipe((launched,), workspace_bytes=512 if workspace else 0, counters=WORDS)

    nothing = lambda problem, arch: None  # noqa: E731
    tiles = lambda problem, arch: (TileConfig(16, 16, 16),)  # noqa: E731
    return Variant(name, "counts", nothing, tiles, recipe, kernels=(tally,), origin="user", **changes)
