"""One call on its way down the ladder: what may serve it, the tables that know of its device, and how an answer is put."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from heuristics.coefficients import Fitted
from heuristics.eligibility import Eligibility
from heuristics.policy import NET, NoVariantError
from heuristics.selection import Rung, Selection
from heuristics.table import HeuristicTable, Measurement, ProblemKey, TableEntry
from kernel_zoo.spec import Arch, TileConfig, Variant

_Related = tuple[tuple[HeuristicTable, ...], tuple[HeuristicTable, ...], Fitted | None]
_last: tuple[tuple[HeuristicTable, ...], Arch | None, _Related] = ((), None, ((), (), None))


def _related(tables: tuple[HeuristicTable, ...], arch: Arch) -> _Related:
    """A device's own tables, those of others of its capability, and the coefficients; the last answer is kept.

    Tables and devices are frozen and told by identity: a process asks about the same ones over and over.
    """
    global _last
    known, device, found = _last
    if known is not tables or device is not arch:
        kin = sorted(((table.kinship(arch), table) for table in tables), key=lambda item: item[1].origin == "packaged")
        own = tuple(table for kinship, table in kin if kinship == "exact")
        foreign = tuple(table for kinship, table in kin if kinship == "borrowed")
        found = own, foreign, next((table.model for table in (*own, *foreign) if table.model), None)
        _last = tables, arch, found
    return found


class Choice:
    """The conditions of one choice.

    Attributes:
        may: what the caller allows and what is legal.
        own, foreign: tables of this very device, and of others of its capability, in order of authority.
        fitted: the model's coefficients, where a table has them, the device's own before one of another of its capability.
        notes: what explain should say beside the reason.
    """

    def __init__(self, may: Eligibility, tables: Iterable[HeuristicTable]) -> None:
        self.may, self.problem, self.arch, self.policy = may, may.problem, may.arch, may.policy
        self.own, self.foreign, self.fitted = _related(tuple(tables), may.arch)
        self.notes: list[str] = []

    def rows(self, key: ProblemKey, tables: Iterable[HeuristicTable]) -> Iterator[tuple[HeuristicTable, TableEntry]]:
        """The tables' rows of exactly that problem."""
        for table in tables:
            entry = table.lookup(key)
            if entry is not None:
                yield table, entry

    def net(self, reason: str = "no kernel of the zoo can serve this problem") -> Selection:
        """The net's answer; NoVariantError where it may not serve either."""
        net = self.may.by_name.get(NET)
        if net is not None and self.may.refusal(net, None) is None:
            return self.selection(net, None, "default", reason)
        raise NoVariantError(self.problem, self.arch, self.may.judge(self.fitted)[1])

    def row(
        self, variant: Variant, seen: Measurement, rung: Rung, reason: str, table: HeuristicTable, entry: TableEntry
    ) -> Selection:
        """A row's answer for this very problem. A modelled row measured nothing."""
        measured_us = None if entry.source == "modelled" else seen.time_us
        return self.selection(variant, seen.tile, rung, reason, table, 0.0, measured_us, entry)

    def selection(
        self,
        variant: Variant,
        tile: TileConfig | None,
        rung: Rung,
        reason: str,
        table: HeuristicTable | None = None,
        distance: float | None = None,
        measured_us: float | None = None,
        entry: TableEntry | None = None,
    ) -> Selection:
        """The answer; all that explains it is worked out when it is asked for."""
        return Selection(
            self.problem, self.arch, variant.name, tile, rung, reason, table.name if table is not None else None, distance,
            measured_us, entry, tuple(self.notes), self.may.variants, self.fitted, lambda: self.may.judge(self.fitted),
            self.may, (*self.own, *self.foreign),
        )  # fmt: skip
