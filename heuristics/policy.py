"""What the caller decides, what batch invariance fixes, and the errors of a choice that cannot be made."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kernel_zoo.spec import Arch, Candidate, GemmProblem, Refusal, TileConfig

NET: Final = "aten"  # the variant that is no kernel of the zoo
INVARIANT_FAMILY: Final = "tiled"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the caller decides.

    Attributes:
        variant: serve with this variant, or fail.
        tile: serve with this tile, or fail.
        prefer: "zoo" keeps the net for what nothing else serves; "fastest" lets it compete.
        exclude: variants that must not serve.
        workspace_limit: bytes of scratch memory a call may take.
    """

    variant: str | None = None
    tile: TileConfig | None = None
    prefer: Literal["zoo", "fastest"] = "zoo"
    exclude: frozenset[str] = frozenset()
    workspace_limit: int | None = None


class ForcedVariantError(ValueError):
    """The variant or tile asked for cannot serve the problem; `refusal` says why."""

    def __init__(self, problem: GemmProblem, arch: Arch, name: str, refusal: Refusal) -> None:
        """Args: what was to be served, where, by what, and why it cannot be."""
        self.variant, self.refusal = name, refusal
        super().__init__(f"{name} cannot serve {problem.describe()} on {arch.name}: {refusal.sentence}")


class UnknownVariantError(ValueError):
    """No variant of that name is registered; `nearest` has names like it."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Args: the name asked for, and the registered ones."""
        names = list(known)
        self.variant, self.nearest = name, difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(self.nearest)}? " if self.nearest else ""
        super().__init__(f"variant {name!r} is not registered; {hint}registered: {', '.join(names)}")


class NoVariantError(LookupError):
    """Nothing may serve the problem; `refused` has each variant's reason."""

    def __init__(self, problem: GemmProblem, arch: Arch, refused: Sequence[Candidate]) -> None:
        """Args: what was to be served, where, and the refusals."""
        self.refused = tuple(refused)
        reasons = "; ".join(f"{item.variant}: {item.refusal.sentence}" for item in refused if item.refusal)
        super().__init__(f"no variant can serve {problem.describe()} on {arch.name}: {reasons or 'none is registered'}")


def invariant_tile(problem: GemmProblem, arch: Arch) -> TileConfig:
    """The one tile that serves every M and batch under batch_invariant, from n, k, dtype and device alone."""
    narrow = next((side for side in (16, 32, 64) if problem.n <= side), 64)
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return TileConfig(64, narrow, 16, num_stages=4)
    if problem.dtype == "fp32":
        return TileConfig(64, narrow, 32)
    wide = problem.n >= 64 * arch.sm_count  # enough columns to fill half the device by themselves
    return TileConfig(64, 128 if wide else narrow, 64)
