"""A table file that is cut short, spoilt, foreign or out of date: nothing lost that can be used, nothing wrong, said once."""

import json
import os
import random
import warnings
from dataclasses import replace

import pytest

from heuristics import choose, store
from heuristics.notices import TableWarning, forget
from heuristics.serialise import TableFileError, dumps, loads
from heuristics.table import problem_of
from kernel_zoo import catalog
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import (
    A100_ENVIRONMENT,
    H100_ENVIRONMENT,
    H200,
    LARGE,
    PROBLEM,
    SMALL,
    SPLIT,
    ZOO,
    entry,
    runner_up,
    table,
)

PROBLEMS = [PROBLEM, GemmProblem.of(96, 512, 2048, "bf16", "nt"), GemmProblem.of(7, 33, 129, "fp32", precision="ieee")]


def small_table():
    rows = (
        entry(PROBLEMS[0], runner_ups=(runner_up(tile=LARGE),), torch_us=12.0, low_us=9.9, high_us=10.1, date="2026-11-30"),
        entry(PROBLEMS[1], "split_k", SPLIT, torch_us=30.0, runner_ups=(runner_up(), runner_up("aten", None))),
        entry(PROBLEMS[2], "tiled", SMALL, source="hand"),
    )
    return table(*rows, description="made up", protocol={"rounds": 5}, model={"tiled": {"compute": 0.7}})


TEXT = dumps(small_table())
ROWS = {row.key: row for row in loads(TEXT, "mine")[0].entries}


def warned(action):
    """What an action returns, and the warnings it gave."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TableWarning)
        result = action()
    return result, [str(warning.message) for warning in said]


def test_a_table_cut_at_every_byte_is_an_error_or_the_whole_table():
    data = TEXT.encode()
    assert 1000 < len(data) < 4000
    for length in range(len(data)):
        text = data[:length].decode(errors="ignore")
        if length < len(data.rstrip()):
            with pytest.raises(TableFileError, match=r"mine is not a minblas table"):
                loads(text, "mine")
        else:
            assert {row.key: row for row in loads(text, "mine")[0].entries} == ROWS


@pytest.mark.parametrize("where", [0.0, 0.3, 0.9])
def test_a_file_that_was_cut_is_a_miss_said_once_and_kept_by_the_next_writer(home, where):
    path = home / "user" / "h200.json"
    cut = TEXT[: int(len(TEXT) * where)]
    path.write_text(cut)
    (found, again), said = warned(lambda: (store.user_tables(H200), store.user_tables(H200)))
    assert found == again == ()
    (message,) = said
    assert message.startswith(f"table {path} is ignored: {path} is not a minblas table: Invalid JSON")
    assert message.endswith("it was cut short or edited by hand; restore it, or move it away and tune again")
    _, said = warned(lambda: store.save(small_table(), path))
    assert len(said) == 1
    assert (home / "user" / "h200.json.corrupt").read_text() == cut
    assert {row.key: row for row in store.load(path).entries} == ROWS


def flips():
    """(offset, byte put there): every byte once with one bit turned, and a sample of bytes that JSON or a number could hold."""
    data = TEXT.encode()
    dice = random.Random(1)
    yield from ((offset, data[offset] ^ 1 << dice.randrange(7)) for offset in range(len(data)))
    yield from ((dice.randrange(len(data)), dice.choice(b'0123456789-+.eE"{}[],: NaI\\')) for _ in range(2000))


def test_a_changed_byte_costs_the_file_or_at_most_one_row():
    data = TEXT.encode()
    whole = 0
    for offset, byte in flips():
        spoilt = data[:offset] + bytes([byte]) + data[offset + 1 :]
        try:
            found, remarks = loads(spoilt.decode(errors="replace"), "mine")
        except TableFileError:
            continue
        whole += 1
        untouched = [row for row in found.entries if ROWS.get(row.key) == row]
        assert len(untouched) >= len(ROWS) - (2 if any(r.cause == "duplicate" for r in remarks) else 1), (offset, byte)
        assert len(found.entries) == len(ROWS) or remarks, (offset, byte)  # no row goes without a word
        assert all(0 < seen.time_us < 1e12 for row in found.entries for seen in row.measurements)
    assert whole > 500


def test_a_changed_byte_never_makes_the_choice_fail_or_illegal():
    data = TEXT.encode()
    for offset, byte in list(flips())[::7]:
        spoilt = (data[:offset] + bytes([byte]) + data[offset + 1 :]).decode(errors="replace")
        try:
            found, _ = loads(spoilt, "mine")
        except TableFileError:
            continue
        for problem in PROBLEMS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TableWarning)
                picked = choose.choose(problem, H200, ZOO, [found])
            chosen = next(variant for variant in ZOO if variant.name == picked.variant)
            assert chosen.refusal(problem, H200, picked.tile) is None


HOSTILE = {
    "a size of 10^30": ('"m":1024', f'"m":{10**30}'),
    "no warps": ("64x64x64 g8 w4 s3", "64x64x64 g8 w0 s3"),
    "a group of none": ("64x64x64 g8 w4 s3", "64x64x64 g0 w4 s3"),
    "a time of NaN": ('"time_us":10.0', '"time_us":NaN'),
    "a time before the start": ('"time_us":10.0', '"time_us":-10.0'),
    "an endless time": ('"time_us":10.0', '"time_us":1e999'),
    "a huge tile": ("64x64x64 g8 w4 s3", "1048576x64x64 g8 w4 s3"),
    "another row's problem": ('"m":96,"n":512,"k":2048', '"m":1024,"n":1024,"k":1024'),
    "a nested value": ('"variant":"tiled"', '"variant":{"a":[[[]]]}'),
    "coefficients of 0": ('"compute": 0.7', '"compute": 0'),
}


@pytest.mark.parametrize("old", HOSTILE.values(), ids=HOSTILE)
def test_hostile_rows_are_left_out_said_once_and_the_others_serve(home, old):
    path = home / "user" / "h200.json"
    assert old[0] in TEXT
    path.write_text(TEXT.replace(*old, 1))
    (first, second), said = warned(lambda: (store.user_tables(H200), store.user_tables(H200)))
    assert first == second
    assert said
    assert len(said) == len({message.split(": ", 1)[1][:3] for message in said})
    assert all(message.startswith(f"table {path}: ") and "; " in message for message in said)
    for problem in PROBLEMS:
        picked, _ = warned(lambda problem=problem: choose.choose(problem, H200, ZOO, first))
        assert picked.variant in {"tiled", "split_k"}
    assert any(choose.choose(problem, H200, ZOO, first).rung == "exact" for problem in PROBLEMS)


def test_a_table_of_an_older_kernel_is_a_miss_said_once_and_its_other_rows_serve(home):
    old = small_table()
    stale = replace(old, entries=(replace(old.entries[0], digest="0ld"), *old.entries[1:]))
    store.save(stale)
    tables = store.user_tables(H200)
    (first, _, fresh), said = warned(
        lambda: [choose.choose(problem, H200, ZOO, tables) for problem in (PROBLEM, PROBLEM, PROBLEMS[1])]
    )
    assert first.rung != "exact"
    assert fresh.rung == "exact"
    (message,) = said
    assert (
        "h200.json: rows of variant tiled are ignored: they were measured on kernel 0ld, which is now d-tiled; tune again"
        in message
    )


def test_a_table_of_another_capability_is_no_concern_unless_asked_for(home, monkeypatch):
    path = store.save(table(entry(), environment=A100_ENVIRONMENT))
    assert store.user_tables(H200) == ()
    monkeypatch.setenv("MINBLAS_TABLE", str(path))
    found, said = warned(lambda: (store.user_tables(H200), store.user_tables(H200))[1])
    assert found == ()
    assert len(said) == 1


def test_a_table_of_another_gpu_of_the_capability_gives_hints_and_says_so_where_asked_for(home, monkeypatch):
    path = store.save(table(entry(), environment=H100_ENVIRONMENT))
    monkeypatch.setenv("MINBLAS_TABLE", str(path))
    (found, _), said = warned(lambda: (store.user_tables(H200)[:1], store.user_tables(H200)))
    assert choose.choose(PROBLEM, H200, ZOO, found).rung == "borrowed"
    (message,) = said
    assert message.startswith(
        f"table {path} gives hints only, which the model weighs: its rows are of NVIDIA H100 80GB HBM3 (132 SMs)"
    )


def test_a_row_written_with_this_version_of_the_real_kernels_stands(home):
    variant = catalog.get("tiled")
    store.save(table(entry(digest=variant.digest)))
    assert choose.choose(PROBLEM, H200, catalog.VARIANTS, store.user_tables(H200)).rung == "exact"


def test_a_pipe_in_a_tables_place_does_not_wait_for_a_writer(home):
    os.mkfifo(home / "user" / "h200.json")
    found, said = warned(lambda: store.user_tables(H200))
    assert found == ()
    assert "no regular file" in said[0]


def test_a_byte_order_mark_is_no_fault(home):
    path = home / "user" / "h200.json"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert {row.key: row for row in store.user_tables(H200)[0].entries} == ROWS


def test_what_a_writer_would_not_write_back_is_kept_beside(home):
    path = store.save(small_table())
    document = json.loads(path.read_text())
    document["entries"][0]["colour"] = "red"
    document["entries"][2]["evidence"]["time_us"] = 0
    path.write_text(json.dumps(document))
    before = path.read_text()
    for number, kept in enumerate(("h200.json.bak", "h200.json.bak2"), 1):
        path.write_text(before)
        forget()
        _, said = warned(lambda number=number: store.save(table(entry(GemmProblem.of(number, 8, 8)))))
        assert len(said) == 1
        assert f"is kept as {kept}, for not all of it is written back: row 1 has the unknown key 'colour'" in said[0]
        assert (home / "user" / kept).read_text() == before
    assert problem_of(next(iter(store.load(path).entries)).key).m in {1, 2, 96, 1024}


def test_many_bad_rows_are_one_sentence_that_names_them(home):
    path = home / "user" / "h200.json"
    document = json.loads(TEXT)
    document["entries"] = [{**document["entries"][0], "tile": "huge"}] * 9
    path.write_text(json.dumps(document))
    _, said = warned(lambda: store.user_tables(H200))
    (message,) = said
    assert "row 1 is ignored: tile 'huge' is not of the form" in message
    assert "(8 more of the kind: rows 2, 3, 4, 5, 6, ...)" in message
