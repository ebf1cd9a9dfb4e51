"""The variants of a choice, and which of them take a problem: asked once for each kind of problem where the variants declare that.

`able` keeps an answer under the problem's `Kind`, for the roster's own variants and device. That is complete: every `supports` of
the variants it asks is a `ByKind`, whose verdict depends on nothing else. Where one is not, or the problem has no kind, all are
asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heuristics.legality import Sound
from heuristics.nearest import Standing
from heuristics.policy import NET
from kernel_zoo.spec import Arch, ByKind, GemmProblem, Kind, Variant

_KEPT: Final = 16  # rosters
_KINDS: Final = 1 << 10  # of problems, for each roster


class Roster:
    """Variants on one device.

    Attributes:
        variants: all of them, in the order in which ties are broken.
        by_name: the same by name.
        zoo: those that may serve without being asked for; `fastest` has the net among them.
        standing: what `nearest` keeps of rows, by whether the fastest is wanted: that follows from the rows and these variants.
        sound: what `legality` keeps of tiles.
    """

    def __init__(self, variants: tuple[Variant, ...], arch: Arch) -> None:
        self.variants, self._arch = variants, arch
        self.by_name = {variant.name: variant for variant in variants}
        self.fastest = tuple(variant for variant in variants if variant.origin != "user")
        self.zoo = tuple(variant for variant in self.fastest if variant.name != NET)
        self._declared = all(isinstance(variant.supports, ByKind) for variant in self.fastest)
        self.sound: Sound = {}
        self.standing: tuple[Standing, Standing] = ({}, {})
        self._able: dict[tuple[Kind, bool], Mapping[str, Variant]] = {}

    def able(self, problem: GemmProblem, fastest: bool) -> Mapping[str, Variant]:
        """Those of `zoo`, or of `fastest`, that take a problem with some tile, if any fits; by name."""
        kind = Kind.of(problem) if self._declared else None
        if kind is None:
            return self._ask(problem, fastest)
        found = self._able.get((kind, fastest))
        if found is None:
            found = self._ask(problem, fastest)
            if len(self._able) >= _KINDS:
                self._able = {}
            self._able[kind, fastest] = found
        return found

    def _ask(self, problem: GemmProblem, fastest: bool) -> Mapping[str, Variant]:
        asked = self.fastest if fastest else self.zoo
        return {variant.name: variant for variant in asked if variant.supports(problem, self._arch) is None}


_recent: dict[tuple[int, int], tuple[tuple[Variant, ...], Arch, Roster]] = {}


def roster(variants: tuple[Variant, ...], arch: Arch) -> Roster:
    """The one of these variants on a device: both are frozen and told by identity, a process has few of either."""
    key = (id(variants), id(arch))
    found = _recent.get(key)  # what it is of is kept alive beside it, so that their ids are not given to others
    if found is None:
        if len(_recent) >= _KEPT:
            _recent.clear()
        found = _recent[key] = (variants, arch, Roster(variants, arch))
    return found[2]
