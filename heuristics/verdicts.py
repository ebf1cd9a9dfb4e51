"""Why not this one: what is wrong with a candidate beside the pick, in a clause, and the answer for any variant that is named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from heuristics import model
from heuristics.footprint import Footprint, footprint
from heuristics.policy import NET, UnknownVariantError
from heuristics.table import Measurement
from heuristics.traits import traits_of
from kernel_zoo.spec import Candidate, Estimate, Refusal, TileConfig, Variant

if TYPE_CHECKING:
    from heuristics.selection import Selection

Kind = Literal["pick", "slower", "passed over", "excluded", "refused", "unasked"]

_TOGETHER: Final = ("main loop", "device memory")  # they run at once: the longer one counts
_SAME: Final = 0.005  # estimates closer than this are called equal
_WASTE: Final = 0.05  # a share of the tiles that is worth a word


@dataclass(frozen=True, slots=True)
class Standing:
    """A variant and tile with what is known of them."""

    variant: str
    tile: TileConfig | None
    estimate: Estimate
    footprint: Footprint | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a variant, or a variant with a tile, was not picked.

    Attributes:
        kind: "pick": it was; "slower": legal, and the model or a measurement puts it behind; "passed over": legal and not behind
            by the model, but something stronger decided; "excluded": by the caller; "refused": it cannot serve; "unasked": it
            serves only where it is forced or a table names it.
        sentence: the answer.
        ratio: its estimated time over the pick's.
        part: the part of the estimate in which it loses most.
    """

    variant: str
    tile: TileConfig | None
    kind: Kind
    sentence: str
    estimate_us: float | None = None
    ratio: float | None = None
    part: str | None = None
    refusal: Refusal | None = None

    def __str__(self) -> str:
        named = f"{self.variant} {self.tile.describe()}" if self.tile else self.variant
        return f"{named}: {self.sentence}"

    def as_dict(self) -> dict[str, Any]:
        """The same as data, JSON-able."""
        refusal = self.refusal
        return {
            "variant": self.variant,
            "tile": self.tile.describe() if self.tile else None,
            "kind": self.kind,
            "sentence": self.sentence,
            "estimate_us": self.estimate_us,
            "ratio": self.ratio,
            "part": self.part,
            "refusal": {"rule": refusal.rule, "given": refusal.given, "needed": refusal.needed} if refusal else None,
        }


def standing(selection: Selection, candidate: Candidate) -> Standing:
    """A candidate with its estimate and footprint."""
    s, (name, tile) = selection, (candidate.variant, candidate.tile)
    estimate = candidate.estimate or model.estimate(s.problem, s.arch, name, tile, s.fitted)
    return Standing(name, tile, estimate, footprint(s.problem, s.arch, name, s.record(name), tile, s.resources))


def compare(selection: Selection, other: Candidate) -> tuple[float | None, str | None, str]:
    """A candidate's time over the pick's by the model, the part in which it loses most, and the clause that says so."""
    pick = standing(selection, Candidate(selection.variant, selection.tile, selection.estimate))
    if (other.variant, other.tile) == (pick.variant, pick.tile):
        return 1.0, None, "the pick"
    here = standing(selection, other)
    if pick.estimate.time_us <= 0:
        return None, None, "nothing to compute"
    ratio = here.estimate.time_us / pick.estimate.time_us
    seen = _measured(selection, here)
    if seen is not None and selection.measured_us is not None:
        against = f"measured at {seen:.4g} us against {selection.measured_us:.4g} us"
        return ratio, _worst_part(pick, here) if ratio > 1 else None, against
    if ratio < 1 - _SAME:
        return ratio, None, f"{1 - ratio:.0%} faster by the model alone; {_stronger(selection)}"
    part = _worst_part(pick, here)
    trouble = _trouble(pick, here, part, selection.arch.sm_count)
    if ratio <= 1 + _SAME:
        return ratio, part, f"as fast by the model; {_beside_time(selection, pick, here)}"
    return ratio, part, f"{slower(ratio)} by the model: {trouble}"


def slower(ratio: float) -> str:
    """How much longer something takes, in words."""
    return f"{ratio - 1:.0%} slower" if ratio < 2 else f"{ratio:.1f} times as long"


def _stronger(selection: Selection) -> str:
    """What decided against a candidate that the model does not put behind."""
    if selection.rung == "forced":
        return "the caller forced the pick"
    if selection.problem.batch_invariant:
        return "batch_invariant fixes the pick"
    if selection.rung == "exact":
        modelled = selection.entry is not None and selection.entry.source == "modelled"
        return "the row of this problem, a modelled one, names the pick" if modelled else "the pick was measured fastest"
    if selection.rung in ("nearest", "borrowed"):
        return "the pick is among the fastest measured on the rows used, this is not"
    return "the pick was mentioned first"


def _beside_time(selection: Selection, pick: Standing, here: Standing) -> str:
    """What decides between two candidates that the model calls equal."""
    if selection.rung != "model" or pick.footprint is None or here.footprint is None:
        return _stronger(selection)
    more = here.footprint.workspace_bytes - pick.footprint.workspace_bytes
    return f"needs {amount(more)} more of workspace" if more > 0 else "the pick moves fewer bytes, or was mentioned first"


def _measured(selection: Selection, here: Standing) -> float | None:
    """A candidate's time in the row of this very problem, where it has one."""
    entry = selection.entry
    if entry is None or selection.rung != "exact":
        return None
    if here.variant == NET:
        return entry.torch_us
    seen: list[Measurement] = [each for each in entry.measurements if (each.variant, each.tile) == (here.variant, here.tile)]
    return seen[0].time_us if seen else None


def _parts(estimate: Estimate) -> dict[str, float]:
    """The parts that add up: of those that run at once, the longer."""
    parts = dict(estimate.parts)
    together = {name: parts.pop(name) for name in _TOGETHER if name in parts}
    if together:
        longest = max(together, key=lambda name: together[name])
        parts[longest] = together[longest]
    return parts


def _worst_part(pick: Standing, here: Standing) -> str | None:
    """The part of the estimate in which a candidate loses most."""
    mine, theirs = _parts(here.estimate), _parts(pick.estimate)
    rival = {**theirs, **dict.fromkeys(_TOGETHER, max((theirs.get(name, 0.0) for name in _TOGETHER), default=0.0))}
    lost = {name: us - rival.get(name, 0.0) for name, us in mine.items()}
    return max(lost, key=lambda name: lost[name]) if lost else None


def _trouble(pick: Standing, here: Standing, part: str | None, sms: int) -> str:
    """What in a candidate's shape explains that it loses in a part of the estimate."""
    mine, theirs = here.footprint, pick.footprint
    if mine is None:
        return "PyTorch's own product, estimated from its usual share of the roof"
    if part == "copy":
        return f"copies operands into {amount(mine.workspace_bytes)} of workspace first"
    if part == "reduction" and traits_of(here.variant).fused:
        return f"needs {amount(mine.workspace_bytes)} of workspace, and its last programs add up partial sums"
    if part == "reduction":
        return f"needs {amount(mine.workspace_bytes)} of workspace and a second launch"
    if part == "main loop" and theirs is not None:
        if mine.tile_use is not None and theirs.tile_use is not None and mine.tile_use < theirs.tile_use - _WASTE:
            return f"tiles {mine.tile_use:.0%} used"
        if mine.busy_sms < min(theirs.busy_sms, sms):
            return f"its {mine.programs} programs leave {sms - mine.busy_sms} of {sms} SMs idle"
        if mine.waves > 1 and (math.ceil(mine.waves) > math.ceil(theirs.waves) or mine.last_wave < theirs.last_wave):
            return f"{math.ceil(mine.waves)} waves, the last {mine.last_wave:.0%} full"
    if part is None:
        return "its estimate has no parts"
    own, rival = _parts(here.estimate), dict(pick.estimate.parts)
    words = {"main loop": "its main loop", "fill and store": "filling and storing its tiles", "device memory": "its memory traffic"}
    return f"{words.get(part, part)} takes {own[part]:.3g} us against {rival.get(part, 0.0):.3g} us"


def amount(count: float) -> str:
    """Bytes for people, in powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def why(selection: Selection, name: str, tile: TileConfig | None = None) -> Verdict:
    """Why a variant, or a variant with a tile, was not picked.

    Raises:
        UnknownVariantError: no variant has that name; the message has the nearest names.
    """
    record = selection.record(name)
    if record is None:
        raise UnknownVariantError(name, [variant.name for variant in selection.variants])
    if name == selection.variant and tile in (None, selection.tile):
        return Verdict(name, selection.tile, "pick", f"it is the pick; {selection.reason}", selection.estimate.time_us, 1.0)
    if selection.problem.empty:
        return Verdict(name, tile, "passed over", f"nothing is computed: {selection.reason}")
    refusal = selection.refusal(record, tile)
    if refusal is not None:
        kind: Kind = "excluded" if refusal.rule in ("excluded", "deterministic", "batch_invariant") else "refused"
        return Verdict(name, tile, kind, refusal.sentence, refusal=refusal)
    if tile is None and record.recipe is not None:
        return _best_of(selection, record)
    return _legal(selection, record, Candidate(name, tile))


def _best_of(selection: Selection, record: Variant) -> Verdict:
    """A variant by its best tile."""
    best = next((candidate for candidate in selection.ranked if candidate.variant == record.name), None)
    if best is not None:
        return _legal(selection, record, best)
    refused = next((candidate.refusal for candidate in selection.refused if candidate.variant == record.name), None)
    if refused is None:
        return Verdict(record.name, None, "passed over", f"legal, but it proposes no tile for this problem; {selection.reason}")
    kind: Kind = "unasked" if refused.rule in ("unasked", "net") else "refused"
    return Verdict(record.name, None, kind, refused.sentence, refusal=refused)


def _legal(selection: Selection, record: Variant, candidate: Candidate) -> Verdict:
    """A candidate that may serve."""
    ratio, part, clause = compare(selection, candidate)
    estimate = candidate.estimate or standing(selection, candidate).estimate
    unasked = selection.unasked(record)
    if unasked is not None:
        sentence = f"{unasked.sentence}; the model puts it at {estimate.time_us:.4g} us, {clause}"
        return Verdict(record.name, candidate.tile, "unasked", sentence, estimate.time_us, ratio, part, unasked)
    behind = clause.startswith("measured") or (ratio is not None and ratio > 1 + _SAME)
    sentence = f"legal, and {clause}"
    if behind and selection.rung in ("forced", "default"):
        sentence += f"; {_stronger(selection)}"
    return Verdict(record.name, candidate.tile, "slower" if behind else "passed over", sentence, estimate.time_us, ratio, part)
