"""The answer to "which kernel serves this call": the pick, the rung of the ladder that made it, and everything that explains it.

What explains (the ranking, refusals, estimate) is worked out when it is asked for: a call that only wants the pick does not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from heuristics.cost import Fitted, Scorer, occupancy, rate, roof_us
from heuristics.table import TableEntry
from kernel_zoo.spec import Arch, Candidate, Estimate, GemmProblem, TileConfig, Variant, cdiv

if TYPE_CHECKING:
    from rich.console import RenderableType

Rung = Literal["forced", "exact", "borrowed", "nearest", "model", "default"]

_SHOWN: Final = 5


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

    @cached_property
    def estimate(self) -> Estimate:
        """The model's time for the pick."""
        return Scorer(self.problem, self.arch, self.fitted).estimate(self.variant, self.tile)

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

    @cached_property
    def _record(self) -> Variant | None:
        return next((variant for variant in self.variants if variant.name == self.variant), None)

    @property
    def deterministic(self) -> bool:
        """Repeats bit for bit from run to run."""
        return self._record is not None and self._record.deterministic

    @cached_property
    def workspace_bytes(self) -> int:
        """Scratch memory that a call takes."""
        if self._record is None or self.tile is None or self._record.recipe is None or self._empty:
            return 0
        return self._record.plan(self.problem, self.tile, self.arch).workspace_bytes

    @property
    def _empty(self) -> bool:
        return min(self.problem.batch, self.problem.m, self.problem.n) <= 0

    @cached_property
    def waves(self) -> float | None:
        """Programs over those that the device holds at once; None where the tile is not known."""
        if self.tile is None or self._empty:
            return None
        rows, cols = self._tiles(self.tile)
        at_once = self.arch.sm_count * occupancy(self.problem.a.itemsize, self.tile, self.arch)
        return rows * cols * self.problem.batch * self.tile.split_k / at_once

    @cached_property
    def tile_use(self) -> float | None:
        """The share of the tiles' products that lie inside the matrices; None where the tile is not known."""
        p, tile = self.problem, self.tile
        if tile is None or self._empty or p.k == 0:
            return None
        rows, cols = self._tiles(tile)
        height = min(p.m, p.n) if self.variant == "gemv" else rows * tile.block_m
        return p.m * p.n * p.k / (height * cols * tile.block_n * cdiv(p.k, tile.block_k) * tile.block_k)

    def _tiles(self, tile: TileConfig) -> tuple[int, int]:
        """Tiles along the kernel's M and N; gemv does not cut the narrow side."""
        p = self.problem
        if self.variant == "gemv":
            return 1, cdiv(max(p.m, p.n), tile.block_n)
        rows, cols = (p.n, p.m) if tile.knob("swap") else (p.m, p.n)
        return cdiv(rows, tile.block_m), cdiv(cols, tile.block_n)

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able."""
        p, arch = self.problem, self.arch
        roof, bound = roof_us(p, arch)
        return {
            "problem": self._problem(),
            "device": {"name": arch.name, "capability": f"{arch.capability[0]}.{arch.capability[1]}", "sm_count": arch.sm_count},
            "variant": self.variant,
            "tile": self.tile.describe() if self.tile else None,
            "rung": self.rung,
            "table": self.table,
            "distance": self.distance,
            "reason": self.reason,
            "notes": list(self.notes),
            "flops": p.flops,
            "least_bytes": p.least_bytes,
            "intensity": p.flops / max(p.least_bytes, 1),
            "ridge": rate(p, arch) * 1e3 / arch.bandwidth_gbps,
            "roof_us": roof,
            "bound": bound,
            "estimate_us": self.estimate.time_us,
            "estimate_parts": dict(self.estimate.parts),
            "measured_us": self.measured_us,
            "waves": self.waves,
            "tile_use": self.tile_use,
            "workspace_bytes": self.workspace_bytes,
            "deterministic": self.deterministic,
            "batch_invariant": p.batch_invariant,
            "ranked": [_candidate(candidate) for candidate in self.ranked[:_SHOWN]],
            "refused": [_candidate(candidate) for candidate in self.refused],
        }

    def _problem(self) -> dict[str, Any]:
        p = self.problem
        sizes = {
            "batch": p.batch,
            "m": p.m,
            "n": p.n,
            "k": p.k,
            "dtype": p.dtype,
            "out_dtype": p.out.dtype,
            "precision": p.precision,
        }
        aligns = [p.a.line_align, p.b.line_align, p.out.line_align]
        asked = {"deterministic": p.deterministic, "batch_invariant": p.batch_invariant}
        return {**sizes, "layout": p.layout, "align": aligns, "class": p.shape_class, **asked}

    def lines(self) -> list[str]:
        """The explanation, a fact a line, in a fixed order."""
        p, arch, name = self.problem, self.arch, self.variant
        aligns = [p.a.line_align, p.b.line_align, p.out.line_align]
        roof, bound = roof_us(p, arch)
        where = f"{self.table}" if self.table else "no table row"
        near = f", {self.distance:.2f} octaves away" if self.distance else ""
        estimate = f"{self.estimate.time_us:.1f} us by the model"
        parts = ", ".join(f"{part} {us:.1f}" for part, us in self.estimate.parts.items() if us >= 0.05)
        measured = f"; measured {self.measured_us:.1f} us" if self.measured_us is not None else ""
        promised = "yes" if p.batch_invariant else "no (ask for batch_invariant=True)"
        intensity = p.flops / max(p.least_bytes, 1)
        ridge = rate(p, arch) * 1e3 / arch.bandwidth_gbps
        found = [
            f"problem: {p.describe()}, lines aligned to {'/'.join(map(str, aligns))} bytes, class {p.shape_class}",
            f"device: {arch.name}, compute capability {arch.capability[0]}.{arch.capability[1]}, {arch.sm_count} SMs",
            f"pick: {name} {self.tile.describe() if self.tile else '(launches by itself)'}",
            f"rung: {self.rung} ({where}{near})",
            f"reason: {self.reason}",
            f"work: {p.flops:.4g} flops, {p.least_bytes:.4g} bytes at least, {intensity:.1f} flops a byte (ridge {ridge:.0f})",
            f"roof: {roof:.2f} us, bound by {bound}",
            f"estimate: {estimate}{measured}{' (' + parts + ')' if parts else ''}",
        ]
        if self.waves is not None:
            used = f", {self.tile_use:.0%} of the tiles used" if self.tile_use is not None else ""
            found.append(f"waves: {self.waves:.2f}{used}")
        found.append(f"workspace: {self.workspace_bytes:,} bytes")
        found.append(f"repeats bit for bit: {'yes' if self.deterministic else 'not promised'}; batch-invariant: {promised}")
        return found + [f"note: {note}" for note in self.notes]

    def __str__(self) -> str:
        ranked = [f"  {_time(candidate)}  {_name(candidate)}" for candidate in self.ranked[:_SHOWN]]
        refused = [f"  {candidate.variant}: {_sentence(candidate)}" for candidate in self.refused]
        listing = ["best by the model:", *ranked] if ranked else []
        return "\n".join([*self.lines(), *listing, *(["refused:", *refused] if refused else [])])

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold", no_wrap=True)
        facts.add_column(overflow="fold")
        for line in self.lines():
            head, _, rest = line.partition(": ")
            facts.add_row(head, Text(rest))
        table = Table("us", "variant", "tile", title="best by the model", title_justify="left")
        for candidate in self.ranked[:_SHOWN]:
            table.add_row(_time(candidate).strip(), candidate.variant, candidate.tile.describe() if candidate.tile else "-")
        refused = Table("variant", "refused because", title_justify="left")
        for candidate in self.refused:
            refused.add_row(candidate.variant, Text(_sentence(candidate)))
        return Group(facts, *([table] if self.ranked else []), *([refused] if self.refused else []))


def _time(candidate: Candidate) -> str:
    return f"{candidate.estimate.time_us:10.1f} us" if candidate.estimate else ""


def _name(candidate: Candidate) -> str:
    return f"{candidate.variant} {candidate.tile.describe()}" if candidate.tile else candidate.variant


def _sentence(candidate: Candidate) -> str:
    return candidate.refusal.sentence if candidate.refusal else ""


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "variant": candidate.variant,
        "tile": candidate.tile.describe() if candidate.tile else None,
        "estimate_us": candidate.estimate.time_us if candidate.estimate else None,
        "refusal": candidate.refusal.sentence if candidate.refusal else None,
    }
