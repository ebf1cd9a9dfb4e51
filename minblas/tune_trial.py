"""What tuning a shape is about, as data: picks, what became of each, and the result. Every word of it can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from kernel_zoo.spec import GemmProblem, TileConfig
from minblas.timing import Timing

Status = Literal["ok", "wrong", "failed", "slow", "skipped"]


@dataclass(frozen=True, slots=True)
class Pick:
    """A variant with a tile."""

    variant: str
    tile: TileConfig | None

    def describe(self) -> str:
        """e.g. tiled 128x128x64 g8 w8 s3."""
        return f"{self.variant} {self.tile.describe()}" if self.tile is not None else self.variant


#: torch's own product, as a rival.
TORCH: Final = Pick("torch", None)


@dataclass(slots=True)
class Trial:
    """What became of one candidate."""

    pick: Pick
    status: Status = "ok"
    message: str = ""
    estimate_us: float = 0.0
    timing: Timing | None = None
    final: bool = False

    @property
    def time_us(self) -> float | None:
        """The best time there is: of the final, else of the coarse pass."""
        return self.timing.median_us if self.timing is not None else None


@dataclass(slots=True)
class ShapeResult:
    """What tuning one shape found. `trials[0]` is the default pick."""

    problem: GemmProblem
    trials: list[Trial] = field(default_factory=list)
    winner: Trial | None = None
    torch: Timing | None = None
    note: str = ""

    @property
    def default(self) -> Trial | None:
        """The pick that was in force before."""
        return self.trials[0] if self.trials else None

    @property
    def changed(self) -> bool:
        """Another pick than the default won."""
        return self.winner is not None and self.winner is not self.default
