"""The census: no candidate is without a key, forms are compiled only as far as they must be, and nothing is recorded of a kill."""

from __future__ import annotations

import random
from itertools import product

import pytest

from heuristics.archs import ARCHS
from kernel_zoo import catalog, census
from kernel_zoo.compile_worker import Answer
from kernel_zoo.kernels import ping_pong, warp_specialised
from kernel_zoo.spec import FORMS, GemmProblem, Resources, TileConfig, binary_class, tails, tile_key

H200 = ARCHS["h200"]
CLEAN, SPILLED = Resources(1024, 64, 0, ("mma",)), Resources(1024, 255, 9, ("mma",))
BIG = Resources(H200.smem_per_block + 1, 64, 0, ())


@pytest.fixture(scope="module", params=["h200", "a100", "rtx4090", "rtx5090"])
def listing(request):
    arch = ARCHS[request.param]
    return arch, census.items(catalog.VARIANTS, arch)


def problems(seed, count):
    """Products of every kind the zoo serves, most of them crooked."""
    chance = random.Random(seed)
    for _ in range(count):
        m, n, k = (chance.choice([1, 2, 3, 4, 7, 16, 33, 48, 64, 65, 200, 512, 1000, 4096, 8191]) for _ in range(3))
        dtype = chance.choice(["bf16", "fp16", "fp32", "tf32"])
        precision = {"fp32": "ieee", "tf32": "tf32"}.get(dtype, "")
        layout = chance.choice(census.LAYOUTS)
        yield GemmProblem.of(m, n, k, "fp32" if precision else dtype, layout, batch=chance.choice([1, 1, 5]), precision=precision)


def test_no_candidate_is_without_a_key(listing):
    arch, items = listing
    keys, seen = {item.key for item in items}, 0
    for problem in problems(7, 120):
        for variant in catalog.VARIANTS:
            if variant.recipe is None or variant.supports(problem, arch) is not None:
                continue
            for tile in variant.space(problem, arch):
                if variant.fits(problem, tile, arch) is None:
                    key = f"{variant.name} {binary_class(problem)} {tile_key(problem, tile)}"
                    assert key in keys, f"{problem.describe()}: {tile.describe()}"
                    seen += 1
    assert seen > 1000


@pytest.mark.parametrize("family", [warp_specialised, ping_pong], ids=lambda module: module.VARIANT.name)
def test_transposed_results_are_among_them_for_every_tile_that_is_no_square(family):
    keys = {item.key for item in census.items([family.VARIANT], H200)}
    for (m, n, k), made in family.FAMILY.items():
        for stages, layout in product(made.stages, census.LAYOUTS if m != n else ()):
            name = f"{family.VARIANT.name} 16bit {layout} 16 {m}x{n}x{k} w{4 * made.consumers} s{stages}"
            assert {name, f"{name} swap1"} <= keys


def test_every_item_stands_for_its_key(listing):
    arch, items = listing
    assert [item.key for item in items] == sorted({item.key for item in items})
    for item in items:
        assert item.variant.refusal(item.problem, arch, item.tile) is None
        for form in FORMS:
            problem = census.in_form(item.problem, form, item.tile)
            assert item.key == f"{item.variant.name} {binary_class(problem)} {tile_key(problem, item.tile)}"


def test_the_forms_are_what_they_say(listing):
    _, items = listing
    item = next(item for item in items if item.variant.name == "tiled")
    heavy, plain, even = (census.in_form(item.problem, form) for form in FORMS)
    assert heavy.epilogue.c is not None
    assert heavy.epilogue.bias is not None
    assert heavy.epilogue.activation == "gelu"
    assert plain.epilogue.plain
    assert all(tails(plain, item.tile))
    for item in items:
        even = census.in_form(item.problem, "even", item.tile)
        assert even.epilogue.plain
        assert not any(tails(even, item.tile)), item.key
        assert even.a.line_align == item.problem.a.line_align
        assert even.b.line_align == item.problem.b.line_align


def test_the_number_of_keys_stays_one_that_can_be_compiled(listing):
    assert 900 < len(listing[1]) < 2600


@pytest.mark.parametrize(
    ("known", "due"),
    [
        ({}, "heavy"),
        ({"heavy": CLEAN}, None),
        ({"heavy": SPILLED}, "plain"),
        ({"heavy": BIG}, "plain"),
        ({"heavy": "PTXASError: no"}, "plain"),
        ({"heavy": SPILLED, "plain": CLEAN}, None),
        ({"heavy": SPILLED, "plain": SPILLED}, "even"),
        ({"heavy": SPILLED, "plain": SPILLED, "even": SPILLED}, None),
    ],
)
def test_a_lighter_form_is_due_only_where_the_heavier_one_is_at_fault(known, due):
    assert census.next_form(known, H200) == due


@pytest.fixture
def compiler(monkeypatch):
    """What the compiler says, by whether the epilogue reads C and whether the kernel masks."""
    says = {"asked": [], "heavy": Answer("ok", resources=CLEAN), "plain": Answer("ok", resources=CLEAN)}

    def compile_here(spec, cc):
        constants = dict(zip(spec.kernel.arg_names, [None] * len(spec.kernel.arg_names), strict=True))
        constants |= {spec.kernel.arg_names[place]: value for place, value in spec.constants}
        form = "heavy" if constants.get("HAS_C") else "plain"
        says["asked"].append((form, cc))
        return says[form]

    monkeypatch.setattr(census, "compile_here", compile_here)
    return says


def some(count=2):
    return census.items([catalog.get("tiled")], H200)[:count]


def test_clean_binaries_are_compiled_once(compiler):
    found = list(census.measure(some(), H200, {}, workers=0))
    assert [(form, needs) for _, form, needs in found] == [("heavy", CLEAN)] * 2
    assert compiler["asked"] == [("heavy", 90)] * 2


def test_what_is_known_is_not_compiled_again(compiler):
    first, second = some()
    known = {first.key: {"heavy": CLEAN}, second.key: {"heavy": SPILLED}}
    assert list(census.measure([first, second], H200, known, workers=0)) == [(second.key, "plain", CLEAN)]


def test_a_compiler_that_refuses_is_recorded_without_this_machines_paths(compiler):
    compiler["heavy"] = Answer("failed", "PTXASError: /opt/triton/bin/ptxas died on /var/scratch/a.ptx")
    compiler["plain"] = Answer("ok", resources=SPILLED)
    (item,) = some(1)
    assert list(census.measure([item], H200, {}, workers=0)) == [
        (item.key, "heavy", "PTXASError: ptxas died on a.ptx"),
        (item.key, "plain", SPILLED),
        (item.key, "even", SPILLED),
    ]


def test_a_form_that_is_the_same_binary_is_compiled_once(compiler, monkeypatch):
    """What does not depend on sizes has no even form of its own."""
    real = census.in_form
    monkeypatch.setattr(
        census, "in_form", lambda problem, form, tile=None: real(problem, "plain" if form == "even" else form, tile)
    )
    compiler["heavy"] = compiler["plain"] = Answer("ok", resources=SPILLED)
    (item,) = some(1)
    assert [form for _, form, _ in census.measure([item], H200, {}, workers=0)] == ["heavy", "plain", "even"]
    assert [form for form, _ in compiler["asked"]] == ["heavy", "plain"]


@pytest.mark.parametrize("sides", [(256, 192, 64), (256, 160, 64), (192, 128, 64), (64, 96, 48)])
def test_the_even_form_suits_tiles_that_are_no_powers_of_two(sides):
    item = next(item for item in census.items([catalog.get("tma")], H200) if " nt 16 128x256x64 " in item.key)
    tile = TileConfig(*sides, num_warps=8)
    even = census.in_form(item.problem, "even", tile)
    assert not any(tails(even, tile))
    assert binary_class(even) == binary_class(item.problem)
    assert all(tails(census.in_form(item.problem, "plain", tile), tile)[:2])


@pytest.mark.parametrize(("code", "recorded"), [(-2, False), (-9, False), (-15, False), (-6, True), (1, True)])
def test_a_process_that_was_killed_says_nothing_of_the_kernel(compiler, code, recorded):
    compiler["heavy"] = Answer("failed", f"the compiler process ended (exit code {code})")
    (item,) = some(1)
    found = [form for _, form, _ in census.measure([item], H200, {}, workers=0)]
    assert found == (["heavy", "plain"] if recorded else [])


def test_a_missing_disassembler_is_an_error_not_a_record(compiler):
    compiler["heavy"] = Answer("ok")
    with pytest.raises(RuntimeError, match="cuobjdump"):
        list(census.measure(some(1), H200, {}, workers=0))


def test_launches_are_taken_together():
    answers = [
        Answer("ok", resources=Resources(10, 200, 1, ("tma", "mma"))),
        Answer("ok", resources=Resources(20, 90, 2, ("ffma",))),
    ]
    assert census._together(answers) == Resources(20, 200, 3, ("ffma", "mma", "tma"))
