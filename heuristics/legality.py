"""May a variant, with a tile, serve a problem on a device? The choice, the model, the tuner, tables and explain all ask here.

A variant's own rules come first; then what its binary was seen to need, where that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heuristics.resources import ProblemResources, ResourceTable
from kernel_zoo.spec import Arch, ByForm, Form, GemmProblem, Refusal, TileConfig, Variant

_SOUND: Final = 1 << 12  # tiles of which it is kept that they serve

#: Variant, tile, form and the resource data's id, which are kept alive beside it: the tile serves all problems of the form. That
#: is complete: the variant's `fits` is a `ByForm`, and its binary is sound in the heaviest form, or not known.
Sound = dict[tuple[str, TileConfig, Form, int], ResourceTable | None]


class Legality:
    """Legality for one problem on one device. What does not depend on the tile is worked out once.

    Attributes:
        problem, arch: what is to be served, and where.
        resources: what compiled kernels need, where known.
        taken_by: variants that are known to take the problem, by name.
    """

    __slots__ = ("_needs", "_sound", "_unsupported", "arch", "problem", "resources", "taken_by")

    def __init__(
        self, problem: GemmProblem, arch: Arch, resources: ResourceTable | None = None, sound: Sound | None = None
    ) -> None:
        """Args: what is to be served, where, what binaries need, and what is known of tiles of the same variants on the device."""
        self.problem, self.arch, self.resources, self._sound = problem, arch, resources, sound
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
            form = Form.of(self.problem) if self._sound is not None and isinstance(variant.fits, ByForm) else None
            refusal = self._looked_up(variant, tile, form) if form is not None else self._asked(variant, tile)
        return refusal

    def _looked_up(self, variant: Variant, tile: TileConfig, form: Form) -> Refusal | None:
        """Asked only where the tile is not known to serve all problems of the form."""
        assert self._sound is not None
        key = (variant.name, tile, form, id(self.resources))
        if key in self._sound:
            return None
        refusal = self._asked(variant, tile)
        if refusal is None and (self._needs is None or self._needs.is_sound(self.arch, variant, tile)):
            if len(self._sound) >= _SOUND:
                self._sound.clear()
            self._sound[key] = self.resources
        return refusal

    def _asked(self, variant: Variant, tile: TileConfig) -> Refusal | None:
        refusal = variant.fits(self.problem, tile, self.arch)
        if refusal is None and self.resources is not None:
            if self._needs is None:
                self._needs = self.resources.for_problem(self.problem)
            refusal = self._needs.refusal(self.arch, variant, tile)
        return refusal
