"""Tables for GPUs that nobody here measured: the model's choice for a set of problems, every row marked as modelled.

What such a table is good for: its kernels are known to compile for the GPU, they are few, and a measured row, of the user's own
tuning, takes the place of each. Candidates are legal by the kernels' rules and by what their binaries need, where that is known. Of
candidates whose estimates cannot be told apart, the one whose binary serves the most rows is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from heuristics.legality import Legality
from heuristics.model import rank
from heuristics.resources import ResourceTable
from heuristics.table import Environment, HeuristicTable, Measurement, TableEntry, problem_key
from kernel_zoo.spec import Arch, Epilogue, GemmProblem, Operand, Refusal, TileConfig, Variant, binary_class, tile_key

#: The devices that need a generated table, as their drivers call them.
DEVICES: Final[dict[str, str]] = {
    "a100": "NVIDIA A100-SXM4-80GB",
    "l4": "NVIDIA L4",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "b200": "NVIDIA B200",
    "rtx5090": "NVIDIA GeForce RTX 5090",
}
#: The devices that do not, and why.
BORROWERS: Final[dict[str, str]] = {
    "h200": "its rows are measured",
    "h100-sxm": "it borrows the H200's measured rows, which say more than the model",
    "h100-pcie": "it borrows the H200's measured rows, which say more than the model",
}

Binaries = Callable[[Variant, GemmProblem, TileConfig], frozenset[Hashable]]
Refused = Mapping[tuple[str, str, str], str]  # by class of binaries, variant, what of the tile they depend on

_EQUAL: Final = 1.03  # estimates nearer than this say nothing about which is faster: the model errs by more
_OPTIONS: Final = 24  # candidates a problem that may share a binary with another's
_RUNNER_UPS: Final = 2


def problems() -> list[GemmProblem]:
    """What a generated table has rows for: squares, layers of language models, and what is awkward."""
    return [*_squares(), *_layers(), *_long_k(), *_ragged(), *_batched(), *_with_c(), *_fp32()]


def generate_table(
    arch: Arch,
    variants: Iterable[Variant],
    resources: Sequence[ResourceTable],
    triton: str,
    binaries: Binaries,
    refused: Refused | None = None,
) -> tuple[HeuristicTable, list[str]]:
    """A device's table, and the problems that nothing can serve.

    Args:
        arch: one of DEVICES.
        variants: the zoo; those that launch by themselves are left out.
        resources: what binaries need, under each version of Triton that the rows are to serve on.
        triton: the version to note.
        binaries: what a variant and tile compile to for a problem.
        refused: kinds of binaries (see `kind`) that did not pass a compile gate, and what it said.
    """
    zoo = [variant for variant in variants if variant.recipe is not None and variant.origin == "zoo"]
    ranked = {problem: _ranked(problem, arch, zoo, resources, refused or {}) for problem in problems()}
    chosen = _few_binaries({problem: _equals(found) for problem, found in ranked.items() if found}, zoo, binaries)
    digests = {variant.name: variant.digest for variant in zoo}
    entries = [_entry(problem, pick, ranked[problem], digests) for problem, pick in chosen.items()]
    left_out = [
        f"{problem_key(problem).describe()}: nothing of the zoo can serve it" for problem, found in ranked.items() if not found
    ]
    known = ", ".join(data.triton for data in resources)
    protocol = {
        "measured": "nothing: every time is the model's estimate",
        "candidates": "legal by the kernels' rules" + (f", and by their binaries under Triton {known}" if known else ""),
        "choice": f"of estimates within {_EQUAL - 1:.0%} of the best, the kernel that serves the most rows",
    }
    environment = Environment(DEVICES[arch.name], arch.capability, arch.sm_count, triton=triton)
    description = f"from the model, for a {DEVICES[arch.name]} that nobody measured; tune on one to replace it"
    return HeuristicTable(
        f"packaged {arch.name}", environment, tuple(entries), "packaged", description, protocol=protocol
    ), left_out


def kind(variant: str, problem: GemmProblem, tile: TileConfig) -> tuple[str, str, str]:
    """What a pick's binaries have in common with those of other problems: one that fails the gate speaks for all."""
    return (binary_class(problem), variant, tile_key(problem, tile))


@dataclass(frozen=True, slots=True)
class _Pick:
    variant: str
    tile: TileConfig
    time_us: float


class _Everywhere:
    """Legality under every version of Triton that there is data for, less what a gate refused."""

    def __init__(self, problem: GemmProblem, arch: Arch, resources: Sequence[ResourceTable], refused: Refused) -> None:
        self.problem, self.arch = problem, arch
        self._refused = refused
        self._legalities = [Legality(problem, arch, data) for data in (*resources,) or (None,)]

    def refusal(self, variant: Variant, tile: TileConfig | None = None) -> Refusal | None:
        """Why the variant may not serve."""
        if tile is not None and (fault := self._refused.get(kind(variant.name, self.problem, tile))) is not None:
            return Refusal("gate", fault, "a binary that passes the compile gate")
        return next(filter(None, (legality.refusal(variant, tile) for legality in self._legalities)), None)


def _ranked(
    problem: GemmProblem, arch: Arch, zoo: Sequence[Variant], resources: Sequence[ResourceTable], refused: Refused
) -> list[_Pick]:
    """Legal candidates, best first."""
    found = rank(_Everywhere(problem, arch, resources, refused), zoo)
    return [
        _Pick(one.variant, one.tile, one.estimate.time_us) for one in found if one.tile is not None and one.estimate is not None
    ]


def _equals(ranked: Sequence[_Pick]) -> list[_Pick]:
    """The best, and those that cannot be told from it."""
    least = min(pick.time_us for pick in ranked)
    return [pick for pick in ranked if pick.time_us <= _EQUAL * least][:_OPTIONS]


def _few_binaries(
    options: Mapping[GemmProblem, Sequence[_Pick]], zoo: Sequence[Variant], binaries: Binaries
) -> dict[GemmProblem, _Pick]:
    """One option for each problem, such that few binaries serve all: repeatedly the binaries that serve the most problems left."""
    by_name = {variant.name: variant for variant in zoo}
    served: dict[frozenset[Hashable], dict[GemmProblem, _Pick]] = {}
    for problem, picks in options.items():
        for pick in picks:
            served.setdefault(binaries(by_name[pick.variant], problem, pick.tile), {}).setdefault(problem, pick)
    chosen: dict[GemmProblem, _Pick] = {}
    built: set[Hashable] = set()
    while len(chosen) < len(options):
        worth = {need: sum(problem not in chosen for problem in some) / (len(need - built) + 0.1) for need, some in served.items()}
        need = max(worth, key=lambda need: worth[need])  # the first mentioned of equals
        chosen |= {problem: pick for problem, pick in served.pop(need).items() if problem not in chosen}
        built |= need
    return {problem: chosen[problem] for problem in options}


def _entry(problem: GemmProblem, pick: _Pick, ranked: Sequence[_Pick], digests: Mapping[str, str]) -> TableEntry:
    others = [other for other in ranked if other != pick][:_RUNNER_UPS]
    runner_ups = tuple(Measurement(other.variant, other.tile, other.time_us, digests[other.variant]) for other in others)
    return TableEntry(
        problem_key(problem), pick.variant, pick.tile, digests[pick.variant], pick.time_us, runner_ups=runner_ups, source="modelled"
    )


# The problems

_LAYERS: Final = ((4096, 4096), (14336, 4096), (4096, 14336), (6144, 4096))  # (N, K) of an 8B model's projections


def _of(layout: str, *sizes: tuple[int, int, int], batch: int = 1, dtype: str = "bf16", precision: str = "") -> list[GemmProblem]:
    return [GemmProblem.of(m, n, k, dtype, layout, batch=batch, precision=precision) for m, n, k in sizes]


def _cubes(*sides: int) -> list[tuple[int, int, int]]:
    return [(side, side, side) for side in sides]


def _squares() -> list[GemmProblem]:
    both = [problem for layout in ("nn", "nt") for problem in _of(layout, *_cubes(256, 512, 1024, 2048, 4096, 8192))]
    return [*both, *_of("tn", *_cubes(1024, 2048, 4096, 8192)), *_of("tt", *_cubes(1024, 4096))]


def _layers() -> list[GemmProblem]:
    """Prefill, decode and single rows of linear layers; (N, K) weights are read as nt, as nn in a backward pass."""
    found = [problem for n, k in _LAYERS for problem in _of("nt", *((m, n, k) for m in (512, 2048, 8192)))]
    found += [problem for n, k in _LAYERS for problem in _of("nt", *((m, n, k) for m in (16, 32, 64, 128)))]
    found += [problem for n, k in _LAYERS[:3] for problem in _of("nt", *((m, n, k) for m in (1, 2, 4, 8)))]
    found += _of(
        "nn", (2048, 4096, 4096), (2048, 4096, 14336), (2048, 14336, 4096), (16, 4096, 4096), (64, 4096, 4096), (1, 4096, 4096)
    )
    return found + _of("nt", (2048, 128256, 4096), (16, 128256, 4096))  # the output layer


def _long_k() -> list[GemmProblem]:
    """Few tiles and a long K, as of a weight's gradient."""
    found = _of("nt", (128, 128, 8192), (256, 256, 8192), (256, 256, 16384), (512, 512, 8192), (512, 512, 16384))
    return found + _of("tn", (256, 256, 16384), (512, 512, 8192)) + _of("nn", (256, 256, 16384))


def _ragged() -> list[GemmProblem]:
    return [
        *_of("nt", (1023, 1023, 1023), (4095, 4095, 4095), (2048, 50257, 768), (16, 4096, 4095)),
        *_of("nn", (1023, 1023, 1023), (4095, 4095, 4095), (2048, 768, 50257)),
    ]


def _batched() -> list[GemmProblem]:
    """Scores and values of attention, and batches of squares."""
    scores = [
        problem for batch, side in ((64, 512), (32, 1024), (16, 2048)) for problem in _of("nt", (side, side, 128), batch=batch)
    ]
    values = [problem for batch, side in ((64, 512), (32, 1024)) for problem in _of("nn", (side, 128, side), batch=batch)]
    return [*scores, *values, *_of("nn", *_cubes(256, 1024), batch=16)]


def _with_c() -> list[GemmProblem]:
    plain = _of("nn", *_cubes(1024, 4096))
    return [
        GemmProblem.of(p.m, p.n, p.k, "bf16", "nn", epilogue=Epilogue(beta="1", c=Operand.dense("bf16", p.m, p.n))) for p in plain
    ]


def _fp32() -> list[GemmProblem]:
    ieee = _of("nn", *_cubes(512, 1024, 2048, 4096), dtype="fp32", precision="ieee")
    ieee += _of("nt", *_cubes(1024, 4096), (16, 4096, 4096), (1, 4096, 4096), dtype="fp32", precision="ieee")
    tf32 = _of("nn", *_cubes(1024, 4096), dtype="fp32", precision="tf32")
    return ieee + tf32 + _of("nt", *_cubes(1024, 2048, 4096), (2048, 4096, 4096), dtype="fp32", precision="tf32")


__all__ = ["BORROWERS", "DEVICES", "Binaries", "Refused", "generate_table", "kind", "problems"]
