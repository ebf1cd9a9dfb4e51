"""Answers that no table and no model is asked for: what the caller forces, batch invariance, an empty result."""

from __future__ import annotations

from heuristics.cost import times_us
from heuristics.eligibility import Eligibility
from heuristics.ladder import Call
from heuristics.model import legal
from heuristics.policy import INVARIANT_FAMILY, NET, ForcedVariantError, NoVariantError, invariant_tile
from heuristics.selection import Selection
from heuristics.table import problem_key
from kernel_zoo.spec import Candidate, Refusal, TileConfig, Variant


def forced(call: Call) -> Selection:
    """What the caller asked for by name, by tile or both, or an error that says why it cannot be."""
    name, tile = call.policy.variant, call.policy.tile
    asked = [call.may.by_name[name]] if name is not None else call.may.candidates()
    refused: list[Candidate] = []
    able: list[Variant] = []
    for variant in asked:
        refusal = call.may.refusal(variant, tile, forced=True)
        if refusal is not None:
            refused.append(Candidate(variant.name, tile, None, refusal))
        elif tile is None and variant.recipe is not None:
            return _forced_variant(call, variant)
        else:
            able.append(variant)
    if able:
        times = times_us(call.problem, call.arch, [(variant.name, tile) for variant in able], call.fitted)
        fastest = able[int(times.argmin())]
        return call.selection(fastest, tile, "forced", f"the caller asked for this {'variant' if name else 'tile'}")
    if len(refused) == 1 and refused[0].refusal is not None:
        raise ForcedVariantError(call.problem, call.arch, refused[0].variant, refused[0].refusal)
    raise NoVariantError(call.problem, call.arch, refused or call.may.judge(call.fitted)[1])


def _forced_variant(call: Call, variant: Variant) -> Selection:
    """A variant without a tile: that of a row where one has it, else the model's."""
    if call.problem.batch_invariant or (call.may.empty and variant.name == INVARIANT_FAMILY):
        tile = invariant_tile(call.problem, call.arch)
        return call.selection(variant, tile, "forced", "the caller asked for this variant; its tile is the fixed one")
    for table, entry in call.rows(problem_key(call.problem), call.own):
        for seen in entry.measurements:
            if seen.variant == variant.name and call.may.row_fault(table, seen, winner=True, forced=True) is None:
                reason = f"the caller asked for this variant; the tile is the {entry.source} one"
                return call.row(variant, seen, "forced", reason, table, entry)
    may = _Forced(call.may)
    for _, _, proposed in legal(may, [variant], call.fitted):
        return call.selection(variant, proposed, "forced", "the caller asked for this variant; the tile is the model's")
    needed = Refusal("tile", f"no tile that {variant.name} proposes fits", "a tile given by the caller (tile=...)")
    raise ForcedVariantError(call.problem, call.arch, variant.name, may.last or needed)


def nothing_to_do(call: Call) -> Selection:
    """An empty result needs no launch; the answer is legal all the same."""
    p = call.problem
    name = next(name for name, size in (("batch", p.batch), ("m", p.m), ("n", p.n)) if size <= 0)
    reason, family = f"nothing to compute: {name} is 0", call.may.by_name.get(INVARIANT_FAMILY)
    tile = invariant_tile(p, call.arch)
    if family is not None and call.may.refusal(family, tile) is None:
        return call.selection(family, tile, "default", reason)
    return call.net(reason)


def invariant(call: Call) -> Selection:
    """One family and one tile for every M: no table, no model, no size of the batch has a say."""
    family, tile = call.may.by_name.get(INVARIANT_FAMILY), invariant_tile(call.problem, call.arch)
    refusal: Refusal | None = Refusal("variant", f"{INVARIANT_FAMILY} is not registered", "it, for batch_invariant")
    if family is not None:
        refusal = call.may.refusal(family, tile)
        if refusal is None:
            reason = "batch_invariant: one family and one tile for every M, from n, k, dtype and device alone"
            return call.selection(family, tile, "default", reason)
    net = call.may.by_name.get(NET)
    if net is not None and call.problem.acc_dtype == "int32" and call.may.refusal(net, None) is None:
        return call.selection(net, None, "default", "batch_invariant: integer sums are exact in any order")
    raise NoVariantError(call.problem, call.arch, [Candidate(INVARIANT_FAMILY, tile, None, refusal)])


class _Forced:
    """What may serve because the caller forces it; keeps the last refusal."""

    def __init__(self, may: Eligibility) -> None:
        self.problem, self.arch, self._may = may.problem, may.arch, may
        self.last: Refusal | None = None

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Policy and legality of what is forced."""
        refusal = self._may.refusal(variant, tile, forced=True)
        self.last = refusal or self.last
        return refusal
