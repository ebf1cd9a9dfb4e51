"""May a variant, with a tile, serve a problem on a device? The choice, the model, the tuner, tables and explain all ask here.

A variant's own rules come first; then what its binary was seen to need, where that is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from heuristics.resources import ProblemResources, ResourceTable
from kernel_zoo.spec import Arch, GemmProblem, Refusal, TileConfig, Variant


class Legality:
    """Legality for one problem on one device. What does not depend on the tile is worked out once.

    Attributes:
        problem, arch: what is to be served, and where.
        resources: what compiled kernels need, where known.
        taken_by: variants that are known to take the problem, by name.
    """

    __slots__ = ("_needs", "_unsupported", "arch", "problem", "resources", "taken_by")

    def __init__(self, problem: GemmProblem, arch: Arch, resources: ResourceTable | None = None) -> None:
        self.problem, self.arch, self.resources = problem, arch, resources
        self._needs: ProblemResources | None = None
        self._unsupported: dict[str, tuple[Variant, Refusal | None]] = {}
        self.taken_by: Mapping[str, Variant] = {}

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Why the variant (with the tile) may not serve; None where it may."""
        refusal = None
        if self.taken_by.get(variant.name) is not variant:
            asked, refusal = self._unsupported.get(variant.name, (None, None))
            if asked is not variant:
                refusal = variant.supports(self.problem, self.arch)
                self._unsupported[variant.name] = (variant, refusal)
        if refusal is None and tile is not None:
            refusal = variant.fits(self.problem, tile, self.arch)
            if refusal is None and self.resources is not None:
                if self._needs is None:
                    self._needs = self.resources.for_problem(self.problem)
                refusal = self._needs.refusal(self.arch, variant, tile)
        return refusal
