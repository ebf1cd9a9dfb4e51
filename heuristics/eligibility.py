"""What may serve: policy, legality and the standing of a table's row, each answered with a reason.

Here legality, on the real problem, is joined with what the caller allows. A row proposes; it is let through only if its kernel is
the one that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heuristics.coefficients import Fitted
from heuristics.legality import Legality
from heuristics.model import rank
from heuristics.nearest import Standing
from heuristics.notices import warn_once
from heuristics.policy import INVARIANT_FAMILY, NET, Policy, UnknownVariantError, invariant_tile
from heuristics.resources import ResourceTable
from heuristics.roster import roster
from heuristics.table import HeuristicTable, Measurement
from kernel_zoo.spec import Arch, Candidate, GemmProblem, Refusal, TileConfig, Variant


class Eligibility:
    """The conditions of one choice: problem, device, variants, what their binaries need, and the caller's policy."""

    def __init__(
        self, problem: GemmProblem, arch: Arch, variants: tuple[Variant, ...], resources: ResourceTable | None, policy: Policy
    ) -> None:
        """Raises UnknownVariantError where the policy names a variant that is not registered."""
        self.problem, self.arch, self.variants, self.policy = problem, arch, variants, policy
        self._roster, self._fastest = roster(variants, arch), policy.prefer == "fastest"
        self.by_name = self._roster.by_name
        self._restricts = bool(policy.exclude) or problem.deterministic  # else policy has nothing against any variant
        self.resources, self.legality = resources, Legality(problem, arch, resources, self._roster.sound)
        if policy.exclude or policy.variant is not None:
            for name in (*sorted(policy.exclude), *([policy.variant] if policy.variant is not None else [])):
                if name not in self.by_name:
                    raise UnknownVariantError(name, self.by_name)

    def candidates(self) -> Sequence[Variant]:
        """The variants that the model may propose."""
        found = self._roster.fastest if self._fastest else self._roster.zoo
        return [variant for variant in found if self._by_policy(variant) is None] if self._restricts else found

    def able(self) -> Mapping[str, Variant]:
        """Those of the candidates that take the problem, by name."""
        found = self.legality.taken_by = self._roster.able(self.problem, self._fastest)
        return {name: v for name, v in found.items() if self._by_policy(v) is None} if self._restricts else found

    def _unbidden(self, variant: Variant) -> bool:
        """Whether a variant may serve without being asked for: the zoo's kernels may, and the net where the fastest is wanted."""
        return variant.origin != "user" and (variant.name != NET or self._fastest)

    def unasked(self, variant: Variant) -> Refusal | None:
        """Why a variant may not serve without being asked for."""
        if self._unbidden(variant):
            return None
        if variant.origin == "user":
            return Refusal("unasked", f"{variant.name} is registered by the user", "to be forced, or named by a row of a table")
        return Refusal("net", f"{variant.name} is the net", 'a call that nothing else can serve, or prefer="fastest"')

    def refusal(self, variant: Variant, tile: TileConfig | None = None, forced: bool = False) -> Refusal | None:
        """Policy and legality of a pick. What the caller forces is not held back by what it excludes."""
        refusal = self._by_policy(variant) if self._restricts else None
        if refusal is not None and not (forced and refusal.rule == "excluded"):
            return refusal
        if forced and self.problem.batch_invariant and self._varies(variant, tile):
            return Refusal(
                "batch_invariant", f"{variant.name} is forced", f"{INVARIANT_FAMILY} with its fixed tile (batch_invariant)"
            )
        refusal = self.legality.refusal(variant, tile)
        return self._by_workspace(variant, tile) if refusal is None and tile is not None else refusal

    @property
    def standing_rows(self) -> Standing:
        """What is kept of rows whose measurements stand: that does not depend on the problem."""
        return self._roster.standing[self._fastest]

    def row_fault(self, table: HeuristicTable, seen: Measurement, *, winner: bool, forced: bool = False) -> Refusal | None:
        """Why a measurement in a table may not serve: its standing, then policy and legality."""
        fault = self.standing(table, seen, winner=winner, forced=forced)
        return fault if fault is not None else self.refusal(self.by_name[seen.variant], seen.tile, forced)

    def standing(self, table: HeuristicTable, seen: Measurement, *, winner: bool, forced: bool = False) -> Refusal | None:
        """Why a measurement is no evidence, legal or not. What is wrong with a winner's row itself is warned of, once."""
        variant = self.by_name.get(seen.variant)
        complaint = ""
        if variant is None:
            fault = Refusal("unregistered", f"{seen.variant} is not registered", "it")
            complaint = "it is not registered in this process"
        elif seen.digest and seen.digest != variant.digest:
            fault = Refusal("stale", f"the row is of kernel {seen.digest}", variant.digest)
            complaint = f"they were measured on kernel {seen.digest}, which is now {variant.digest}; tune again"
        elif table.origin == "packaged" and not forced and self.unasked(variant) is not None:
            fault = Refusal("packaged", f"a packaged table names {seen.variant}", "a kernel of the zoo")
            complaint = "packaged tables name the zoo's kernels only"
        else:
            return None
        if winner:
            warn_once(f"table {table.name}: rows of variant {seen.variant} are ignored: {complaint}")
        return fault

    def judge(self, fitted: Fitted | None) -> tuple[list[Candidate], list[Candidate]]:
        """Every candidate by the model, best first, and every variant that may not serve, with its reason."""
        if self.problem.empty:
            return [], []
        ranked = rank(self, self.candidates(), fitted)
        able = {candidate.variant for candidate in ranked}
        return ranked, [Candidate(v.name, None, None, self._why_not(v)) for v in self.variants if v.name not in able]

    def _why_not(self, variant: Variant) -> Refusal:
        refusal = self._by_policy(variant) or self.legality.refusal(variant) or self.unasked(variant)
        if refusal is not None:
            return refusal
        tiles = variant.space(self.problem, self.arch)
        fault = next(filter(None, (self.refusal(variant, tile) for tile in tiles)), None)
        return fault or Refusal(
            "tile", f"{variant.name} proposes no tile for this problem", "a tile given by the caller (tile=...)"
        )

    def _by_policy(self, variant: Variant) -> Refusal | None:
        if variant.name in self.policy.exclude:
            return Refusal("excluded", f"{variant.name} is excluded by the caller", "a policy that allows it")
        if self.problem.deterministic and not variant.deterministic:
            return Refusal("deterministic", f"{variant.name} may differ from run to run", "bits that repeat (deterministic)")
        return None

    def _varies(self, variant: Variant, tile: TileConfig | None) -> bool:
        return variant.name != INVARIANT_FAMILY or tile not in (None, invariant_tile(self.problem, self.arch))

    def _by_workspace(self, variant: Variant, tile: TileConfig) -> Refusal | None:
        limit = self.policy.workspace_limit
        if limit is None or variant.recipe is None:
            return None
        needed = variant.plan(self.problem, tile, self.arch).workspace_bytes
        return (
            Refusal("workspace", f"it takes {needed:,} bytes of scratch memory", f"at most {limit:,}") if needed > limit else None
        )
