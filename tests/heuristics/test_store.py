import json
import os

import pytest

from heuristics import store
from heuristics.notices import TableWarning
from heuristics.serialise import dumps
from heuristics.store import TableFileError
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import A100_ENVIRONMENT, H100_ENVIRONMENT, H200, LARGE, entry, table


def of(m):
    return GemmProblem.of(m, 64, 64, "bf16", "nt")


def test_save_into_the_users_directory_and_read_back(home):
    path = store.save(table(entry()))
    assert path == home / "user" / "h200.json"
    (found,) = store.user_tables(H200)
    assert found.entries == (entry(),)
    assert found.origin == "user"
    assert found.name == str(path)


def test_save_merges_with_what_is_there(home):
    store.save(table(entry(of(1)), entry(of(2))))
    path = store.save(table(entry(of(2), tile=LARGE), entry(of(3))))
    rows = {row.key.m: row.tile for row in store.load(path).entries}
    assert set(rows) == {1, 2, 3}
    assert rows[2] == LARGE


def test_a_file_of_another_device_is_not_touched(home):
    path = store.save(table(entry(), environment=A100_ENVIRONMENT), home / "mine.json")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"A100.*H200.*do not merge"):
        store.save(table(entry()), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xfe\x00", b'{"a": 1}', b"[" * 100_000])
def test_what_is_no_table_is_a_miss_with_one_warning(home, content):
    path = home / "user" / "h200.json"
    path.write_bytes(content)
    with pytest.warns(TableWarning, match=r"h200\.json is ignored: .*not a minblas table"):
        assert store.user_tables(H200) == ()
    assert store.user_tables(H200) == ()  # a second warning would be an error here


def test_a_directory_in_a_tables_place_is_a_miss(home):
    (home / "user" / "h200.json").mkdir()
    with pytest.warns(TableWarning, match="is ignored"):
        assert store.user_tables(H200) == ()


def test_saving_over_a_spoilt_file_keeps_it_aside(home):
    path = home / "user" / "h200.json"
    path.write_text('{"schema_version": 1, "entr')
    with pytest.warns(TableWarning, match=r"not usable and is kept as h200\.json\.corrupt"):
        store.save(table(entry()))
    assert (home / "user" / "h200.json.corrupt").read_text() == '{"schema_version": 1, "entr'
    assert store.load(path).entries == (entry(),)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(home, monkeypatch):
    path = store.save(table(entry(of(1))))
    before = path.read_bytes()

    def no_space(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        store.save(table(entry(of(2))))
    assert path.read_bytes() == before
    assert list(path.parent.glob(".*.tmp")) == []


def test_the_next_writer_sweeps_what_a_killed_one_left(home):
    left = home / "user" / ".h200.json.abc.tmp"
    left.write_text("half a tab")
    store.save(table(entry()))
    assert not left.exists()


def test_remarks_are_one_warning_a_cause_that_names_the_file_and_the_row(home):
    path = store.save(table(entry(), entry(of(3))))
    document = json.loads(path.read_text())
    document["entries"][0]["colour"] = "red"
    del document["entries"][1]["evidence"]
    path.write_text(json.dumps(document))
    with pytest.warns(TableWarning) as said:
        found = store.user_tables(H200)
    assert [str(warning.message).removeprefix(f"table {path}: ") for warning in said] == [
        "row 1 has the unknown key 'colour', which is ignored; take the key out, or upgrade minblas if a newer one wrote it",
        "row 2 is ignored: evidence: Field required; correct the row, or drop it (minblas table prune)",
    ]
    assert len(found[0].entries) == 1
    store.user_tables(H200)  # a second warning would be an error here


def test_minblas_table_comes_first_and_in_order(home, monkeypatch):
    first, second = (store.save(table(entry(time_us=us)), home / f"{us}.json") for us in (1.0, 2.0))
    store.save(table(entry()))
    monkeypatch.setenv("MINBLAS_TABLE", f"{second}{os.pathsep}{first}")
    assert [found.entries[0].time_us for found in store.user_tables(H200)] == [2.0, 1.0, 10.0]


def test_a_table_asked_for_that_cannot_apply_is_said(home, monkeypatch):
    other = store.save(table(entry(), environment=A100_ENVIRONMENT), home / "a100.json")
    monkeypatch.setenv("MINBLAS_TABLE", f"{other}{os.pathsep}{home / 'gone.json'}")
    with pytest.warns(TableWarning) as said:
        assert store.user_tables(H200) == ()
    texts = sorted(str(warning.message) for warning in said)
    assert texts[0].endswith(
        "is ignored: its rows are of NVIDIA A100-SXM4-80GB (108 SMs) (compute capability 8.0), "
        "the device is h200 (9.0, 132 SMs); name a table of h200 in MINBLAS_TABLE, or tune on it"
    )
    assert "gone.json is ignored" in texts[1]


def test_tables_of_other_gpus_in_the_users_directory_are_no_concern(home):
    store.save(table(entry(), environment=A100_ENVIRONMENT))
    assert store.user_tables(H200) == ()


def test_packaged_tables_put_the_device_before_its_relatives(home):
    packaged = home / "packaged"
    (packaged / "h100-sxm.json").write_text(dumps(table(entry(), environment=H100_ENVIRONMENT)))
    (packaged / "h200.json").write_text(dumps(table(entry())))
    (packaged / "a100.json").write_text(dumps(table(entry(), environment=A100_ENVIRONMENT)))
    found = store.packaged_tables(H200)
    assert [t.name for t in found] == ["packaged h200", "packaged h100-sxm"]
    assert {t.origin for t in found} == {"packaged"}


def test_a_changed_file_is_read_again(home):
    path = store.save(table(entry(time_us=1.0)))
    assert store.load(path).entries[0].time_us == 1.0
    store.save(table(entry(time_us=2.5)))
    assert store.load(path).entries[0].time_us == 2.5


def test_load_says_what_is_wrong_to_who_asks(home):
    with pytest.raises(FileNotFoundError):
        store.load(home / "none.json")
    bad = home / "bad.json"
    bad.write_text("{}")
    with pytest.raises(TableFileError, match=r"bad\.json"):
        store.load(bad)


def test_the_users_directory_is_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store.user_dir() == tmp_path / "minblas" / "tables"


def test_the_packaged_tables_are_whole():
    # Every table that ships parses without a remark and is written as this version writes it.
    for path in store.PACKAGED.glob("*.json"):
        assert dumps(store.load(path)) == path.read_text(encoding="utf-8"), path.name
