"""How close each kernel comes to the device's rates: numbers that the picture in `cost` needs and does not explain.

One row per variant, which a table file may replace by fitted ones (`fit`). The built-in ones were fitted to 3,260 times of 38
shapes on one H200, before pitches and tails were in the picture: on 162 held-out shapes the model's first pick then runs at 0.933
of the best of the five families that there were; docs/choosing.md has the packaged table's figures. Those of the warp-specialised
kernels, of repack and of split_k_fused are not fitted but set: such that beside that table's coefficients for tma and split_k they
give the ratios that a first probe of two dozen shapes found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

Fitted = Mapping[str, Mapping[str, float]]
Correction = tuple[float, float, float]
CORRECTIONS: Final = ("work", "total", "ends")  # what a Correction is made of, as a table names it
OTHER: Final = "other"  # stands for a loop's tiles that a table does not correct one by one
PLAIN: Final[Correction] = (1.0, 1.0, 1.0)  # of a tile that is not corrected


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How a variant's kernel behaves. Times in microseconds; shares are of the device's rate.

    Attributes:
        launch: from the start of a launch to its first instruction, and from its last to the end.
        fill: the first block's way from device memory to the registers.
        step: what a k block costs beyond its traffic and arithmetic (barriers, addresses), for one program alone on an SM.
        compute: share of the peak rate that a steady main loop reaches.
        stream: share of the peak memory bandwidth that a copy reaches.
        latency: of a block on its way from device memory; divided by the blocks in flight it bounds a program's rate.
        overlap: the exponent that joins compute and traffic: 1 adds them, a large one takes the longer.
        store: from the last product to the last byte of a tile, beyond its traffic.
        resident: share of fill and store that remains for a program's second and later tiles (1: nothing overlaps).
        l2: share of 64 bytes a clock and SM that L2 delivers when all SMs ask at once.
        port: share of it that a program alone on its SM draws.
        second: a dependent launch in the same stream, where K is split or operands are copied first; the wait of a tile's last
            program for the others' partial sums, where there is none.
        partial: share of L2's rate at which partial sums are read, or at which operands are copied.
        issue: of loads through pointers, as a multiple of what their number alone makes.
        tail: what a k block adds that the matrices end in, where it is read through masked pointers after the pipeline has run dry.
    """

    launch: float = 1.0
    fill: float = 0.6
    step: float = 0.06
    compute: float = 0.80
    stream: float = 0.90
    latency: float = 0.7
    overlap: float = 2.5
    store: float = 0.4
    resident: float = 1.0
    l2: float = 0.80
    port: float = 0.70
    second: float = 1.2
    partial: float = 0.5
    issue: float = 1.0
    tail: float = 0.6


_POINTERS: Final = Coefficients(fill=0.5, step=0.08, compute=0.68, stream=0.82, latency=0.68, store=0.35, l2=1.0, port=0.88)
_SPECIALISED: Final = Coefficients(1.2, 1.1, 0.01, 0.94, 0.90, 1.0, 5.5, 0.68, resident=0.5, l2=1.0, port=1.4)

COEFFICIENTS: Final[dict[str, Coefficients]] = {
    "tiled": _POINTERS,
    "persistent": replace(_POINTERS, resident=0.7),
    "tma": Coefficients(0.77, 0.65, 0.027, 0.90, 0.92, 0.98, 5.0, 0.40, resident=0.9, l2=0.89, port=0.89),
    "split_k": Coefficients(1.0, 0.78, 0.03, 0.64, 0.87, 0.96, 6.0, 0.41, l2=1.05, port=0.86, second=1.38, partial=0.28),
    "gemv": Coefficients(launch=0.7, fill=0.1, step=0.03, compute=0.35, stream=0.88, latency=0.9, store=0.1, second=1.15),
    "warp_specialised": _SPECIALISED,
    "ping_pong": replace(_SPECIALISED, resident=0.1),
    "repack": Coefficients(0.7, 1.1, 0.01, 0.87, 0.93, 1.05, 4.0, 0.68, resident=0.95, l2=0.95, port=1.3, partial=0.3),
    "split_k_fused": Coefficients(0.7, 1.3, 0.016, 0.92, 0.94, 1.1, 8.0, 0.45, l2=0.9, port=1.07, second=0.6),
}
#: What lines whose pitch is no multiple of 128 bytes add to the traffic with L2, by the power of two that the pitch is a multiple
#: of: a 128-byte piece of a line then lies in two cache lines. Below 16 bytes it is part of a loop's own coefficients.
PITCHES: Final[dict[str, float]] = {"64": 0.29, "32": 0.41, "16": 1.1}
_UNKNOWN: Final = Coefficients(step=0.1, compute=0.7, overlap=2.0)
_NAMES: Final = tuple(field.name for field in fields(Coefficients))
_KEPT: Final = 16  # mappings whose coefficients are remembered


def _correction(values: Mapping[str, float]) -> Correction:
    return values.get("work", 1.0), values.get("total", 1.0), values.get("ends", 1.0)


class Kernels:
    """The coefficients in force, by loop: those of a table where it has them, else the built-in ones. Compared by identity.

    A loop is a variant, or one way in which a variant reads its operands ("tma resident", "tiled 2-byte"); where a table has no
    coefficients for that way, the variant's serve. A table also corrects single tiles ("tma 128x256x64 w8 s3"): `work` is a factor
    on a k block's arithmetic, `ends` on a program's fill and store (a gemv's has none), `total` on the whole time. "tma other"
    are the corrections of tiles that nobody has measured.
    """

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = {variant: dict(values) for variant, values in fitted.items()}
        self._made: dict[str, Coefficients] = {}
        self._corrections: dict[str, dict[str, Correction]] = {}

    @property
    def pitches(self) -> dict[str, float]:
        """PITCHES, or a table's own."""
        return {**PITCHES, **self.fitted.get("pitch", {})}

    def corrections(self, loop: str) -> dict[str, Correction]:
        """What a table corrects a loop's tiles by."""
        found = self._corrections.get(loop)
        if found is None:
            own = ((name.removeprefix(f"{loop} "), values) for name, values in self.fitted.items() if name.startswith(f"{loop} "))
            found = {tile: _correction(values) for tile, values in own if tile[:1].isdigit()}
            self._corrections[loop] = found
        return found

    def other(self, loop: str) -> Correction:
        """What it corrects the loop's other tiles by."""
        return _correction(self.fitted.get(f"{loop} {OTHER}", {}))

    def __getitem__(self, loop: str) -> Coefficients:
        found = self._made.get(loop)
        if found is None:
            variant = loop.split(" ")[0]
            base, own = COEFFICIENTS.get(variant, _UNKNOWN), self.fitted.get(loop) or self.fitted.get(variant)
            found = Coefficients(**{name: own.get(name, getattr(base, name)) for name in _NAMES}) if own else base
            self._made[loop] = found
        return found


_BUILT_IN: Final = Kernels({})
_recent: dict[int, tuple[Fitted, Kernels]] = {}


def in_force(fitted: Fitted | None) -> Kernels:
    """The coefficients that a table's model section leaves in force: one object a mapping, which must not change any more."""
    if not fitted:
        return _BUILT_IN
    found = _recent.get(id(fitted))  # the mapping is kept alive beside its answer: its id is not given to another
    if found is not None:
        return found[1]
    made = Kernels(fitted)
    if len(_recent) >= _KEPT:
        _recent.clear()
    _recent[id(fitted)] = (fitted, made)
    return made
