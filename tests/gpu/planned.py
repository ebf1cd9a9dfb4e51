"""What the GPU suite runs, as data, so that it can be generated, checked and compiled where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from heuristics import store
from heuristics.suites import cases as suite_cases
from heuristics.table import problem_of
from kernel_zoo import catalog
from kernel_zoo.kernels import ping_pong, warp_specialised
from kernel_zoo.spec import Arch, Epilogue, GemmProblem, Operand, TileConfig, Variant
from minblas.buffers import scalars
from tests.kernel_zoo.cases import DEPTHS, PARAMETERS, SIZES, Case, make_case, spaces, spread
from tests.kernel_zoo.pairwise import cover

CASES_PER_VARIANT = 64
TILES_PER_VARIANT = 24
LAYOUTS = ("nn", "nt", "tn", "tt")
LARGEST_FLOPS = 2**38  # a float64 reference of that size takes milliseconds on a data-centre GPU

#: 2500 rows are several bands of tiles, which a walk can go there and back.
_SIZES = {**SIZES, "333": lambda t: 333, "1000": lambda t: 1000, "2500": lambda t: 2500}
_DEPTHS = {**DEPTHS, "1000": lambda t: 1000, "2048": lambda t: 2048}
_PARAMETERS = {
    **PARAMETERS,
    "m": tuple(_SIZES),
    "n": tuple(size for size in _SIZES if size != "2500"),
    "k": tuple(_DEPTHS),
    "dtype": ("fp16", "bf16", "fp32", "tf32", "tf32x3", "bf16x3", "bf16x6"),
    "fill": ("normal", "integers", "special", "large"),
    "arch": ("whole", "few"),
}


def gpu_tiles(variant: Variant, arch: Arch) -> list[TileConfig]:
    """Tiles as the variant proposes them: every combination of knobs, and a spread of blocks, warps and stages."""
    proposed = sorted(spaces(variant, arch), key=lambda tile: (tile.block_m * tile.block_n * tile.block_k, tile.describe()))
    kinds = {(tile.knobs, tile.split_k > 1): tile for tile in proposed}
    step = max(1, len(proposed) // TILES_PER_VARIANT)
    return list(dict.fromkeys([*kinds.values(), *proposed[::step]]))


@lru_cache
def kernel_cases(variant: Variant, arch: Arch) -> tuple[Case, ...]:
    """Pairwise cases of a variant at real tiles, each tile at least once, then those that cover most.

    An arch with few SMs makes resident programs walk over many tiles.
    """
    archs = {"whole": arch, "few": replace(arch, sm_count=2)}
    parameters: dict[str, object] = dict(_PARAMETERS)
    if variant.recipe is not None:
        parameters["tile"] = gpu_tiles(variant, arch)
    found = cover(
        parameters,  # type: ignore[arg-type]
        lambda row: make_case(variant, row, archs, _SIZES, _DEPTHS, cap=256),
        seed=len(variant.name),
        attempts=12,
    )
    # A walk there and back turns in tall results only.
    last = sorted(found.cases, key=lambda case: case.problem.m if case.tile and case.tile.knob("serpentine") else 0)
    first_of_a_tile = {case.tile: case for case in last}
    rare = [tile for tile in parameters.get("tile", ()) if tile not in first_of_a_tile]  # type: ignore[attr-defined]
    ordered = sorted(found.cases, key=lambda case: first_of_a_tile[case.tile] is not case)
    return (*(_plain(variant, tile, arch) for tile in rare), *ordered[: CASES_PER_VARIANT - len(rare)])


def _plain(variant: Variant, tile: TileConfig, arch: Arch) -> Case:
    """The tile on the smallest problem for which the variant proposes it."""
    problems = [problem for problem in spread(variant, arch) if variant.refusal(problem, arch, tile) is None]
    return Case(variant, min(problems, key=lambda problem: problem.flops), tile, arch)


def all_kernel_cases(arch: Arch) -> list[Case]:
    """The cases of every variant."""
    return [case for variant in catalog.VARIANTS for case in kernel_cases(variant, arch)]


def counting_cases(arch: Arch) -> list[Case]:
    """The cases of every variant whose launches count programs in."""
    found = [counting_case(variant, arch) for variant in catalog.VARIANTS]
    return [case for case in found if case is not None]


def counting_case(variant: Variant, arch: Arch) -> Case | None:
    """A variant's case with the most counters, if any has some."""
    counters = {
        case: variant.plan(case.problem, case.tile, case.arch).counters
        for case in kernel_cases(variant, arch)
        if case.tile is not None and (case.problem.batch == 1 or case.problem.out.strides[0])
    }
    return max(counters, key=lambda case: counters[case]) if any(counters.values()) else None


def gluon_cases(arch: Arch) -> list[Case]:
    """The warp-specialised families beyond plain products: batches under one descriptor, transposed results."""
    found = []
    for variant, tile, depth in gluon_tiles():
        m, n = tile.block_m, tile.block_n
        turned = replace(tile, knobs=(("swap", 1),))
        shared = Operand("fp16", 256, n + 8, (0, n + 8, 1))
        apart = Operand("fp16", m, n + 8, ((m + 5) * (n + 16), n + 16, 1))  # lines of padding between results
        read, row = Operand.dense("fp16", m, n + 8, batch=7), Operand("fp16", m, n + 8, (n + 8, 0, 1))
        several = GemmProblem.of(m, n + 8, 256, "fp16", "nn", batch=7)
        cases = [(GemmProblem.of(2 * m, n + 40, 256, "bf16", layout, batch=5), tile) for layout in LAYOUTS]
        cases += [
            (GemmProblem.of(m, 2 * n, 72, "fp16", "nt", batch=300), tile),  # K ends inside a block
            (replace(several, b=shared), tile),
            (replace(several, out=apart), tile),
            (replace(several, epilogue=Epilogue("x", "x", read, row, "relu")), tile),
            (GemmProblem.of(2 * n, m + 8, 256, "bf16", "nt", batch=9), turned),
        ]
        cases += [(GemmProblem.of(9 * n + 8, 9 * m + 24, 200, "bf16", layout), turned) for layout in LAYOUTS]
        plain = GemmProblem.of(3 * n + 8, 3 * m + 8, 136, "bf16", "nt")
        sizes = (plain.m, plain.n)
        added = Epilogue("x", bias=Operand("bf16", *sizes, (0, 0, 1)), activation="silu")
        both = Epilogue("x", "x", Operand.dense("bf16", *sizes), Operand("bf16", *sizes, (0, 1, 0)))
        cases += [
            (GemmProblem.of(*sizes, 136, "bf16", "nt", out_dtype="fp32"), replace(turned, num_stages=depth)),
            (GemmProblem.of(20 * n + 8, 21 * m + 8, 328, "bf16", "nt"), turned),  # several tiles a program
            (replace(plain, epilogue=added), turned),
            (replace(plain, epilogue=both), turned),
            (replace(plain, out=Operand.of("bf16", *sizes, (0, 1, plain.m))), tile),  # the caller's own columns, as they lie
        ]
        found += [
            Case(variant, problem, one, arch, *scalars(problem))
            for problem, one in cases
            if not variant.refusal(problem, arch, one)
        ]
    return found


def gluon_tiles() -> Iterator[tuple[Variant, TileConfig, int]]:
    """The warp-specialised families' tiles with their deepest ring, and the depth that leaves room for results in fp32."""
    for variant, family in ((warp_specialised.VARIANT, warp_specialised.FAMILY), (ping_pong.VARIANT, ping_pong.FAMILY)):
        for sides, made in family.items():
            yield variant, TileConfig(*sides, num_stages=made.stages[0], num_warps=4 * made.consumers), made.stages[-1]


def chain_cases(arch: Arch) -> list[Case]:
    """A square product by every tile of the warp-specialised families, started early and not."""
    problem = GemmProblem.of(512, 512, 512, "bf16", "nn")
    starts = [(("early", early),) for early in (0, 1)]
    return [Case(variant, problem, replace(tile, knobs=knobs), arch) for variant, tile, _ in gluon_tiles() for knobs in starts]


def shape_problems() -> list[GemmProblem]:
    """Shapes for whole calls: odd, thin, deep, batched, and a spread over the suites' shape classes, types and layouts."""
    odd = [
        GemmProblem.of(4095, 4093, 4097, "bf16"),
        GemmProblem.of(4095, 4093, 4097, "fp16", "tt"),
        GemmProblem.of(2047, 2049, 2051, "fp32"),
        GemmProblem.of(1023, 1025, 1027, "fp32", "tn", precision="tf32"),
        *(GemmProblem.of(1, n, 4096, "bf16", layout) for n in (1, 7, 4096, 151936) for layout in ("nn", "nt")),
        *(GemmProblem.of(m, 1, 4099, "fp16") for m in (1, 5, 8192)),
        *(GemmProblem.of(1, 1, k, "fp32") for k in (1, 1_000_003)),
        GemmProblem.of(64, 64, 262144, "bf16", "nt"),
        *(GemmProblem.of(16, 16, 8, "fp16", batch=batch) for batch in (65535, 65536, 131073)),
        *(GemmProblem.of(m, n, k, "bf16") for m, n, k in ((3, 0, 5), (0, 3, 5), (3, 5, 0))),
    ]
    return list(dict.fromkeys([*odd, *suite_problems()]))


def suite_problems(each: int = 3) -> list[GemmProblem]:
    """A few problems of every (shape class, type, layout) of the suites, the largest within reach and the smallest among them."""
    groups: dict[tuple[object, ...], list[GemmProblem]] = {}
    for case in suite_cases("all"):
        problem = case.problem
        if problem.flops <= LARGEST_FLOPS and problem.dtype in ("fp16", "bf16", "fp32"):
            groups.setdefault((problem.shape_class, problem.dtype, problem.precision, problem.layout), []).append(problem)
    found = []
    for problems in groups.values():
        problems.sort(key=lambda problem: problem.flops)
        found += [problems[i * (len(problems) - 1) // max(each - 1, 1)] for i in range(min(each, len(problems)))]
    return list(dict.fromkeys(found))


def table_cases(arch: Arch) -> list[Case]:
    """For every binary that a row of a packaged table of this device runs, the smallest row that runs it."""
    smallest: dict[tuple[object, ...], Case] = {}
    for case in _rows(arch):
        binaries = tuple(case.jobs())
        known = smallest.get(binaries)
        if known is None or case.problem.flops < known.problem.flops:
            smallest[binaries] = case
    return list(smallest.values())


def _rows(arch: Arch) -> Iterator[Case]:
    for table in store.packaged_tables(arch):
        if table.kinship(arch) != "exact":
            continue
        for entry in table.entries:
            variant = catalog.get(entry.variant)
            if variant.recipe is None or entry.tile is None:
                continue
            problem = _within_reach(problem_of(entry.key))
            yield Case(variant, problem, entry.tile, arch, 1.0, 1.0 if problem.epilogue.c is not None else 0.0)


def _within_reach(problem: GemmProblem) -> GemmProblem:
    """A row on a smaller batch where a float64 reference would not fit; a binary knows of its batch only what divides it."""
    if problem.flops <= LARGEST_FLOPS or problem.batch <= 16:
        return problem
    return replace(problem, batch=16 + problem.batch % 16)
