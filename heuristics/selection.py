"""The answer to "which kernel serves this call": the pick, the rung of the ladder that made it, and a way to all that explains it.

What explains (the ranking, refusals, estimate, and all that `explanation` tells) is worked out when it is asked for: a call that
only wants the pick does not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from heuristics.coefficients import Fitted
from heuristics.table import HeuristicTable, TableEntry, problem_key
from kernel_zoo.spec import Arch, Candidate, Estimate, GemmProblem, Refusal, TileConfig, Variant

if TYPE_CHECKING:
    from rich.console import RenderableType

    from heuristics.eligibility import Eligibility
    from heuristics.footprint import Footprint
    from heuristics.resources import ResourceTable
    from heuristics.verdicts import Verdict

Rung = Literal["forced", "exact", "borrowed", "nearest", "model", "default"]


@dataclass(frozen=True)
class Selection:
    """The pick and why.

    Attributes:
        variant: the name of the variant that serves.
        tile: its tile; None for one that launches by itself.
        rung: which step of the ladder answered.
        table: the table that the row came from, where one did.
        entry: the row whose tile was taken, where one was.
        distance: octaves from the nearest row used; 0 for a row of this very problem, None without a row.
        reason: one sentence.
        assumed: what the problem says without anybody having said it (sizes were given rather than tensors).
        may: what the caller allows and what is legal, as it was when the choice was made.
        tables: the tables that were consulted.
    """

    problem: GemmProblem
    arch: Arch
    variant: str
    tile: TileConfig | None
    rung: Rung
    reason: str
    table: str | None = None
    distance: float | None = None
    measured_us: float | None = None
    entry: TableEntry | None = None
    notes: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = field(default=(), repr=False, compare=False)
    fitted: Fitted | None = field(default=None, repr=False, compare=False)
    judge: Callable[[], tuple[list[Candidate], list[Candidate]]] = field(default=lambda: ([], []), repr=False, compare=False)
    may: Eligibility | None = field(default=None, repr=False, compare=False)
    tables: tuple[HeuristicTable, ...] = field(default=(), repr=False, compare=False)
    assumed: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def estimate(self) -> Estimate:
        """The model's time for the pick."""
        from heuristics.model import estimate

        return estimate(self.problem, self.arch, self.variant, self.tile, self.fitted)

    @property
    def estimate_error(self) -> float | None:
        """How far the model's times for the variant were from the measured ones it was fitted to, as a share; None if unknown."""
        return (self.fitted or {}).get(self.variant, {}).get("fit_error")

    @property
    def ranked(self) -> list[Candidate]:
        """Every candidate that may serve, by the model, best first."""
        return self._judged[0]

    @property
    def refused(self) -> list[Candidate]:
        """The variants that may not serve, each with its reason."""
        return [candidate for candidate in self._judged[1] if candidate.variant != self.variant]

    @cached_property
    def _judged(self) -> tuple[list[Candidate], list[Candidate]]:
        return self.judge()

    def record(self, name: str) -> Variant | None:
        """The variant of that name, where it was one of those to choose from."""
        return next((variant for variant in self.variants if variant.name == name), None)

    @property
    def origin(self) -> str:
        """Whose the picked variant is: "zoo" or "user"."""
        record = self.record(self.variant)
        return record.origin if record is not None else "user"

    @property
    def deterministic(self) -> bool:
        """Repeats bit for bit from run to run."""
        record = self.record(self.variant)
        return record is not None and record.deterministic

    @property
    def resources(self) -> ResourceTable | None:
        """What compiled kernels need, where known."""
        return self.may.resources if self.may is not None else None

    @cached_property
    def footprint(self) -> Footprint | None:
        """Tiles, programs, waves, occupancy and workspace of the pick; None where the tile is not known."""
        from heuristics.footprint import footprint

        return footprint(self.problem, self.arch, self.variant, self.record(self.variant), self.tile, self.resources)

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory that a call takes."""
        return self.footprint.workspace_bytes if self.footprint else 0

    @property
    def waves(self) -> float | None:
        """Programs over those that the device holds at once; None where the tile is not known."""
        return self.footprint.waves if self.footprint else None

    @property
    def tile_use(self) -> float | None:
        """The share of the tiles' products that lie inside the matrices; None where the tile is not known."""
        return self.footprint.tile_use if self.footprint else None

    @cached_property
    def nearest_row(self) -> tuple[float, str, TableEntry] | None:
        """The row least far from the problem in the tables consulted: octaves, table, row. None where no row is comparable."""
        key = problem_key(self.problem)
        found = [(far, table.name, row) for table in self.tables for far, row in table.nearest(key, 1)]
        return min(found, key=lambda item: item[0], default=None)

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Why a variant, with a tile, may not serve this call: the caller's policy, its rules, what its binary needs."""
        if self.may is None:
            return variant.refusal(self.problem, self.arch, tile)
        refusal = self.may.refusal(variant, tile)
        if refusal is None and self.problem.batch_invariant:
            refusal = self.may.refusal(variant, tile, forced=True)  # which tells the fixed family and tile from others
        return refusal

    def unasked(self, variant: Variant) -> Refusal | None:
        """Why a variant serves only where it is forced or a table names it."""
        return self.may.unasked(variant) if self.may is not None else None

    def why(self, name: str, tile: TileConfig | None = None) -> Verdict:
        """Why a variant, or a variant with a tile, was not picked: print it, or take it as data with `.as_dict()`.

        Raises:
            UnknownVariantError: no variant has that name; the message has the nearest names.
        """
        from heuristics.verdicts import why

        return why(self, name, tile)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        from heuristics.explanation import facts

        return facts(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able, in the order of the explanation."""
        return dict(self._facts)

    def lines(self, *, sources: bool = False) -> list[str]:
        """The explanation up to the candidates, a fact a line; `sources` adds where the device's figures come from."""
        from heuristics import rendering

        return [f"{head}: {fact}" for head, fact in rendering.lines(self._facts, sources=sources)]

    def text(self, *, sources: bool = False) -> str:
        """The whole explanation."""
        from heuristics import rendering

        return rendering.text(self._facts, sources=sources)

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.rich()

    def rich(self, *, sources: bool = False) -> RenderableType:
        """The whole explanation for a terminal."""
        from heuristics import rendering

        return rendering.rich(self._facts, sources=sources)
