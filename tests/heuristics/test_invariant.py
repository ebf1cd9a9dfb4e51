"""batch_invariant: what serves a row depends on n, k, dtype and device alone, whatever M, batch, alignment and tables say."""

from dataclasses import replace

import pytest

from heuristics.archs import ARCHS
from heuristics.choose import ForcedVariantError, NoVariantError, Policy, choose, invariant_tile
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from tests.heuristics.fakes import H200, LARGE, entry, table

ROWS = (1, 2, 3, 15, 16, 17, 33, 64, 65, 128, 257, 1024, 5000, 70000)
TILED = next(variant for variant in VARIANTS if variant.name == "tiled")
PRECISIONS = [("bf16", ""), ("fp16", ""), ("fp32", "ieee"), ("fp32", "tf32"), ("fp32", "bf16x6")]


def of(m, n=2048, k=2048, dtype="bf16", **more):
    return GemmProblem.of(m, n, k, dtype, "nt", batch_invariant=True, **more)


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("n", [1, 5, 33, 64, 512, 4096, 128256])
def test_one_variant_tile_and_reduction_for_every_m_and_batch(arch, dtype, precision, n):
    problems = [of(m, n, 1000, dtype, precision=precision) for m in ROWS] + [of(17, n, 1000, dtype, precision=precision, batch=6)]
    picks = [choose(problem, arch, VARIANTS) for problem in problems]
    assert {(pick.variant, pick.tile) for pick in picks} == {("tiled", picks[0].tile)}
    assert len({TILED.reduction(problem, pick.tile) for problem, pick in zip(problems, picks, strict=True)}) == 1


def test_tables_alignment_layout_and_epilogue_have_no_say():
    plain = of(128)
    fixed = choose(plain, H200, VARIANTS).tile
    rows = table(*(entry(replace(of(m), batch_invariant=False), "tiled", LARGE, digest="") for m in ROWS))
    assert fixed != LARGE
    odd = Operand("bf16", 128, 2048, (0, 2049, 1), align=2)
    c = Operand.dense("bf16", 128, 2048)
    others = [
        replace(plain, a=odd),
        replace(plain, a=Operand.dense("bf16", 128, 2048, transposed=True)),
        replace(plain, epilogue=Epilogue(beta="1", c=c, activation="gelu")),
        replace(plain, deterministic=True),
    ]
    for problem in (plain, *others):
        picked = choose(problem, H200, VARIANTS, (rows,))
        assert (picked.variant, picked.tile, picked.rung) == ("tiled", fixed, "default")
    assert choose(replace(plain, batch_invariant=False), H200, VARIANTS, (rows,)).tile == LARGE


def test_the_fastest_is_not_preferred_over_the_promise():
    assert choose(of(128), H200, VARIANTS, policy=Policy(prefer="fastest")).variant == "tiled"


def test_forcing_anything_else_is_an_error():
    with pytest.raises(ForcedVariantError, match="split_k is forced; needs tiled with its fixed tile"):
        choose(of(128), H200, VARIANTS, policy=Policy(variant="split_k"))
    with pytest.raises(ForcedVariantError, match="tiled is forced"):
        choose(of(128), H200, VARIANTS, policy=Policy(variant="tiled", tile=LARGE))
    forced = choose(of(128), H200, VARIANTS, policy=Policy(variant="tiled"))
    assert (forced.tile, forced.rung) == (invariant_tile(of(128), H200), "forced")


def test_what_cannot_be_promised_is_refused():
    with pytest.raises(NoVariantError, match="tiled: inputs are fp64"):
        choose(of(128, dtype="fp64"), H200, VARIANTS)


def test_integers_are_exact_in_any_order():
    assert choose(of(128, dtype="int8"), H200, VARIANTS).variant == "aten"


@pytest.mark.parametrize("k", [0, 1, 7])
def test_short_sums_are_served(k):
    assert choose(of(5, 9, k), H200, VARIANTS).variant == "tiled"
