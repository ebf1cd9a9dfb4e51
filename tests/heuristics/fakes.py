"""Variants, rows and tables made up for tests: no kernel behind them."""

from __future__ import annotations

from heuristics.archs import get_arch
from heuristics.table import Environment, HeuristicTable, Measurement, TableEntry, problem_key
from kernel_zoo.spec import GemmProblem, Recipe, Refusal, TileConfig, Variant

H200 = get_arch("h200")
H100 = get_arch("h100-sxm")
SMALL = TileConfig(64, 64, 64)
LARGE = TileConfig(128, 128, 64, num_warps=8)
SPLIT = TileConfig(64, 64, 64, split_k=4)
PROBLEM = GemmProblem.of(1024, 1024, 1024, "bf16", "nt")
H200_ENVIRONMENT = Environment("NVIDIA H200", (9, 0), 132, triton="3.6.0", torch="2.11.0")
H100_ENVIRONMENT = Environment("NVIDIA H100 80GB HBM3", (9, 0), 132, triton="3.6.0")
A100_ENVIRONMENT = Environment("NVIDIA A100-SXM4-80GB", (8, 0), 108)


def variant(
    name, tiles=(SMALL, LARGE), *, refuses=None, refuses_tile=None, digest=None, opaque=False, workspace=0, **more
) -> Variant:
    """A variant that takes everything but what `refuses(problem)` and `refuses_tile(problem, tile)` are true of."""

    def supports(problem, arch):
        return Refusal("shape", f"{name} was given {problem.m} rows", "others") if refuses and refuses(problem) else None

    def fits(problem, tile, arch):
        return (
            Refusal("tile", f"{name} was given {tile.describe()}", "another")
            if refuses_tile and refuses_tile(problem, tile)
            else None
        )

    made = Variant(
        name,
        f"the fake {name}",
        supports,
        lambda problem, arch: list(tiles),
        recipe=None if opaque else lambda call, tile: Recipe((), workspace * tile.split_k),
        fits=fits,
        launch=(lambda *args: None) if opaque else None,
        **more,
    )
    made.__dict__["digest"] = digest or f"d-{name}"  # what cached_property would work out from source
    return made


TILED = variant("tiled")
SPLIT_K = variant("split_k", (SPLIT,), workspace=1 << 20)
NET = variant("aten", (), opaque=True)
ZOO = (TILED, SPLIT_K, NET)


def entry(problem=PROBLEM, name="tiled", tile=SMALL, time_us=10.0, digest=None, **more) -> TableEntry:
    """A row; its digest is the fake variant's unless given."""
    return TableEntry(problem_key(problem), name, tile, f"d-{name}" if digest is None else digest, time_us, **more)


def runner_up(name="tiled", tile=LARGE, time_us=11.0, digest="") -> Measurement:
    """A measurement that came second."""
    return Measurement(name, tile, time_us, digest)


def table(*entries, environment=H200_ENVIRONMENT, origin="user", name="mine", **more) -> HeuristicTable:
    """A table of rows."""
    return HeuristicTable(name, environment, tuple(entries), origin, **more)
