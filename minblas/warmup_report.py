"""What a warmup did: which M gets what, and which binaries that takes, where they came from and how long they took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kernel_zoo.build import Specialisation
from kernel_zoo.compile_worker import Answer

if TYPE_CHECKING:
    from minblas.breakpoints import Walk
    from minblas.warmup import Need

_SHOWN: Final = 3  # intervals of a binary, and failures of a kind, that are printed


@dataclass(frozen=True, slots=True)
class Interval:
    """Values of M from first to last, of which `count` are meant."""

    shape: str
    first: int
    last: int
    count: int

    def __str__(self) -> str:
        if self.first == self.last:
            return str(self.first)
        all_of_them = self.count == self.last - self.first + 1
        return f"{self.first} to {self.last}" + ("" if all_of_them else f" ({self.count} of them)")


@dataclass(frozen=True, slots=True)
class Pick:
    """What serves neighbouring values of M."""

    serves: Interval
    variant: str
    tile: str | None


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled kernel.

    Attributes:
        differs: what tells it from the other binaries of its variant and tile: divisors, evenness, constants.
        serves: the values of M that need it, one interval for each run of the pick.
        seconds: what compiling took.
        cached: it was in Triton's disk cache.
        loaded: it is on the device; False without a GPU.
        was_loaded: it was there before.
    """

    kernel: str
    variant: str
    tile: str
    differs: str
    serves: tuple[Interval, ...]
    status: str
    seconds: float
    cached: bool
    loaded: bool
    was_loaded: bool

    def __str__(self) -> str:
        state = "failed" if self.status != "ok" else "in the cache" if self.cached else f"{self.seconds:.1f} s"
        loaded = ", loaded before" if self.was_loaded else ", loaded" if self.loaded else ""
        more = len(self.serves) - _SHOWN
        shown = "; ".join(map(str, self.serves[:_SHOWN])) + (f"; and {more} more intervals" if more > 0 else "")
        differs = f" [{self.differs}]" if self.differs else ""
        return f"{self.variant} {self.tile} {self.kernel}{differs}: M {shown} ({state}{loaded})"


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """What a warmup did.

    Attributes:
        shapes: problems asked for, ranges unrolled.
        chosen: problems that the choice was made for; fewer than `shapes` where a very long range of M was searched.
        plans: distinct picks of variant and tile among them.
        binaries: distinct binaries they need.
        cached: binaries that were in Triton's disk cache.
        loaded: binaries now loaded on the device; 0 without a GPU.
        aten: shapes served by a variant that launches by itself (PyTorch's own product): nothing to compile.
        picks: which variant and tile serves which values of M.
        needs: each binary: for which M, from where, how long it took.
        failures: what did not compile or load.
    """

    device: str
    shapes: int
    plans: int
    binaries: int
    loaded: int
    aten: int
    seconds: float
    failures: tuple[str, ...] = ()
    chosen: int = 0
    cached: int = 0
    choosing_seconds: float = 0.0
    picks: tuple[Pick, ...] = ()
    needs: tuple[Binary, ...] = ()

    @property
    def exact(self) -> bool:
        """The choice was made for every shape."""
        return self.chosen == self.shapes

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "exact": self.exact}

    def summary(self) -> str:
        """One line."""
        made = f"{_many(self.binaries, 'binary', 'binaries')} for {_many(self.plans, 'pick')} of {_many(self.shapes, 'shape')}"
        done = f"{self.loaded} loaded" if self.loaded else "compiled into the disk cache"
        known = f" ({self.cached} were there)" if self.cached else ""
        aten = f"; aten serves {self.aten}" if self.aten else ""
        return f"{self.device}: {made}, {done}{known} in {self.seconds:.1f} s{aten}"

    def __str__(self) -> str:
        told = [self.summary()]
        if not self.exact:
            told.append(
                f"  chosen for {self.chosen:,} of {self.shapes:,} shapes: the range is too long to ask about every M, so changes "
                "were searched for by halving; one between two equal neighbours can be missed"
            )
        more = len(self.failures) - 10
        failed = [f"  failed: {failure}" for failure in self.failures[:10]] + ([f"  and {more} more failures"] if more > 0 else [])
        return "\n".join([*told, *(f"  {binary}" for binary in self.needs), *failed])


def picks_of(walks: Iterable[tuple[str, Walk[Need]]]) -> tuple[Pick, ...]:
    """The picks along every line, in runs of M."""
    return tuple(
        Pick(Interval(label, run[0][0], run[-1][0], len(run)), run[0][1].variant, _tile(run[0][1]))
        for label, found in walks
        for run in found.runs(lambda need: (need.variant, need.tile))
        if run[0][1].variant
    )


def binaries_of(
    walks: Iterable[tuple[str, Walk[Need]]], answers: Mapping[Specialisation, Answer], loaded: Mapping[Specialisation, bool]
) -> tuple[Binary, ...]:
    """The binaries that the lines need, with the values of M that each serves."""
    serves: dict[Specialisation, list[Interval]] = {}
    owners: dict[Specialisation, Need] = {}
    for label, found in walks:
        for run in found.runs(lambda need: (need.variant, need.tile)):
            values: dict[Specialisation, list[int]] = {}
            for m, need in run:
                for spec in dict.fromkeys(need.specs):
                    values.setdefault(spec, []).append(m)
                    owners.setdefault(spec, need)
            for spec, served in values.items():
                serves.setdefault(spec, []).append(Interval(label, served[0], served[-1], len(served)))
    peers: dict[tuple[object, ...], list[Specialisation]] = {}
    for spec, need in owners.items():
        peers.setdefault((need.variant, need.tile, spec.kernel.__name__), []).append(spec)
    return tuple(
        _binary(spec, need, peers[need.variant, need.tile, spec.kernel.__name__], serves[spec], answers[spec], loaded.get(spec))
        for spec, need in owners.items()
    )


def _binary(
    spec: Specialisation, need: Need, peers: Sequence[Specialisation], serves: Sequence[Interval], answer: Answer, was: bool | None
) -> Binary:
    return Binary(
        kernel=spec.kernel.__name__,
        variant=need.variant,
        tile=_tile(need) or "",
        differs=differences(spec, peers),
        serves=tuple(serves),
        status=answer.status,
        seconds=answer.seconds,
        cached=answer.cached,
        loaded=was is not None,
        was_loaded=bool(was),
    )


def differences(spec: Specialisation, peers: Sequence[Specialisation]) -> str:
    """What of a binary differs among its peers: "M divisible by 16, EVEN_M=True"."""
    mine = _properties(spec)
    others = [_properties(peer) for peer in peers]
    return ", ".join(value for name, value in mine.items() if any(other.get(name) != value for other in others))


def _properties(spec: Specialisation) -> dict[str, str]:
    names = spec.kernel.arg_names
    constants = dict(spec.constants)
    found: dict[str, str] = {}
    for i, (name, divisor) in enumerate(zip(names, spec.divisors, strict=True)):
        if i in constants:
            found[name] = f"{name}={constants[i]}"
        elif divisor:
            found[name] = f"{name} divisible by {divisor}"
        else:
            found[name] = f"{name} odd" if spec.signature[i] in ("i32", "i64") else f"{name} {spec.signature[i]}"
    return found


def _many(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def _tile(need: Need) -> str | None:
    return need.tile.describe() if need.tile is not None else None
