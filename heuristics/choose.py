"""The choice: a pure function from a problem, a device, the variants and the tables to a Selection.

A ladder, tried from the top: forced by the caller, the exact row of the user's tables, of the packaged table, a row borrowed from
another device of the capability, the nearest rows re-ranked by the model, the model over all candidates, the net. A table proposes
and never licenses: policy and legality are asked again, on the real problem, after every hit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np

from heuristics import fixed, nearest
from heuristics.cost import Scorer
from heuristics.eligibility import Eligibility
from heuristics.ladder import Choice
from heuristics.model import best_first, best_of, proposals
from heuristics.pairs import PAIRS, Rows
from heuristics.policy import (
    INVARIANT_FAMILY,
    NET,
    ForcedVariantError,
    NoVariantError,
    Policy,
    UnknownVariantError,
    invariant_tile,
)
from heuristics.resources import ResourceTable
from heuristics.selection import Rung, Selection
from heuristics.table import HeuristicTable, Measurement, ProblemKey, TableEntry, problem_key
from kernel_zoo.spec import Arch, GemmProblem, Variant

_FREE: Final = Policy()
_FASTER: Final = 0.98  # the net is taken over a measured winner only where it beats it by more than noise
_EXACT: Final = {
    "measured": "the fastest of those tried on this very problem (measured)",
    "hand": "the row of this very problem was written by hand",
    "modelled": "the row of this very problem is the model's: nobody measured it",
}
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
    return _answer(Choice(Eligibility(problem, arch, tuple(variants), resources, policy), tables))


def _answer(choice: Choice) -> Selection:
    """The first rung that has one."""
    if choice.policy.variant is not None or choice.policy.tile is not None:
        return fixed.forced(choice)
    if choice.problem.empty:
        return fixed.nothing_to_do(choice)
    if choice.problem.batch_invariant:
        return fixed.invariant(choice)
    found = None
    if choice.problem.k > 0 and (choice.own or choice.foreign):
        key = problem_key(choice.problem)
        found = _exact(choice, key) or (_borrowed(choice, key) if choice.foreign else None) or _nearest(choice, key)
    return found or _modelled(choice) or choice.net()


def _exact(choice: Choice, key: ProblemKey) -> Selection | None:
    for table, entry in choice.rows(key, choice.own):
        net = _faster_net(choice, entry)
        if net is not None:
            reason = f"torch's own product was measured faster ({entry.torch_us:.4g} us against {entry.time_us:.4g} us)"
            return choice.selection(net, None, "exact", reason, table, 0.0, entry.torch_us, entry)
        winner, *others = entry.measurements
        refusal = choice.may.row_fault(table, winner, winner=True)
        if refusal is None:
            return choice.row(choice.may.by_name[entry.variant], winner, "exact", _EXACT[entry.source], table, entry)
        if refusal.rule in _WRONG_ROW:
            continue
        choice.notes.append(f"the winner of the row in {table.name}, {entry.variant}, may not serve: {refusal.sentence}")
        for seen in others:
            if choice.may.row_fault(table, seen, winner=False) is None:
                reason = f"{_EXACT[entry.source]}, after {entry.variant}, which may not serve"
                return choice.row(choice.may.by_name[seen.variant], seen, "exact", reason, table, entry)
    return None


def _borrowed(choice: Choice, key: ProblemKey) -> Selection | None:
    rows = list(choice.rows(key, choice.foreign))
    if not rows:
        return None
    where = " and ".join(dict.fromkeys(table.where for table, _ in rows))
    reason = f"the model's choice among what was fastest on this problem on {where}"
    return _reranked(choice, nearest.borrowed(rows), "borrowed", reason)


def _nearest(choice: Choice, key: ProblemKey) -> Selection | None:
    rows = nearest.near(key, choice.arch, choice.own, choice.foreign, choice.fitted)
    if not rows:
        return None
    others = proposals(choice.may, choice.may.able().values()) if rows[0].far > nearest.CLOSE else None
    return _reranked(choice, rows, "nearest", "the model's choice among the tiles of the nearest rows", others)


def _reranked(choice: Choice, rows: Sequence[nearest.Row], rung: Rung, reason: str, others: Rows | None = None) -> Selection | None:
    """The best of the rows' tiles on this problem, unless one of `others` is well before it.

    Legality is asked when a tile's turn comes.
    """
    kept = choice.may.standing_rows if rung == "nearest" else None
    picks, corrections, elsewhere = nearest.weighed(rows, partial(_evidence, choice), kept)
    if not picks:
        return None
    numbers, factors = np.array([*picks], np.intp), np.array(corrections)
    if others is not None:
        proposed, numbers = numbers, np.concatenate([numbers, others])
        factors = np.empty(len(numbers))
        factors[: len(picks)], factors[len(picks) :] = corrections, elsewhere
        factors[len(picks) :][PAIRS.among(others, proposed)] = math.inf
    for index in best_first(Scorer(choice.problem, choice.arch, choice.fitted).totals(numbers) * factors, numbers):
        name, tile = PAIRS.pairs[numbers[index]]
        variant = choice.may.by_name[name]
        if choice.may.refusal(variant, tile) is None:
            if index >= len(picks):
                reason = f"the model puts it well before the tiles of the nearest rows, {rows[0].far:.2g} octaves away"
                return choice.selection(variant, tile, "model", reason)
            row = picks[int(numbers[index])]
            return choice.selection(variant, tile, rung, reason, row.table, row.far, None, row.entry)
    return None


def _evidence(choice: Choice, table: HeuristicTable, seen: Measurement, winner: bool) -> bool:
    """Whether a measurement may propose its tile."""
    variant = choice.may.by_name.get(seen.variant)
    if variant is not None and choice.may.unasked(variant) is not None:
        return False
    return choice.may.standing(table, seen, winner=winner) is None


def _faster_net(choice: Choice, entry: TableEntry) -> Variant | None:
    """The net, where the caller wants the fastest and the row says that it is."""
    net = choice.may.by_name.get(NET)
    if choice.policy.prefer != "fastest" or net is None or entry.torch_us is None or entry.torch_us >= _FASTER * entry.time_us:
        return None
    return net if choice.may.refusal(net, None) is None else None


def _modelled(choice: Choice) -> Selection | None:
    for time_us, variant, tile in best_of(choice.may, choice.may.able(), choice.fitted):
        return choice.selection(variant, tile, "model", f"no row is near; the model puts it first, at {time_us:.4g} us")
    return None


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
