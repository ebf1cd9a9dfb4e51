"""May a variant, with a tile, serve a problem on a device? The choice, the model, the tuner, tables and explain all ask here.

A variant's own rules come first; then what its binary was seen to need, where that is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from heuristics.resources import ResourceTable
from kernel_zoo.spec import Arch, GemmProblem, Refusal, TileConfig, Variant


class Legality:
    """Legality for one problem on one device. What does not depend on the tile is worked out once.

    Attributes:
        problem, arch: what is to be served, and where.
        resources: what compiled kernels need, where known.
    """

    __slots__ = ("_needs", "_unsupported", "arch", "problem", "resources")

    def __init__(self, problem: GemmProblem, arch: Arch, resources: ResourceTable | None = None) -> None:
        self.problem, self.arch, self.resources = problem, arch, resources
        self._needs = resources.for_problem(problem) if resources is not None else None
        self._unsupported: dict[str, tuple[Variant, Refusal | None]] = {}

    def supported(self, variants: Iterable[Variant]) -> list[Variant]:
        """Those that may serve with some tile, if any fits."""
        return [variant for variant in variants if variant.supports(self.problem, self.arch) is None]

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Why the variant (with the tile) may not serve; None where it may."""
        asked, refusal = self._unsupported.get(variant.name, (None, None))
        if asked is not variant:
            refusal = variant.supports(self.problem, self.arch)
            self._unsupported[variant.name] = (variant, refusal)
        if refusal is None and tile is not None:
            refusal = variant.fits(self.problem, tile, self.arch)
            if refusal is None and self._needs is not None:
                refusal = self._needs.refusal(self.arch, variant, tile)
        return refusal
