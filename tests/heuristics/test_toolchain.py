"""Rows of another Triton: exact where its compile gate has seen their kernels, hints where not, said once."""

import warnings
from dataclasses import replace

import pytest

from heuristics import choose, toolchain
from heuristics.notices import TableWarning
from heuristics.resources import ResourceTable
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import H100_ENVIRONMENT, H200, H200_ENVIRONMENT, PROBLEM, SPLIT, ZOO, entry, table

OTHER = GemmProblem.of(96, 64, 64, "bf16", "nt")


def known(*digests):
    """Resource data of Triton 3.7.1 that has kernels of these digests."""
    data = ResourceTable(90, "3.7.1", {digest: digest for digest in digests})
    return lambda cc, triton: data if (cc, triton) == (90, "3.7.1") else None


def under(triton, *tables, digests=(), gated=()):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TableWarning)
        found = toolchain.under(triton, tables, H200, gated, known(*digests))
    return found, [str(warning.message) for warning in said]


@pytest.mark.parametrize("triton", ["3.6.0", "3.6.0+gitabc", ""])
def test_a_row_of_the_running_version_stands_and_so_does_any_where_none_runs(triton):
    mine = table(entry())
    assert under(triton, mine) == ((mine,), [])


def test_a_row_of_another_version_stands_where_its_kernel_passed_that_versions_gate():
    mine = table(entry())
    assert under("3.7.1", mine, digests=("d-tiled",)) == ((mine,), [])
    assert choose.choose(PROBLEM, H200, ZOO, under("3.7.1", mine, digests=("d-tiled",))[0]).rung == "exact"


def test_any_other_row_is_a_hint_that_the_model_weighs_said_once():
    mine = table(entry(), entry(OTHER, "split_k", SPLIT), model={"tiled": {"compute": 0.7}})
    found, said = under("3.7.1", mine, digests=("d-split_k",))
    assert [[row.variant for row in part.entries] for part in found] == [["split_k"], ["tiled"]]
    assert [part.hint for part in found] == ["", "Triton 3.6.0"]
    assert found[0].model == mine.model
    assert choose.choose(PROBLEM, H200, ZOO, found).rung == "borrowed"
    assert choose.choose(OTHER, H200, ZOO, found).rung == "exact"
    near = choose.choose(replace(PROBLEM, m=1100), H200, ZOO, found)
    assert (near.rung, near.variant) == ("nearest", "tiled")
    (message,) = said
    assert message.startswith("table mine: 1 of 2 rows are of Triton 3.6.0, and Triton 3.7.1's compile gate has not")
    assert message.endswith("tune again, or run Triton 3.6.0")
    assert under("3.7.1", mine, digests=("d-split_k",))[1] == []


def test_an_unknown_version_makes_every_other_row_a_hint():
    found, said = under("4.0.0", table(entry(), entry(OTHER, triton="3.5.1")), digests=("d-tiled",))
    assert [(part.hint, len(part.entries)) for part in found] == [("", 0), ("Triton 3.6.0", 1), ("Triton 3.5.1", 1)]
    assert len(said) == 2


def test_a_rows_own_version_counts_for_more_than_its_tables():
    found, said = under("3.7.1", table(entry(triton="3.7.1"), entry(OTHER)))
    assert [len(part.entries) for part in found] == [1, 1]
    assert len(said) == 1


def test_packaged_rows_stand_on_the_versions_they_are_gated_on():
    packaged = table(entry(), origin="packaged")
    assert under("3.7.1", packaged, gated=("3.7.1",)) == ((packaged,), [])
    assert under("3.7.2", packaged, gated=("3.7.1",))[0][1].hint == "Triton 3.6.0"
    assert under("3.7.1", table(entry()), gated=("3.7.1",))[0][1].hint == "Triton 3.6.0"


def test_hand_written_rows_opaque_ones_and_those_without_a_version_stand():
    rows = (entry(source="hand"), entry(OTHER, "aten", None, digest=""))
    mine = table(*rows)
    assert under("4.0.0", mine) == ((mine,), [])
    undated = table(entry(), environment=replace(H200_ENVIRONMENT, triton=""))
    assert under("4.0.0", undated) == ((undated,), [])


def test_rows_of_another_device_are_hints_already():
    other = table(entry(), environment=H100_ENVIRONMENT)
    assert under("4.0.0", other) == ((other,), [])


def test_what_the_model_said_of_another_device_or_compiler_is_no_hint():
    guess, seen = entry(source="modelled"), entry(OTHER)
    other = table(guess, seen, environment=H100_ENVIRONMENT)
    found, said = under("3.6.0", other, table(guess, environment=H100_ENVIRONMENT))
    assert [part.entries for part in found] == [(seen,)]
    assert said == []
    found, said = under("4.0.0", table(guess, seen))
    assert [(part.hint, part.entries) for part in found] == [("", ()), ("Triton 3.6.0", (seen,))]
    assert len(said) == 1
    assert under("3.6.0", table(guess))[0][0].entries == (guess,)
    assert under("", other)[0][0].entries == (seen,)
