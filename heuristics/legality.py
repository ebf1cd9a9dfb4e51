"""May a variant, with a tile, serve a problem on a device? The choice, the model, the tuner, tables and explain all ask here.

A variant's own rules come first; then what its binary was seen to need, where that is known.
"""

from __future__ import annotations

from heuristics.resources import ResourceTable
from kernel_zoo.spec import Arch, GemmProblem, Refusal, TileConfig, Variant


class Legality:
    """Legality for one problem on one device.

    Attributes:
        problem, arch: what is to be served, and where.
        resources: what compiled kernels need, where known.
    """

    def __init__(self, problem: GemmProblem, arch: Arch, resources: ResourceTable | None = None) -> None:
        self.problem, self.arch, self.resources = problem, arch, resources

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Why the variant (with the tile) may not serve; None where it may."""
        refusal = variant.refusal(self.problem, self.arch, tile)
        if refusal is None and tile is not None and self.resources is not None:
            refusal = self.resources.refusal(self.problem, self.arch, variant, tile)
        return refusal
