"""Is a variant right? Every case that is apt to break a GEMM kernel, on poisoned outputs inside guard bands, against float64.

On a GPU the kernels run as they are, over every tile; on a CPU through the interpreter, over the smallest tiles, in a few seconds.
A variant found wrong is quarantined: nothing picks it until a check passes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kernel_zoo.spec import Arch, GemmProblem, Refusal, TileConfig, Variant, cdiv
from minblas import log, quarantine
from minblas.check_cases import Case, cases
from minblas.inside import with_torchs_own

if TYPE_CHECKING:
    import torch

Tile = TileConfig | Refusal | None

_SHOWN: Final = 5
_CPU_TILES: Final = 3
_CPU_PROGRAMS: Final = 12  # of one case; the interpreter takes about 10 ms for each
_CPU_SECONDS: Final = 60.0  # far above what a check takes; a kernel that never ends its cases is stopped between two of them


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        right, refused, wrong: counts of cases.
        failures: the first wrong cases, in words.
        refusals: how many cases each rule refused.
        examples: the first refusal of each rule, as a sentence.
        skipped: cases left out because time was up.
        quarantined: nothing will pick the variant.
    """

    variant: str
    device: str
    right: int
    refused: int
    wrong: int
    seconds: float
    failures: tuple[str, ...] = ()
    refusals: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    quarantined: bool = False

    @property
    def ok(self) -> bool:
        """Something was right and nothing wrong."""
        return self.right > 0 and self.wrong == 0

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        how = "CPU, through the interpreter" if self.device == "cpu" else self.device
        skipped = f", {self.skipped} left out" if self.skipped else ""
        counts = f"{self.right} right, {self.refused} refused, {self.wrong} wrong{skipped}"
        lines = [f"{self.variant} ({how}): {counts} in {self.seconds:.1f} s"]
        lines += [f"  wrong: {failure}" for failure in self.failures]
        if self.wrong > len(self.failures):
            lines.append(f"  wrong: {self.wrong - len(self.failures)} more")
        lines += [f"  refused {count} by {rule}, e.g. {self.examples[rule]}" for rule, count in self.refusals.items()]
        if self.quarantined:
            lines.append("  quarantined: nothing picks it until a check passes")
        elif not self.right and not self.wrong:
            lines.append("  nothing was checked: it refuses every case")
        return "\n".join(lines)


@with_torchs_own
def check(name: str | Variant, device: torch.device | str | None = None, *, quick: bool = False) -> CheckReport:
    """Verify a variant in every dtype, layout and epilogue it takes, and quarantine it where it is wrong.

    Args:
        name: a variant's name.
        device: where; the GPU where there is one, else the CPU.
        quick: the handful of cases that break most kernels.

    Raises:
        UnknownVariantError: no variant has that name.
    """
    import torch

    from minblas import dispatch
    from minblas.device import arch_of

    variant = quarantine.original(dispatch.get(name)) if isinstance(name, str) else name
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    arch = arch_of(place)
    report = run_cases(variant, arch, place, cases(variant, arch, quick=quick, interpreted=place.type == "cpu"))
    if report.wrong:
        quarantine.suspend(variant, f"a check on {report.device} found {report.wrong} wrong results, first: {report.failures[0]}")
    elif report.right and not quick:
        quarantine.reinstate(variant.name)
    log.get("register").info("%s", report)
    return report


def run_cases(variant: Variant, arch: Arch, device: torch.device, todo: Iterable[Case]) -> CheckReport:
    """Run the cases; changes no state."""
    began = time.perf_counter()
    right, skipped = 0, 0
    failures: list[str] = []
    refusals: Counter[str] = Counter()
    examples: dict[str, str] = {}
    planned = list(_with_tiles(variant, todo, arch, device))
    if device.type == "cuda":
        _compile_ahead(variant, planned, arch)
    for index, (case, tile) in enumerate(planned):
        if device.type == "cpu" and time.perf_counter() - began > _CPU_SECONDS:
            skipped = len(planned) - index
            break
        outcome = tile if isinstance(tile, Refusal) else _outcome(variant, case, tile, arch, device)
        if isinstance(outcome, Refusal):
            refusals[outcome.rule] += 1
            examples.setdefault(outcome.rule, outcome.sentence)
        elif outcome:
            failures.append(outcome)
        else:
            right += 1
    return CheckReport(
        variant.name,
        device.type,
        right,
        sum(refusals.values()),
        len(failures),
        time.perf_counter() - began,
        tuple(failures[:_SHOWN]),
        dict(refusals.most_common()),
        examples,
        skipped,
        bool(failures),
    )


def _with_tiles(variant: Variant, todo: Iterable[Case], arch: Arch, device: torch.device) -> Iterator[tuple[Case, Tile]]:
    """Each case with the tile to run it with, in turn, so that together they meet all that are legal; or why there is none."""
    turn = 0
    for case in todo:
        tiles = _tiles(variant, case.problem, arch, device)
        yield case, tiles if isinstance(tiles, Refusal) else tiles[turn % len(tiles)]
        turn += not isinstance(tiles, Refusal)


def _tiles(variant: Variant, problem: GemmProblem, arch: Arch, device: torch.device) -> Sequence[TileConfig | None] | Refusal:
    """The tiles a problem may be run with; one None for a variant that launches by itself."""
    if device.type == "cpu" and not variant.interpretable:
        return Refusal("device", "the device is a CPU", "a GPU: this variant cannot be interpreted")
    refusal = variant.refusal(problem, arch)
    if refusal is not None:
        return refusal
    if variant.recipe is None:
        return (None,)
    tried = [(tile, variant.refusal(problem, arch, tile)) for tile in variant.space(problem, arch)]
    legal = [tile for tile, why in tried if why is None]
    if legal:
        return _small(legal, problem) if device.type == "cpu" else legal
    return next((why for _, why in tried if why is not None), Refusal("tile", "there is no candidate tile", "at least one"))


def _compile_ahead(variant: Variant, planned: Iterable[tuple[Case, Tile]], arch: Arch) -> None:
    """Fill Triton's disk cache in parallel; what fails here fails again, and is reported, where it is run."""
    from kernel_zoo.compile_pool import CompilePool
    from minblas.tune_session import submit

    with CompilePool() as pool:
        picks = [(case.problem, tile) for case, tile in planned if isinstance(tile, TileConfig)]
        wait([future for problem, tile in picks for future in submit(variant, problem, tile, arch, pool)])


def _small(tiles: list[TileConfig], problem: GemmProblem) -> list[TileConfig]:
    """The smallest tiles that differ in what an interpreter can see, leaving out those that cut the problem into many programs."""
    programs = {
        tile: problem.batch * cdiv(problem.m, tile.block_m) * cdiv(problem.n, tile.block_n) * tile.split_k for tile in tiles
    }
    most = max(_CPU_PROGRAMS, min(programs.values()))
    distinct: dict[tuple[object, ...], TileConfig] = {}
    for tile in sorted(tiles, key=lambda tile: tile.block_m * tile.block_n * tile.block_k):
        if programs[tile] <= most:
            distinct.setdefault((tile.block_m, tile.block_n, tile.block_k, tile.split_k, tile.knobs), tile)
    return list(distinct.values())[:_CPU_TILES]


def _outcome(variant: Variant, case: Case, tile: TileConfig | None, arch: Arch, device: torch.device) -> str | Refusal:
    """What is wrong with the variant on this case, in words; "" where nothing is. A refusal where it could not be run as it is."""
    from kernel_zoo.reference import make_slots, verify
    from minblas import launch
    from minblas.oracle import isolated

    alpha, beta = case.scalars
    try:
        slots = isolated(make_slots(case.problem, device, seed=17, fill=case.fill))
        prepared = launch.prepare(variant, case.problem, tile, arch, device, forced=True)
        if prepared.variant != variant.name:
            return Refusal("device", prepared.reason, "a GPU")
        prepared(slots, alpha, beta)
        verdict = verify(case.problem, slots, alpha, beta)
    except Exception as error:  # whatever a kernel, a recipe or a launcher raises is a finding about it
        fault = f"{type(error).__name__}: {error}"
    else:
        if verdict.ok:
            return ""
        fault = verdict.message
    with_tile = f", tile {tile.describe()}" if tile is not None else ""
    return f"{case.intent}: {case.problem.describe()}{with_tile}: {fault}"
