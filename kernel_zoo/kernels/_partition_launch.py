"""The launch of the warp-specialised families, from a call, a tile and the way in which its program is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernel_zoo.kernels import _args, _rules
from kernel_zoo.kernels._partitions import EARLY_US, PIECE_ROWS, Build, Staging, out_through_tma
from kernel_zoo.spec import Argument, Descriptor, GemmCall, KernelCall, TileConfig, View, cdiv


def _flat(view: View, rows: int, cols: int, batch: int) -> tuple[Descriptor, int]:
    """A descriptor for blocks of all of a batch's matrices, and how many lines these lie apart; 0 where all share one."""
    single = _args.descriptor(replace(view, operand=replace(view.operand, strides=(0, *view.strides))), rows, cols, 1)
    apart = view.batch_stride // view.operand.leading
    outer, inner = single.shape
    return replace(single, view=view, shape=(outer + (batch - 1) * apart, inner)), apart


def launch(kernel: Any, build: Build, call: GemmCall, tile: TileConfig) -> KernelCall:
    """One launch of as many programs as there are tiles, at most one an SM."""
    view = call.swapped() if tile.knob("swap") else call
    out = view.out.operand
    through_tma, transposed = out_through_tma(out, view.arch), out.layout == "t"
    c, bias = (each.operand if each else None for each in (view.c, view.bias))
    staging = Staging.of(build, tile, view.a.operand.itemsize, out, len(_rules.full_reads(c, bias)), view.arch.smem_per_block)
    rest = tile.block_n - build.first_n
    tiles_m, tiles_n = cdiv(view.m, tile.block_m), cdiv(view.n, tile.block_n)
    dependent = _args.is_dependent(view, tile, EARLY_US)
    a, a_lines = _flat(view.a, tile.block_m // build.parts, tile.block_k, view.batch)
    b, b_lines = _flat(view.b, tile.block_k, build.first_n, view.batch)
    target: Argument = view.out
    rest_target, out_lines = None, 0
    if through_tma:
        target, out_lines = _flat(view.out, PIECE_ROWS, staging.columns, view.batch)
        if 0 < staging.rest_columns < staging.columns:
            rest_target, _ = _flat(view.out, PIECE_ROWS, staging.rest_columns, view.batch)
    return KernelCall(
        kernel,
        (min(view.batch * tiles_m * tiles_n, view.arch.sm_count),),
        (
            a,
            b,
            _flat(view.b, tile.block_k, rest, view.batch)[0] if rest else None,
            target,
            rest_target,
            view.batch,
            view.m,
            view.n,
            view.k,
            _walk(tile, tiles_m),
            a_lines,
            b_lines,
            out_lines,
            *((0, 0) if through_tma else view.out.strides),
            view.c,
            view.bias,
            view.alpha,
            view.beta,
            *(view.c.strides if view.c else (0, 0)),
            *(view.bias.strides if view.bias else (0, 0)),
            view.c.batch_stride if view.c else 0,
            view.bias.batch_stride if view.bias else 0,
        ),
        {
            **_args.blocks(tile),
            "FIRST_N": build.first_n,
            "STAGES": tile.num_stages,
            "PARTS": build.parts,
            "PIECE_N": staging.columns,
            "REST_PIECE_N": staging.rest_columns,
            "BUFFERS": staging.buffers,
            "GROUP": staging.group,
            "A_TRANSPOSED": view.a.operand.layout == "t",
            "B_TRANSPOSED": view.b.operand.layout == "t",
            "OUT_TMA": through_tma,
            "OUT_TRANSPOSED": through_tma and transposed,
            **_args.epilogue_constants(view),
            "WIDE": view.wide and not (through_tma and view.c is None and view.bias is None),
            "DEPENDENT": dependent,
        },
        num_warps=4,
        num_stages=tile.num_stages,
        dependent=dependent,
    )


def _walk(tile: TileConfig, tiles_m: int) -> int:
    """Tile rows that are walked together, as the kernel takes them: negative where every second band is walked back."""
    rows = min(tile.group_m, tiles_m)
    return -rows if tile.knob("serpentine") else rows
