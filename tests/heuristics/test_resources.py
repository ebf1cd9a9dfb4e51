"""Resource data: when a record refuses, when it has nothing to say, and files that say what they hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heuristics import resources
from heuristics.archs import ARCHS
from heuristics.notices import TableWarning
from heuristics.resources import Record, ResourceTable
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, Resources
from tests.heuristics.fakes import H200, LARGE, SMALL, variant

TILED = variant("tiled")
KEY = "tiled 16bit nt 16 128x128x64 w8 s3"
CLEAN, LIGHT = Resources(1024, 100, 0, ("wgmma",)), Resources(512, 60, 0, ("wgmma",))
SPILLED = Resources(1024, 255, 12, ("wgmma",))
BIG = Resources(232449, 100, 0, ())
UNBUILT = "PTXASError: no"
SPILLS = "the kernel spills registers (12 accesses to local memory); needs no spills"

EVEN = GemmProblem.of(1024, 1024, 1024, "bf16", "nt")
UNEVEN = GemmProblem.of(1000, 1000, 1000, "bf16", "nt")
FULL = replace(UNEVEN, epilogue=Epilogue(alpha="x", beta="x", c=UNEVEN.out, bias=UNEVEN.out, activation="gelu"))
ROW_BIAS = replace(FULL, epilogue=replace(FULL.epilogue, bias=Operand("bf16", 1000, 1000, (0, 0, 1))))
PARTLY = GemmProblem.of(1000, 1024, 1000, "bf16", "nt")


def table(*forms, digest="d-tiled", key=KEY):
    return ResourceTable(90, "3.7.1", {"tiled": digest}, {key: Record(*forms)})


def verdict(problem, *forms, tile=LARGE, arch=H200, **more):
    refusal = table(*forms, **more).refusal(problem, arch, TILED, tile)
    return refusal.sentence if refusal else None


def test_a_table_prints_as_one_line():
    assert repr(table(CLEAN)) == "ResourceTable(sm_90, triton 3.7.1: 1 records)"


@pytest.mark.parametrize("problem", [EVEN, UNEVEN, PARTLY, FULL, ROW_BIAS])
def test_a_clean_heavy_form_lets_every_epilogue_through(problem):
    assert verdict(problem, CLEAN) is None


@pytest.mark.parametrize(
    ("forms", "even", "uneven", "full"),
    [
        ((SPILLED,), None, None, SPILLS),  # the lighter forms are not compiled yet: the variant's own rules decide
        ((SPILLED, LIGHT), None, None, SPILLS),
        ((SPILLED, SPILLED), None, SPILLS, SPILLS),
        ((SPILLED, SPILLED, LIGHT), None, SPILLS, SPILLS),
        ((SPILLED, SPILLED, SPILLED), SPILLS, SPILLS, SPILLS),
        ((BIG, SPILLED, LIGHT), None, SPILLS, "the kernel takes 232,449 bytes of shared memory; needs at most 232,448 on h200"),
        ((UNBUILT, UNBUILT, UNBUILT),) + ("the kernel does not compile for sm_90 (PTXASError: no); needs a binary",) * 3,
    ],
)
def test_a_faulty_form_refuses_what_is_as_heavy(forms, even, uneven, full):
    assert verdict(EVEN, *forms) == even
    assert verdict(UNEVEN, *forms) == uneven
    assert verdict(FULL, *forms) == full
    assert verdict(ROW_BIAS, *forms) == uneven  # not the heaviest epilogue
    assert verdict(PARTLY, *forms) == even  # masked along some sides only


def test_shared_memory_is_the_devices_own():
    needs = Resources(150_000, 100, 0, ())
    assert verdict(EVEN, needs, needs, needs) is None
    refused = table(needs, needs, needs).refusal(EVEN, replace(ARCHS["a100"], smem_per_block=149_999), TILED, LARGE)
    assert refused is not None
    assert refused.rule == "shared memory"


def test_what_was_not_compiled_is_not_refused():
    bad = (SPILLED, SPILLED, SPILLED)
    assert verdict(EVEN, *bad) is not None
    assert verdict(EVEN, *bad, digest="another kernel") is None
    assert verdict(EVEN, *bad, tile=SMALL) is None
    assert verdict(GemmProblem.of(1024, 1024, 1024, "bf16", "nn"), *bad) is None
    assert verdict(GemmProblem.of(1024, 1024, 1024, "fp32", "nt"), *bad) is None
    assert table(*bad).refusal(EVEN, H200, variant("me.tutorial"), LARGE) is None


@pytest.mark.parametrize(
    ("at", "refused"),
    [(None, [(2, 2)]), ((16, 2), [(2, 2), (16, 2)]), ((4, 4), [(2, 2), (4, 4)]), ((8, 8), [(2, 2), (4, 4), (4, 8)])],
)
def test_a_fault_says_nothing_of_lines_that_are_aligned_better(at, refused):
    found = table(SPILLED, SPILLED, SPILLED, key="tiled 16bit nn any 128x128x64 w8 s3")
    found = replace(found, records={key: replace(record, at=at) for key, record in found.records.items()})
    for aligns in ((2, 2), (16, 2), (2, 16), (4, 4), (4, 8)):
        a, b = (Operand("bf16", 1024, 1024, (0, 1024 + align // 2, 1)) for align in aligns)
        out = Operand("bf16", 1024, 1024, (0, 1024 + min(aligns) // 2, 1))
        problem = replace(EVEN, a=a, b=b, out=out)
        assert (found.refusal(problem, H200, TILED, LARGE) is not None) == (aligns in refused), aligns
        assert found.refusal(replace(problem, out=EVEN.out), H200, TILED, LARGE) is None


def test_a_tile_that_needs_an_aligned_out_is_refused_with_one():
    found = table(SPILLED, SPILLED, SPILLED, key="tiled 16bit nn any 128x128x64 w8 s3")
    found = replace(found, records={key: replace(record, at=(2, 2, 16)) for key, record in found.records.items()})
    short = Operand("bf16", 1024, 1024, (0, 1025, 1))
    problem = replace(EVEN, a=short, b=short, out=EVEN.out)
    assert found.refusal(problem, H200, TILED, LARGE) is not None
    assert found.refusal(replace(problem, a=EVEN.b.T), H200, TILED, LARGE) is None
    assert resources.loads(resources.dumps(found)) == found


def test_group_and_split_do_not_change_a_binary():
    bad = (SPILLED, SPILLED, SPILLED)
    assert verdict(EVEN, *bad, tile=replace(LARGE, group_m=16, split_k=4)) == SPILLS


def test_the_nearest_form_is_found():
    found = table(SPILLED, LIGHT)
    assert found.find(EVEN, TILED, LARGE) == LIGHT
    assert found.find(ROW_BIAS, TILED, LARGE) == SPILLED
    assert table(CLEAN).find(EVEN, TILED, LARGE) == CLEAN
    assert table(UNBUILT, LIGHT).find(FULL, TILED, LARGE) == LIGHT
    assert table(CLEAN, digest="another kernel").find(EVEN, TILED, LARGE) is None


def test_digests_are_covered():
    assert table(CLEAN).covers("d-tiled")
    assert not table(CLEAN).covers("another kernel")


# files


def test_a_table_survives_its_file():
    records = {KEY: Record(SPILLED, UNBUILT, LIGHT), "tiled 16bit nn any 64x64x64 w4 s3": Record(CLEAN, at=(16, 2))}
    before = ResourceTable(120, "3.7.1", {"tma": "b", "tiled": "a"}, records)
    text = resources.dumps(before)
    assert resources.loads(text) == before
    shuffled = ResourceTable(120, "3.7.1", {"tiled": "a", "tma": "b"}, dict(reversed(records.items())))
    assert resources.dumps(shuffled) == text
    assert sum('": {"heavy"' in line for line in text.splitlines()) == 2  # a line a key
    assert json.loads(text)["capability"] == "12.0"


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """A directory in the place of the packaged one."""
    monkeypatch.setattr(resources, "path_of", lambda cc, triton: tmp_path / f"sm_{cc}-triton{triton}.json")
    resources.known.cache_clear()
    yield tmp_path
    resources.known.cache_clear()


def test_the_file_of_a_capability_and_version_is_found(packaged):
    (packaged / "sm_90-triton3.7.1.json").write_text(resources.dumps(table(CLEAN)))
    assert resources.known(90, "3.7.1") == table(CLEAN)
    assert resources.known(90, "3.7.1+git1234") == table(CLEAN)
    assert resources.known(90, "3.7.2") is None
    assert resources.known(80, "3.7.1") is None
    assert resources.known(90, "") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema_version": 2}', '{"schema_version": 1}', '{"schema_version": 1, "capability": 9, "binaries": 1}'],
)
def test_a_file_that_cannot_be_used_is_said_once_and_does_without(packaged, text):
    (packaged / "sm_90-triton3.7.1.json").write_text(text)
    with pytest.warns(TableWarning, match=r"sm_90-triton3.7.1.json are ignored"):
        assert resources.known(90, "3.7.1") is None
    assert resources.known(90, "3.7.1") is None


def test_files_are_listed(tmp_path):
    for name in ("sm_90-triton3.7.1", "sm_90-triton3.6.0", "sm_120-triton3.6.0", "notes"):
        (tmp_path / f"{name}.json").touch()
    assert resources.listed(tmp_path) == [(90, "3.6.0"), (90, "3.7.1"), (120, "3.6.0")]
