import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristics.schema import parse_tile
from heuristics.serialise import TableFileError, dumps, loads
from heuristics.table import HeuristicTable
from kernel_zoo.spec import Epilogue, GemmProblem, Operand, TileConfig
from tests.heuristics.fakes import H200_ENVIRONMENT, LARGE, NET, PROBLEM, SMALL, entry, runner_up, table

SUBTILED = TileConfig(128, 256, 64, 8, 1, 8, 4, (("flatten", 0), ("persistent", 1), ("subtile", 2)))


def full_table() -> HeuristicTable:
    reads_c = GemmProblem.of(
        64, 64, 64, "fp32", "nn", precision="tf32", epilogue=Epilogue(beta="1", c=Operand.dense("fp32", 64, 64))
    )
    return table(
        entry(PROBLEM, tile=SUBTILED, torch_us=12.0, low_us=9.5, high_us=10.5, date="2026-11-30T20:14:05Z"),
        entry(GemmProblem.of(3, 5, 7, "fp16", batch=4), runner_ups=(runner_up("split_k"), runner_up("tiled", SMALL, 12.5, "abc"))),
        entry(reads_c, source="hand"),
        entry(GemmProblem.of(64, 64, 64, "int8"), "aten", None, digest="", triton="3.7.1"),
        protocol={"timer": "cudagraph", "rounds": 5},
        model={"tiled": {"compute": 0.7}},
        description="made up",
        created_at="2026-11-30",
        minblas_version="0.1.0",
    )


def row(**changes) -> dict:
    made = {
        "key": {"m": 8, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt"},
        "variant": "tiled",
        "tile": SMALL.describe(),
        "digest": "d",
    }
    return {**made, "evidence": {"time_us": 1.0}, **changes}


def document(*rows, **changes) -> str:
    environment = {"gpu_name": "NVIDIA H200", "compute_capability": "9.0", "sm_count": 132}
    return json.dumps({"schema_version": 1, "environment": environment, "entries": list(rows), **changes})


def test_what_is_written_is_read_back():
    written = full_table()
    read, remarks = loads(dumps(written), "mine")
    assert remarks == []
    assert {e.key: e for e in read.entries} == {e.key: e for e in written.entries}
    assert (read.environment, read.protocol, read.model) == (written.environment, written.protocol, written.model)
    assert (read.description, read.created_at, read.minblas_version) == ("made up", "2026-11-30", "0.1.0")
    assert dumps(read) == dumps(written)


def test_output_does_not_depend_on_the_order_of_rows():
    written = full_table()
    entries = list(written.entries)
    random.Random(0).shuffle(entries)
    assert dumps(replace(written, entries=tuple(entries))) == dumps(written)


def test_one_row_a_line_and_a_changed_row_changes_one_line():
    before = full_table()
    changed = replace(before, entries=(entry(PROBLEM, tile=LARGE), *before.entries[1:]))
    old, new = dumps(before).splitlines(), dumps(changed).splitlines()
    assert len(old) == len(new)
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1


def test_a_usual_row_takes_less_than_400_bytes():
    ups = (runner_up("tma", SUBTILED, 185.21), runner_up("tiled", LARGE, 199.73))
    problem = GemmProblem.of(4096, 14336, 4096, "bf16", "nt")
    made = entry(
        problem,
        "tma",
        SUBTILED,
        182.123,
        "0123456789ab",
        torch_us=190.2,
        runner_ups=ups,
        date="2026-11-30",
        low_us=181.2,
        high_us=183.4,
    )
    (line,) = (line for line in dumps(table(made)).splitlines() if '"key"' in line)
    assert len(line.encode()) < 400


def test_a_runner_up_of_the_winners_variant_is_of_its_kernel():
    made = entry(
        runner_ups=(runner_up("tiled", digest="d-tiled"), runner_up("split_k", digest="d-split_k"), runner_up("aten", None))
    )
    text = dumps(table(made))
    assert text.count("d-tiled") == 1
    assert loads(text, "mine")[0].entries == (made,)


def test_times_are_rounded_to_five_digits_once():
    read, _ = loads(dumps(table(entry(time_us=1234.5678))), "mine")
    assert read.entries[0].time_us == 1234.6
    assert dumps(read) == dumps(table(entry(time_us=1234.5678)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON"),
        ("[]", "object"),
        ("{}", "schema_version"),
        (document(extra=1), "it has the unknown key 'extra' at the top; take it out, or upgrade minblas"),
        (document(schema_version=2), "schema_version is 2, and this minblas reads 1; a newer minblas wrote it: upgrade"),
        (document(schema_version=0), "schema_version is 0, and this minblas reads 1; tune again"),
        (document(schema_version="one"), "schema_version is 'one', and this minblas reads 1; tune again"),
        (document(environment={"gpu_name": "x"}), "environment.compute_capability"),
        (document(entries={}), "entries"),
        ('{"schema_version": 1', "it was cut short or edited by hand; restore it, or move it away and tune again"),
    ],
)
def test_what_is_no_table_is_an_error_that_names_the_file(text, why):
    with pytest.raises(TableFileError, match=r"mine\.json is not a minblas table") as caught:
        loads(text, "mine.json")
    assert why in str(caught.value)


def test_an_unknown_key_of_a_row_is_ignored_and_remarked():
    read, remarks = loads(
        document(row(colour="red"), row(key={**row()["key"], "m": 9}, evidence={"time_us": 2.0, "mood": 1})), "mine"
    )
    assert len(read.entries) == 2
    assert [str(remark) for remark in remarks] == [
        "row 1 has the unknown key 'colour', which is ignored",
        "row 2 has the unknown key 'evidence.mood', which is ignored",
    ]


BAD_ROWS = [
    row(key={"m": 8, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt", "sm_budget": 64}),  # could make two problems one
    row(key={"m": -8, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt"}),
    row(key={"m": "8", "n": 8, "k": 8, "dtype": "16bit", "layout": "nt"}),
    row(key={"m": 8, "n": 8, "k": 8, "dtype": "bf17", "layout": "nt"}),
    row(key={"m": 8, "n": 8, "k": 8, "dtype": "16bit", "layout": "xx"}),
    row(key={"m": 8, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt", "align": "3"}),
    row(key={"m": 8, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt", "precision": "fast"}),
    row(tile="64x64"),
    row(tile="64x64x64 g8 w4 s3; rm"),
    row(evidence={"time_us": 0}),
    row(evidence={"time_us": -1.0}),
    row(evidence={}),
    row(evidence={"time_us": 1.0, "source": "guess"}),
    row(evidence={"time_us": 1.0, "runner_ups": [["tiled", "huge", 1.0]]}),
    row(evidence={"time_us": math.nan}),
    row(evidence={"time_us": math.inf}),
    row(evidence={"time_us": 1e300}),
    row(evidence={"time_us": 1.0, "torch_us": math.nan}),
    row(evidence={"time_us": 1.0, "low_us": -1}),
    row(evidence={"time_us": 1.0, "runner_ups": [["tiled", None, math.nan]]}),
    row(key={"m": 10**30, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt"}),
    row(key={"m": 8.5, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt"}),
    row(key={"m": True, "n": 8, "k": 8, "dtype": "16bit", "layout": "nt"}),
    row(tile="64x64x64 g0 w4 s3"),  # a group or a warp count of 0 would divide by it
    row(tile="64x64x64 g8 w0 s3"),
    row(tile="64x64x64 g8 w64 s3"),
    row(tile="64x64x64 g8 w4 s3 split0"),
    row(tile="0x64x64 g8 w4 s3"),
    row(tile=f"{10**30}x64x64 g8 w4 s3"),
    row(tile=f"{'9' * 5000}x64x64 g8 w4 s3"),
    row(variant=""),
    row(variant=7),
    {"variant": "tiled"},
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=lambda bad: json.dumps(bad)[:60])
def test_a_bad_row_costs_that_row_only(bad):
    good = row(key={"m": 16, "n": 16, "k": 16, "dtype": "16bit", "layout": "nt"})
    read, remarks = loads(document(bad, good), "mine")
    assert [e.key.m for e in read.entries] == [16]
    assert len(remarks) == 1
    assert (remarks[0].cause, remarks[0].row) == ("invalid", 1)
    assert str(remarks[0]).startswith("row 1 is ignored: ")


def test_the_last_of_two_rows_of_a_problem_wins_and_is_remarked():
    read, remarks = loads(document(row(), row(variant="split_k")), "mine")
    assert [e.variant for e in read.entries] == ["split_k"]
    assert [str(remark) for remark in remarks] == ["row 2 replaces an earlier row of 8 x 8 x 8 16bit nt"]


def test_a_modelled_row_never_replaces_a_measured_one_of_the_same_file():
    guess = row(variant="split_k", evidence={"time_us": 1.0, "source": "modelled", "date": "2027-01-01"})
    for rows in ((row(), guess), (guess, row())):
        read, remarks = loads(document(*rows), "mine")
        assert [e.variant for e in read.entries] == ["tiled"]
        assert [remark.cause for remark in remarks] == ["duplicate"]


@pytest.mark.parametrize(
    "values", [{"compute": math.nan}, {"compute": -1.0}, {"compute": 0.0}, {"compute": "fast"}, {"compute": 1e300}, 3, None]
)
def test_coefficients_that_give_no_time_are_left_out_and_the_rows_stay(values):
    read, remarks = loads(document(row(), model={"tiled": values, "tma": {"compute": 0.9, "fit_error": 0.0}}), "mine")
    assert dict(read.model) == {"tma": {"compute": 0.9, "fit_error": 0.0}}
    assert len(read.entries) == 1
    assert [remark.cause for remark in remarks] == ["model"]
    assert str(remarks[0]).startswith("the model of tiled is ignored: ")


def test_a_row_without_a_tile_is_an_opaque_variants():
    read, _ = loads(dumps(table(entry(name=NET.name, tile=None))), "mine")
    assert read.entries[0].tile is None
    assert read.environment == H200_ENVIRONMENT


sides = st.integers(1, 1024)
knobs = st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), st.integers(0, 99), max_size=4)


@settings(max_examples=80, deadline=None)
@given(sides, sides, sides, st.integers(1, 64), st.integers(1, 64), st.integers(1, 16), st.integers(1, 9), knobs)
def test_a_tile_survives_being_text(m, n, k, group, split, warps, stages, extra):
    tile = TileConfig(m, n, k, group, split, warps, stages, tuple(sorted(extra.items())))
    assert parse_tile(tile.describe()) == tile
