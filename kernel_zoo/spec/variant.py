"""One way to compute a GEMM, with its legality, tiles, launches and source identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kernel_zoo.spec.choice import Arch, Refusal, TileConfig
from kernel_zoo.spec.launches import GemmCall, KernelCall, Recipe
from kernel_zoo.spec.problem import GemmProblem


def _accepts(problem: GemmProblem, tile: TileConfig, arch: Arch) -> Refusal | None:
    return None


@dataclass(frozen=True, repr=False)
class Variant:
    """One way to compute a GEMM.

    Attributes:
        name: unique; user variants carry a dot ("me.tutorial").
        summary: one sentence: what it is good for.
        supports: None where the variant can take the problem on the device, else the reason.
        space: candidate tiles for a problem, best guesses first; legality is checked by `fits`.
        fits: None where the tile is legal for the problem on the device, else the reason.
        recipe: the launches, from a call and a tile. None for an opaque variant, which has `launch` instead.
        launch: an opaque variant's own launch(problem, slots, alpha, beta); slots are torch tensors by slot name.
        reduction: names the order and instruction family of the K sum; equal strings mean equal bits per row.
        kernels: the jitted functions the recipe may launch; the source digest covers what they call.
        deterministic: repeats bit for bit.
        interpretable: the CPU interpreter can run it on this problem.
        early_us: its launches are dependent ones (`KernelCall.dependent`) where the roof is at most so many microseconds, unless
            the tile's knob `early` says 1 or 0; 0 where they never are.
    """

    name: str
    summary: str
    supports: Callable[[GemmProblem, Arch], Refusal | None]
    space: Callable[[GemmProblem, Arch], Sequence[TileConfig]]
    recipe: Callable[[GemmCall, TileConfig], Recipe | KernelCall] | None = None
    fits: Callable[[GemmProblem, TileConfig, Arch], Refusal | None] = _accepts
    launch: Callable[..., None] | None = None
    reduction: Callable[[GemmProblem, TileConfig], str] = lambda problem, tile: "unspecified"
    kernels: tuple[Any, ...] = ()
    deterministic: bool = True
    interpretable: bool = True
    early_us: float = 0.0
    origin: Literal["zoo", "user"] = "zoo"

    def __repr__(self) -> str:
        return f"<{self.origin} variant {self.name}: {self.summary}>"

    @cached_property
    def digest(self) -> str:
        """Hash of the kernels' source, comments and docstrings left out, over all they call."""
        from kernel_zoo.digest import digest

        return digest(self.kernels or (self.launch,))

    def refusal(self, problem: GemmProblem, arch: Arch, tile: TileConfig | None = None) -> Refusal | None:
        """The single statement of legality: may this variant (with this tile) serve this problem on this device?"""
        refusal = self.supports(problem, arch)
        if refusal is None and tile is not None:
            refusal = self.fits(problem, tile, arch)
        return refusal

    def plan(self, problem: GemmProblem, tile: TileConfig, arch: Arch) -> Recipe:
        """The launches for one problem and tile."""
        if self.recipe is None:
            raise TypeError(f"variant {self.name} is opaque: it launches by itself and has no recipe")
        made = self.recipe(GemmCall.of(problem, arch), tile)
        return made if isinstance(made, Recipe) else Recipe((made,))
