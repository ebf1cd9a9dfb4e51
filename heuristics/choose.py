"""The choice: a pure function from a problem, a device, the variants and the tables to a Selection.

A ladder, tried from the top: forced by the caller, the exact row of the user's tables, of the packaged table, a row borrowed from
another device of the capability, the nearest rows re-ranked by the model, the model over all candidates, the net. A table proposes
and never licenses: policy and legality are asked again, on the real problem, after every hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from heuristics.cost import Fitted, Scorer
from heuristics.eligibility import Eligibility, ResourceTable
from heuristics.model import proposals
from heuristics.policy import (
    INVARIANT_FAMILY,
    NET,
    ForcedVariantError,
    NoVariantError,
    Policy,
    UnknownVariantError,
    invariant_tile,
)
from heuristics.selection import Rung, Selection
from heuristics.table import OCTAVE, HeuristicTable, ProblemKey, TableEntry, problem_key, problem_of
from kernel_zoo.spec import Arch, Candidate, GemmProblem, Refusal, TileConfig, Variant

_FREE: Final = Policy()
_NEAREST: Final = 4  # rows whose tiles are re-ranked
_FOREIGN: Final = 0.25  # octaves by which a row of another device is farther
_FASTER: Final = 0.98  # the net is taken over a measured winner only where it beats it by more than noise
_WRONG_ROW: Final = ("stale", "unregistered", "packaged")  # the row is no evidence at all, runners-up included


def choose(
    problem: GemmProblem,
    arch: Arch,
    variants: Iterable[Variant],
    tables: Iterable[HeuristicTable] = (),
    resources: ResourceTable | None = None,
    policy: Policy = _FREE,
) -> Selection:
    """The variant and tile that serve a problem on a device.

    Args:
        problem: the call.
        arch: the device.
        variants: all registered variants; earlier ones win ties.
        tables: tuned rows, in order of authority; the user's come before packaged ones whatever their order here.
        resources: what compiled kernels need, where known; spilling or oversized ones are not candidates.
        policy: what the caller forces, prefers and excludes.

    Raises:
        UnknownVariantError: the policy names a variant that is not registered.
        ForcedVariantError: the variant or tile that the policy forces cannot serve.
        NoVariantError: nothing can.
    """
    return _Ladder(Eligibility(problem, arch, tuple(variants), resources, policy), tables).answer()


class _Ladder:
    """One problem on its way down."""

    def __init__(self, may: Eligibility, tables: Iterable[HeuristicTable]) -> None:
        self.may, self.problem, self.arch, self.policy = may, may.problem, may.arch, may.policy
        related = sorted(((table.kinship(may.arch), table) for table in tables), key=lambda item: item[1].origin == "packaged")
        self.own = [table for kinship, table in related if kinship == "exact"]
        self.foreign = [table for kinship, table in related if kinship == "borrowed"]
        self.fitted: Fitted | None = next((table.model for table in self.own if table.model), None)
        self.notes: list[str] = []

    def answer(self) -> Selection:
        """The first rung that has one."""
        if self.policy.variant is not None or self.policy.tile is not None:
            return self._forced()
        if self.may.empty:
            return self._nothing_to_do()
        if self.problem.batch_invariant:
            return self._invariant()
        found = None
        if self.problem.k > 0:
            key = problem_key(self.problem)
            found = self._exact(key) or self._borrowed(key) or self._nearest(key)
        return found or self._modelled() or self._net()

    # Forced and fixed answers

    def _forced(self) -> Selection:
        name, tile = self.policy.variant, self.policy.tile
        asked = [self.may.by_name[name]] if name is not None else self.may.candidates()
        refused: list[Candidate] = []
        options: list[tuple[float, int, Variant]] = []
        scorer = self._scorer(self.problem)
        for order, variant in enumerate(asked):
            refusal = self.may.refusal(variant, tile, forced=True)
            if refusal is not None:
                refused.append(Candidate(variant.name, tile, None, refusal))
            elif tile is None and variant.recipe is not None:
                return self._forced_variant(variant, scorer)
            else:
                options.append((scorer.time_us(variant.name, tile), order, variant))
        if options:
            return self._selection(min(options)[2], tile, "forced", f"the caller asked for this {'variant' if name else 'tile'}")
        if len(refused) == 1 and refused[0].refusal is not None:
            raise ForcedVariantError(self.problem, self.arch, refused[0].variant, refused[0].refusal)
        raise NoVariantError(self.problem, self.arch, refused or self.may.judge(self.fitted)[1])

    def _forced_variant(self, variant: Variant, scorer: Scorer) -> Selection:
        """A variant without a tile: the measured one where a row has it, else the model's."""
        if self.problem.batch_invariant or (self.may.empty and variant.name == INVARIANT_FAMILY):
            tile = invariant_tile(self.problem, self.arch)
            return self._selection(variant, tile, "forced", "the caller asked for this variant; its tile is the fixed one")
        for table, entry in self._rows(problem_key(self.problem), self.own):
            for seen in entry.measurements:
                if seen.variant == variant.name and self.may.row_fault(table, seen, winner=True, forced=True) is None:
                    reason = "the caller asked for this variant; the tile is the measured one"
                    return self._selection(variant, seen.tile, "forced", reason, table, 0.0, seen.time_us)
        refusal = None
        for _, _, _, proposed in proposals(scorer, [variant]):
            refusal = self.may.refusal(variant, proposed, forced=True)
            if refusal is None:
                return self._selection(variant, proposed, "forced", "the caller asked for this variant; the tile is the model's")
        needed = Refusal("tile", f"no tile that {variant.name} proposes fits", "a tile given by the caller (tile=...)")
        raise ForcedVariantError(self.problem, self.arch, variant.name, refusal or needed)

    def _nothing_to_do(self) -> Selection:
        """An empty result needs no launch; the answer is legal all the same."""
        p = self.problem
        name = next(name for name, size in (("batch", p.batch), ("m", p.m), ("n", p.n)) if size <= 0)
        reason, family = f"nothing to compute: {name} is 0", self.may.by_name.get(INVARIANT_FAMILY)
        tile = invariant_tile(p, self.arch)
        if family is not None and self.may.refusal(family, tile) is None:
            return self._selection(family, tile, "default", reason)
        return self._net(reason)

    def _invariant(self) -> Selection:
        """One family and one tile for every M: no table, no model, no size of the batch has a say."""
        family, tile = self.may.by_name.get(INVARIANT_FAMILY), invariant_tile(self.problem, self.arch)
        refusal: Refusal | None = Refusal("variant", f"{INVARIANT_FAMILY} is not registered", "it, for batch_invariant")
        if family is not None:
            refusal = self.may.refusal(family, tile)
            if refusal is None:
                reason = "batch_invariant: one family and one tile for every M, from n, k, dtype and device alone"
                return self._selection(family, tile, "default", reason)
        net = self.may.by_name.get(NET)
        if net is not None and self.problem.acc_dtype == "int32" and self.may.refusal(net, None) is None:
            return self._selection(net, None, "default", "batch_invariant: integer sums are exact in any order")
        raise NoVariantError(self.problem, self.arch, [Candidate(INVARIANT_FAMILY, tile, None, refusal)])

    # The rungs of the tables

    def _exact(self, key: ProblemKey) -> Selection | None:
        for table, entry in self._rows(key, self.own):
            net = self._faster_net(entry)
            if net is not None:
                reason = f"torch's own product was measured faster ({entry.torch_us:.4g} us against {entry.time_us:.4g} us)"
                return self._selection(net, None, "exact", reason, table, 0.0, entry.torch_us)
            refusal = self.may.row_fault(table, entry.measurements[0], winner=True)
            if refusal is None:
                reason = f"the fastest of those tried on this very problem ({entry.source})"
                return self._selection(self.may.by_name[entry.variant], entry.tile, "exact", reason, table, 0.0, entry.time_us)
            if refusal.rule in _WRONG_ROW:
                continue
            self.notes.append(f"the winner of the row in {table.name}, {entry.variant}, may not serve: {refusal.sentence}")
            for seen in entry.runner_ups:
                if self.may.row_fault(table, seen, winner=False) is None:
                    reason = f"the fastest of those tried on this very problem that may serve; {entry.variant} may not"
                    return self._selection(self.may.by_name[seen.variant], seen.tile, "exact", reason, table, 0.0, seen.time_us)
        return None

    def _borrowed(self, key: ProblemKey) -> Selection | None:
        rows = [(0.0, table, entry) for table, entry in self._rows(key, self.foreign)]
        where = " and ".join(dict.fromkeys(table.environment.gpu_name for _, table, _ in rows))
        return self._reranked(rows, "borrowed", f"the model's choice among what was fastest on this problem on {where}")

    def _nearest(self, key: ProblemKey) -> Selection | None:
        rows = [(far, table, entry) for table in self.own for far, entry in table.nearest(key, _NEAREST, OCTAVE)]
        for table in self.foreign:
            rows += [(far + _FOREIGN, table, entry) for far, entry in table.nearest(key, _NEAREST, OCTAVE - _FOREIGN)]
        rows.sort(key=lambda row: row[0])
        return self._reranked(rows[:_NEAREST], "nearest", "the model's choice among the tiles of the nearest rows")

    def _reranked(self, rows: Sequence[tuple[float, HeuristicTable, TableEntry]], rung: Rung, reason: str) -> Selection | None:
        """The best of the rows' tiles on this problem, by the model corrected by how it erred on the row itself."""
        here = self._scorer(self.problem)
        scored: dict[tuple[str, TileConfig | None], tuple[float, float, HeuristicTable]] = {}
        for far, table, entry in rows:
            there = self._scorer(problem_of(entry.key))
            trust = 1.0 - far / 2 if rung == "nearest" else 0.0  # another device's errors say nothing about this one's
            for place, seen in enumerate(entry.measurements):
                pick = (seen.variant, seen.tile)
                variant = self.may.by_name.get(seen.variant)
                if pick in scored or (variant is not None and self.may.unasked(variant) is not None):
                    continue
                if self.may.row_fault(table, seen, winner=place == 0) is None:
                    error = seen.time_us / max(there.time_us(*pick), 1e-3)
                    scored[pick] = (here.time_us(*pick) * min(max(error, 0.5), 2.0) ** trust, far, table)
        if not scored:
            return None
        (name, tile), (_, far, table) = min(scored.items(), key=lambda item: item[1][0])
        return self._selection(self.may.by_name[name], tile, rung, reason, table, far)

    def _rows(self, key: ProblemKey, tables: Iterable[HeuristicTable]) -> Iterator[tuple[HeuristicTable, TableEntry]]:
        for table in tables:
            entry = table.lookup(key)
            if entry is not None:
                yield table, entry

    def _faster_net(self, entry: TableEntry) -> Variant | None:
        """The net, where the caller wants the fastest and the row says that it is."""
        net = self.may.by_name.get(NET)
        if self.policy.prefer != "fastest" or net is None or entry.torch_us is None or entry.torch_us >= _FASTER * entry.time_us:
            return None
        return net if self.may.refusal(net, None) is None else None

    # The model and the net

    def _modelled(self) -> Selection | None:
        for time_us, _, variant, tile in proposals(self._scorer(self.problem), self.may.candidates()):
            if self.may.refusal(variant, tile) is None:
                return self._selection(variant, tile, "model", f"no row is near; the model puts it first, at {time_us:.4g} us")
        return None

    def _net(self, reason: str = "no kernel of the zoo can serve this problem") -> Selection:
        net = self.may.by_name.get(NET)
        if net is not None and self.may.refusal(net, None) is None:
            return self._selection(net, None, "default", reason)
        raise NoVariantError(self.problem, self.arch, self.may.judge(self.fitted)[1])

    def _scorer(self, problem: GemmProblem) -> Scorer:
        return Scorer(problem, self.arch, self.fitted)

    def _selection(
        self,
        variant: Variant,
        tile: TileConfig | None,
        rung: Rung,
        reason: str,
        table: HeuristicTable | None = None,
        distance: float | None = None,
        measured_us: float | None = None,
    ) -> Selection:
        return Selection(
            self.problem, self.arch, variant.name, tile, rung, reason, table.name if table is not None else None, distance,
            measured_us, None, tuple(self.notes), self.may.variants, self.fitted, lambda: self.may.judge(self.fitted),
        )  # fmt: skip


__all__ = [
    "INVARIANT_FAMILY",
    "NET",
    "ForcedVariantError",
    "NoVariantError",
    "Policy",
    "ResourceTable",
    "Selection",
    "UnknownVariantError",
    "choose",
    "invariant_tile",
]
