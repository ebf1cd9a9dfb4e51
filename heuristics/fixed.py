"""Answers that no table and no model is asked for: what the caller forces, batch invariance, an empty result."""

from __future__ import annotations

from heuristics.cost import times_us
from heuristics.eligibility import Eligibility
from heuristics.ladder import Choice
from heuristics.model import legal
from heuristics.policy import INVARIANT_FAMILY, NET, ForcedVariantError, NoVariantError, invariant_tile
from heuristics.selection import Selection
from heuristics.table import problem_key
from kernel_zoo.spec import Candidate, Refusal, TileConfig, Variant


def forced(choice: Choice) -> Selection:
    """What the caller asked for by name, by tile or both, or an error that says why it cannot be."""
    name, tile = choice.policy.variant, choice.policy.tile
    asked = [choice.may.by_name[name]] if name is not None else choice.may.candidates()
    refused: list[Candidate] = []
    able: list[Variant] = []
    for variant in asked:
        refusal = choice.may.refusal(variant, tile, forced=True)
        if refusal is not None:
            refused.append(Candidate(variant.name, tile, None, refusal))
        elif tile is None and variant.recipe is not None:
            return _forced_variant(choice, variant)
        else:
            able.append(variant)
    if able:
        times = times_us(choice.problem, choice.arch, [(variant.name, tile) for variant in able], choice.fitted)
        fastest = able[int(times.argmin())]
        return choice.selection(fastest, tile, "forced", f"the caller asked for this {'variant' if name else 'tile'}")
    if len(refused) == 1 and refused[0].refusal is not None:
        raise ForcedVariantError(choice.problem, choice.arch, refused[0].variant, refused[0].refusal)
    raise NoVariantError(choice.problem, choice.arch, refused or choice.may.judge(choice.fitted)[1])


def _forced_variant(choice: Choice, variant: Variant) -> Selection:
    """A variant without a tile: that of a row where one has it, else the model's."""
    if choice.problem.batch_invariant or (choice.problem.empty and variant.name == INVARIANT_FAMILY):
        tile = invariant_tile(choice.problem, choice.arch)
        return choice.selection(variant, tile, "forced", "the caller asked for this variant; its tile is the fixed one")
    for table, entry in choice.rows(problem_key(choice.problem), choice.own):
        for seen in entry.measurements:
            if seen.variant == variant.name and choice.may.row_fault(table, seen, winner=True, forced=True) is None:
                reason = f"the caller asked for this variant; the tile is the {entry.source} one"
                return choice.row(variant, seen, "forced", reason, table, entry)
    may = _Forced(choice.may)
    for _, _, proposed in legal(may, [variant], choice.fitted):
        return choice.selection(variant, proposed, "forced", "the caller asked for this variant; the tile is the model's")
    needed = Refusal("tile", f"no tile that {variant.name} proposes fits", "a tile given by the caller (tile=...)")
    raise ForcedVariantError(choice.problem, choice.arch, variant.name, may.last or needed)


def nothing_to_do(choice: Choice) -> Selection:
    """An empty result needs no launch; the answer is legal all the same."""
    p = choice.problem
    name = next(name for name, size in (("batch", p.batch), ("m", p.m), ("n", p.n)) if size <= 0)
    reason, family = f"nothing to compute: {name} is 0", choice.may.by_name.get(INVARIANT_FAMILY)
    tile = invariant_tile(p, choice.arch)
    if family is not None and choice.may.refusal(family, tile) is None:
        return choice.selection(family, tile, "default", reason)
    return choice.net(reason)


def invariant(choice: Choice) -> Selection:
    """One family and one tile for every M: no table, no model, no size of the batch has a say."""
    family, tile = choice.may.by_name.get(INVARIANT_FAMILY), invariant_tile(choice.problem, choice.arch)
    refusal: Refusal | None = Refusal("variant", f"{INVARIANT_FAMILY} is not registered", "it, for batch_invariant")
    if family is not None:
        refusal = choice.may.refusal(family, tile)
        if refusal is None:
            reason = "batch_invariant: one family and one tile for every M, from n, k, dtype and device alone"
            return choice.selection(family, tile, "default", reason)
    net = choice.may.by_name.get(NET)
    if net is not None and choice.problem.acc_dtype == "int32" and choice.may.refusal(net, None) is None:
        return choice.selection(net, None, "default", "batch_invariant: integer sums are exact in any order")
    raise NoVariantError(choice.problem, choice.arch, [Candidate(INVARIANT_FAMILY, tile, None, refusal)])


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
