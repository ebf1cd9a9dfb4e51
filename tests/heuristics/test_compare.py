from dataclasses import replace

import pytest

from heuristics.compare import diff, merge, verify
from heuristics.resources import ResourceTable
from kernel_zoo.spec import GemmProblem, Refusal
from tests.heuristics.fakes import (
    A100_ENVIRONMENT,
    H200_ENVIRONMENT,
    LARGE,
    NET,
    PROBLEM,
    SMALL,
    SPLIT_K,
    TILED,
    ZOO,
    entry,
    runner_up,
    table,
    variant,
)

OTHER = GemmProblem.of(96, 64, 64, "bf16", "nt")


@pytest.mark.parametrize(
    ("old", "new", "winner"),
    [
        ({"date": "2026-01-01"}, {"date": "2026-02-01"}, "new"),
        ({"date": "2026-02-01"}, {"date": "2026-01-01"}, "old"),
        ({}, {}, "new"),
        ({"source": "measured"}, {"source": "modelled", "date": "2026-02-01"}, "old"),
        ({"source": "hand"}, {"source": "measured", "date": "2026-02-01"}, "old"),
        ({"source": "modelled", "date": "2026-02-01"}, {"source": "measured"}, "new"),
    ],
)
def test_which_of_two_rows_survives_a_merge(old, new, winner):
    merged = merge(table(entry(tile=SMALL, **old)), table(entry(tile=LARGE, **new)))
    assert [row.tile for row in merged.entries] == [LARGE if winner == "new" else SMALL]


def test_a_merge_is_the_union_under_the_first_name():
    merged = merge(table(entry(), name="first"), table(entry(OTHER), name="second"))
    assert {row.key.m for row in merged.entries} == {1024, 96}
    assert merged.name == "first"


def test_rows_keep_the_triton_version_they_were_measured_on():
    newer = replace(H200_ENVIRONMENT, triton="3.7.1")
    merged = merge(table(entry()), table(entry(OTHER), environment=newer))
    assert merged.environment.triton == "3.7.1"
    assert {row.key.m: row.triton for row in merged.entries} == {1024: "3.6.0", 96: ""}
    again = merge(merged, table(environment=H200_ENVIRONMENT))
    assert {row.key.m: row.triton for row in again.entries} == {1024: "", 96: "3.7.1"}


def test_a_merge_keeps_what_only_one_of_the_headers_says():
    first = table(entry(), description="the first", protocol={"rounds": 5}, model={"tiled": {"compute": 0.7}})
    merged = merge(first, table(entry(OTHER), model={"tma": {"compute": 0.9}}))
    assert (merged.description, merged.protocol) == ("the first", {"rounds": 5})
    assert merged.model == {"tiled": {"compute": 0.7}, "tma": {"compute": 0.9}}


def test_two_devices_do_not_merge():
    with pytest.raises(ValueError, match=r"mine holds rows of NVIDIA H200 \(132 SMs\).*A100-SXM4-80GB \(108 SMs\)"):
        merge(table(), table(environment=A100_ENVIRONMENT))


def test_diff_names_what_changed():
    changes = diff(table(entry(), entry(OTHER)), table(entry(tile=LARGE), entry(replace(OTHER, m=97))))
    assert [str(change).split(":")[0] for change in changes] == [
        "removed 96 x 64 x 64 16bit nt",
        "changed 1024 x 1024 x 1024 16bit nt",
        "added 97 x 64 x 64 16bit nt",
    ]
    assert str(changes[1]).endswith("tiled 64x64x64 g8 w4 s3 10 us -> tiled 128x128x64 g8 w8 s3 10 us (1.000 x)")
    assert changes[1].as_dict()["after"] == "tiled 128x128x64 g8 w8 s3 10 us"


def test_a_new_kernel_digest_is_a_difference_and_equal_tables_have_none():
    assert diff(table(entry()), table(entry())) == []
    assert len(diff(table(entry()), table(entry(digest="other")))) == 1


def test_verify_finds_nothing_in_a_good_table():
    assert verify(table(entry(runner_ups=(runner_up(),))), ZOO) == []


def test_verify_names_every_fault():
    picky = variant("tiled", refuses_tile=lambda problem, tile: tile == LARGE)
    faulty = table(
        entry(digest="0ld"),
        entry(OTHER, "me.gone"),
        entry(replace(OTHER, m=97), runner_ups=(runner_up("tiled", LARGE),)),
        entry(replace(OTHER, m=98), "aten", None),
        origin="packaged",
    )
    found = verify(faulty, (picky, SPLIT_K, NET))
    assert [(finding.kind, finding.key.m) for finding in found] == [("stale", 1024), ("unknown", 96), ("illegal", 97), ("net", 98)]
    assert str(found[0]) == "stale: 1024 x 1024 x 1024 16bit nt: measured on kernel 0ld of tiled, which is now d-tiled"
    assert "tiled 128x128x64 g8 w8 s3: tiled was given" in str(found[2])
    assert found[3].as_dict()["message"].endswith("packaged tables name Triton variants only")


def test_a_users_table_may_name_the_net():
    assert verify(table(entry(PROBLEM, "aten", None)), ZOO) == []


def test_verify_asks_legality_of_the_problem_in_the_row():
    wants_even = variant("tiled", refuses=lambda problem: problem.m % 2)
    odd = replace(OTHER, m=97)
    assert [finding.key.m for finding in verify(table(entry(OTHER), entry(odd)), (wants_even,))] == [97]
    assert TILED.refusal(odd, None, SMALL) is None


def test_verify_asks_what_binaries_need_under_every_triton_that_is_given():
    class Spilling(ResourceTable):
        def for_problem(self, problem):
            return self

        def refusal(self, arch, variant, tile):
            return Refusal("spills", f"it spills under {self.triton}", "no spills")

    sound = table(entry())
    assert verify(sound, ZOO, resources=[ResourceTable(90, "3.6.0")]) == []
    (finding,) = verify(sound, ZOO, resources=[ResourceTable(90, "3.6.0"), Spilling(90, "3.7.1")])
    assert finding.kind == "illegal"
    assert "it spills under 3.7.1" in finding.message


def test_verify_of_an_unlisted_device_needs_one_named():
    unlisted = table(environment=replace(H200_ENVIRONMENT, gpu_name="NVIDIA X1"))
    with pytest.raises(ValueError, match=r"NVIDIA X1, whose limits are not listed.*listed: h200"):
        verify(unlisted, ZOO)
