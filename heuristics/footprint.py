"""What a tile makes of a problem on a device: tiles, programs and waves, the share of them that is used, launches and workspace.

Worked out from sizes and the variant's recipe, which compiles nothing. What a candidate is compared by, and what explain shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from heuristics.occupancy import Occupancy, of_tile
from heuristics.resources import ResourceTable
from heuristics.traits import traits_of
from kernel_zoo.spec import Arch, GemmProblem, TileConfig, Variant, cdiv


@dataclass(frozen=True, slots=True)
class Footprint:
    """A tile at work.

    Attributes:
        tiles: of the result, over the batch.
        programs: tiles times the split of K: what there is to run.
        resident: the programs started are no more than fit at once, and walk over the tiles.
        at_once: programs that the device holds together.
        waves: programs over that.
        last_wave: the share of the last wave that has something to do.
        busy_sms: SMs that get a program at all.
        tile_use: the share of the tiles' products that lie inside the matrices; None where K is 0.
        launches: kernels started.
        workspace_bytes: scratch memory of a call.
    """

    tiles: int
    programs: int
    resident: bool
    at_once: int
    waves: float
    last_wave: float
    busy_sms: int
    tile_use: float | None
    launches: int
    workspace_bytes: int
    occupancy: Occupancy


def footprint(
    problem: GemmProblem, arch: Arch, variant: str, record: Variant | None, tile: TileConfig | None, resources: ResourceTable | None
) -> Footprint | None:
    """The footprint of a variant's tile; None where there is no tile or nothing to compute. `record` knows the recipe."""
    if tile is None or problem.empty:
        return None
    compiled = resources.find(problem, record, tile) if resources is not None and record is not None else None
    held = of_tile(problem, arch, variant, tile, compiled)
    rows, cols = tile_counts(problem, variant, tile)
    tiles = rows * cols * problem.batch
    programs = tiles * tile.split_k
    at_once = arch.sm_count * max(held.programs, 1)
    launches, workspace = _recipe(problem, arch, record, tile)
    return Footprint(
        tiles=tiles,
        programs=programs,
        resident=traits_of(variant, tile).resident,
        at_once=at_once,
        waves=programs / at_once,
        last_wave=last_wave(programs, at_once),
        busy_sms=min(programs, arch.sm_count),
        tile_use=_tile_use(problem, variant, tile, rows, cols),
        launches=launches,
        workspace_bytes=workspace,
        occupancy=held,
    )


def tile_counts(problem: GemmProblem, variant: str, tile: TileConfig) -> tuple[int, int]:
    """Tiles along the kernel's M and N; a gemv does not cut the narrow side."""
    if traits_of(variant).vector:
        return 1, cdiv(max(problem.m, problem.n), tile.block_n)
    rows, cols = (problem.n, problem.m) if tile.knob("swap") else (problem.m, problem.n)
    return cdiv(rows, tile.block_m), cdiv(cols, tile.block_n)


def last_wave(programs: int, at_once: int) -> float:
    """The share of the last wave that has something to do."""
    return ((programs - 1) % at_once + 1) / at_once


def _tile_use(problem: GemmProblem, variant: str, tile: TileConfig, rows: int, cols: int) -> float | None:
    if problem.k <= 0:
        return None
    height = min(problem.m, problem.n) if traits_of(variant).vector else rows * tile.block_m
    padded = height * cols * tile.block_n * cdiv(problem.k, tile.block_k) * tile.block_k
    return problem.m * problem.n * problem.k / padded


def _recipe(problem: GemmProblem, arch: Arch, record: Variant | None, tile: TileConfig) -> tuple[int, int]:
    """Launches and workspace."""
    if record is None or record.recipe is None:
        return 1, 0
    try:
        recipe = record.plan(problem, tile, arch)
    except Exception:  # a registered recipe is the user's code, and nothing is launched here
        return 1, 0
    return max(len(recipe.calls), 1), recipe.workspace_bytes
