"""What the GPU tests share: the device as the choice sees it, and running a case."""

from __future__ import annotations

import torch

from kernel_zoo import catalog
from kernel_zoo.matrices import matrix
from kernel_zoo.reference import Slots, Verdict, make_slots, verify
from kernel_zoo.spec import Arch, GemmProblem, TileConfig
from minblas import dispatch, launch
from minblas.device import arch_of
from tests.kernel_zoo.cases import Case

DEVICE = torch.device("cuda", 0)


def gpu_arch() -> Arch:
    """The GPU under test."""
    return arch_of(DEVICE)


def sizes_for(variant: str) -> tuple[int, int, int]:
    """(M, N, K) of a deep product that the variant takes in bf16: of some rows, of few, or with lines that start anywhere."""
    for sizes in ((96, 256, 8192), (4, 256, 8192), (96, 255, 8191)):
        if catalog.get(variant).refusal(GemmProblem.of(*sizes, "bf16", "nt"), gpu_arch()) is None:
            return sizes
    raise ValueError(f"{variant} takes none of the sizes that tests call it with")


def served() -> list[str]:
    """The variants with kernels of their own that this GPU can run."""
    found = []
    for variant in catalog.VARIANTS:
        try:
            found += [variant.name] if variant.recipe is not None and sizes_for(variant.name) else []
        except ValueError:
            continue
    return found


def run(case: Case, seed: int = 0) -> tuple[Verdict, Slots]:
    """Compile (from the disk cache), launch as the runtime does, judge."""
    slots = make_slots(case.problem, DEVICE, seed, case.fill)
    prepared = launch.prepare(case.variant, case.problem, case.tile, case.arch, DEVICE)
    prepared(slots, case.alpha, case.beta)
    return verify(case.problem, slots, case.alpha, case.beta), slots


def tensors(problem: GemmProblem, slots: Slots) -> dict[str, torch.Tensor]:
    """gemm's a, b and out over the slots; 2-D where there is no batch."""
    views = {name.lower(): matrix(slots[name], problem.operands[name], problem.batch) for name in ("A", "B", "OUT")}
    return views if problem.batch > 1 else {name: view[0] for name, view in views.items()}


def case_of(problem: GemmProblem, variant: str | None = None, tile: TileConfig | None = None, **keywords: float) -> Case:
    """What the runtime picks for a problem (or the variant's first legal tile of moderate size), as a case."""
    arch = gpu_arch()
    if variant is None:
        selection = dispatch.select(problem, DEVICE)
        return Case(dispatch.get(selection.variant), problem, selection.tile, arch, **keywords)
    chosen = catalog.get(variant)
    if tile is None and chosen.recipe is not None:
        moderate = [tile for tile in chosen.space(problem, arch) if tile.block_m * tile.block_n <= 64 * 32 * tile.num_warps]
        tile = next(tile for tile in moderate if chosen.refusal(problem, arch, tile) is None)
    return Case(chosen, problem, tile, arch, **keywords)
