"""The table commands: what they show, find, drop and write, in words and as data."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from bench import cli, tables, terminal
from heuristics import archs, generate, store
from heuristics.compare import listed_device
from heuristics.notices import forget
from heuristics.table import Environment, HeuristicTable, Measurement, TableEntry, problem_key, problem_of
from kernel_zoo import catalog
from kernel_zoo.gate import GateResult, GateRow
from kernel_zoo.spec import GemmProblem, TileConfig

TILED, SPLIT_K = catalog.get("tiled"), catalog.get("split_k")
SMALL, LARGE = TileConfig(64, 64, 64, num_stages=4), TileConfig(128, 128, 64, num_warps=8, num_stages=4)
SPLIT = TileConfig(64, 64, 64, split_k=4, num_stages=4)
WHERE = Environment("NVIDIA H200", (9, 0), 132, triton="3.7.1", torch="2.13.0")
SQUARE, DECODE, LONG = (GemmProblem.of(*sizes, "bf16", "nt") for sizes in ((1024, 1024, 1024), (16, 4096, 4096), (256, 256, 8192)))
FP32 = GemmProblem.of(512, 512, 512, "fp32", precision="tf32")


def row(problem, tile=SMALL, time_us=10.0, variant=TILED, **more):
    more = {"date": "2026-06-01", "digest": variant.digest, **more}
    digest = more.pop("digest")
    return TableEntry(problem_key(problem), variant.name, tile, digest, time_us, **more)


def rows():
    ups = (Measurement("tiled", LARGE, 11.0, TILED.digest), Measurement("split_k", SPLIT, 14.0, SPLIT_K.digest))
    return (
        row(SQUARE, torch_us=12.0, low_us=9.9, high_us=10.2, runner_ups=ups),
        row(DECODE, date="2026-01-01"),
        row(LONG, SPLIT, variant=SPLIT_K),
        row(FP32, TileConfig(64, 64, 32)),
    )


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """The user's directory and the packaged tables, both empty."""
    forget()
    (tmp_path / "packaged").mkdir()
    monkeypatch.setattr(store, "user_dir", lambda: tmp_path / "user")
    monkeypatch.setattr(store, "PACKAGED", tmp_path / "packaged")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def file(home):
    return store.save(HeuristicTable("mine", WHERE, rows()), home / "mine.json")


def run(*words, code=0):
    result = CliRunner().invoke(cli.app, ["table", *(str(word) for word in words)])
    assert result.exit_code == code, result.output
    return result.output


def data(*words, code=0):
    return json.loads(run(*words, "--json", code=code))


# show


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ((), {(1024, 1024, 1024), (16, 4096, 4096), (256, 256, 8192), (512, 512, 512)}),
        (("--dtype", "bf16"), {(1024, 1024, 1024), (16, 4096, 4096), (256, 256, 8192)}),
        (("--dtype", "fp16", "--class", "decode"), {(16, 4096, 4096)}),
        (("--dtype", "tf32"), {(512, 512, 512)}),
        (("--class", "decode", "--class", "split-K"), {(16, 4096, 4096), (256, 256, 8192)}),
        (("--variant", "split_k"), {(256, 256, 8192)}),
        (("--variant", "tma"), set()),
    ],
)
def test_show_keeps_the_rows_asked_for(file, words, sizes):
    (shown,) = data("show", file, *words)
    assert {tuple(int(part) for part in entry["key"].split(" x ")[:2]) for entry in shown["entries"]} == {s[:2] for s in sizes}
    assert shown["rows"] == 4


def test_show_near_sorts_by_distance_and_gives_it(file):
    (shown,) = data("show", file, "--near", 1000, 1000, 1000)
    far = [entry["distance"] for entry in shown["entries"]]
    assert far == sorted(far)
    assert shown["entries"][0]["key"].startswith("1024 x 1024 x 1024")
    assert 0 < far[0] < 0.2
    assert "octaves" in run("show", file, "--near", 1000, 1000, 1000)


def test_show_evidence_gives_intervals_sources_and_runners_up(file):
    text = run("show", file, "--evidence")
    assert "9.90 to 10.20" in text
    assert "measured 2026-06-01" in text
    assert "1.100 x" in text
    assert "1.400 x" not in run("show", file)


def test_show_limits_and_says_what_it_left_out(file):
    assert "2 more (--limit)" in run("show", file, "--limit", 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--class", "huge"), "known: large, square"), (("--dtype", "bf17"), "bf17"), (("--near", 0, 1, 1), "at least 1")],
)
def test_show_says_what_it_does_not_know(file, words, said):
    assert said in run("show", file, *words, code=2)


# diff


def test_diff_gives_the_ratio_of_times_of_changed_rows(file, home):
    newer = store.save(
        HeuristicTable("new", WHERE, (row(SQUARE, LARGE, 8.0), *rows()[2:], row(replace(DECODE, m=17)))), home / "new.json"
    )
    text = run("diff", file, newer, code=1)
    assert "changed 1024 x 1024 x 1024 16bit nt: tiled 64x64x64 g8 w4 s4 10 us -> tiled 128x128x64 g8 w8 s4 8 us (1.250 x)" in text
    assert "3 rows differ" in text
    changed = {change["kind"]: change for change in data("diff", file, newer, code=1)}
    assert changed["changed"]["ratio"] == 1.25
    assert changed["added"]["ratio"] is None
    assert changed["removed"]["before_us"] == 10.0
    assert data("diff", file, file) == []


def test_diff_of_a_device_is_the_packaged_table_against_the_users(home):
    assert "nothing to compare for h200" in run("diff", "h200", code=2)
    store.save(HeuristicTable("packaged", WHERE, rows()), home / "packaged" / "h200.json")
    store.save(HeuristicTable("mine", WHERE, (row(SQUARE, LARGE, 9.0),)))
    assert "packaged h200 -> " in run("diff", "h200", code=1)
    kinds = [change["kind"] for change in data("diff", "h200", code=1)]
    assert sorted(kinds) == ["changed", "removed", "removed", "removed"]
    assert "two tables" in run("diff", home / "packaged" / "h200.json", code=2)


# verify


def test_verify_passes_a_sound_table(file):
    assert "1 tables, 4 rows, 0 findings" in run("verify", file)


def test_verify_names_each_fault_and_fails(home):
    faulty = (
        row(SQUARE, digest="0" * 12),
        row(DECODE, TileConfig(1024, 1024, 64, num_stages=4)),
        replace(row(LONG), variant="me.gone"),
        row(FP32, TileConfig(64, 64, 32)),
    )
    path = store.save(HeuristicTable("bad", WHERE, faulty), home / "bad.json")
    document = json.loads(path.read_text())
    for entry in document["entries"]:
        if entry["key"]["m"] == 512:
            entry["evidence"]["time_us"] = -1
    path.write_text(json.dumps(document))
    found = data("verify", path, code=1)["findings"]
    assert sorted(finding["kind"] for finding in found) == ["illegal", "invalid", "stale", "unknown"]
    assert all(finding["message"] for finding in found)
    text = run("verify", path, code=1)
    assert "stale: 1024 x 1024 x 1024 16bit nt: measured on kernel 000000000000 of tiled, which is now" in text
    assert "unknown: 256 x 256 x 8192 16bit nt: variant me.gone is not registered" in text
    assert text.rstrip().endswith("1 tables, 3 rows, 4 findings")


def test_verify_counts_modelled_rows_and_passes(home):
    rows = tuple(replace(entry, source="modelled", date="") for entry in (row(SQUARE), row(DECODE)))
    path = store.save(HeuristicTable("guess", WHERE, (*rows, row(LONG))), home / "guess.json")
    assert "2 of 3 rows are modelled: nobody measured them" in run("verify", path)
    report = data("verify", path)
    assert (report["modelled"], report["rows"], report["findings"]) == (2, 3, [])


def test_verify_reports_a_file_that_cannot_be_read(home):
    path = home / "cut.json"
    path.write_text('{"schema_version": 1, "entr')
    (finding,) = data("verify", path, code=1)["findings"]
    assert (finding["kind"], finding["table"]) == ("unreadable", str(path))


def test_verify_of_a_device_takes_a_broken_file_of_the_users_into_account(home):
    store.save(HeuristicTable("mine", WHERE, rows()))
    (home / "user" / "other.json").write_text("[]")
    report = data("verify", "h200", code=1)
    assert report["rows"] == 4
    assert [finding["kind"] for finding in report["findings"]] == ["unreadable"]


def test_a_device_without_a_table_says_so_and_an_h100_why():
    assert "there is no table for a100" in run("verify", "a100", code=2)
    assert "it borrows the H200's measured rows" in run("show", "h100-sxm", code=2)


A10 = Environment("NVIDIA A10", (8, 6), 72, triton="3.7.1", torch="2.13.0")


def here(monkeypatch, arch):
    """Pretend that a GPU is there, or none."""
    monkeypatch.setattr(terminal, "arch_here", lambda: arch)


def as_a10():
    like = archs.closest((8, 6), 72)
    return replace(like, name="a10", capability=(8, 6), sm_count=72)


def test_verify_says_which_table_is_of_an_unlisted_gpu_and_checks_the_others(home, file, monkeypatch):
    here(monkeypatch, None)
    unlisted = store.save(HeuristicTable("a10", A10, (row(SQUARE),)), home / "a10.json")
    text = run("verify", unlisted, file)
    assert f"{unlisted}: unlisted: it is of NVIDIA A10, whose limits are not listed" in text
    assert text.rstrip().endswith("2 tables, 5 rows, 0 findings, 1 tables not checked")
    stale = store.save(HeuristicTable("bad", WHERE, (row(SQUARE, digest="0" * 12),)), home / "bad.json")
    report = data("verify", unlisted, stale, code=1)
    assert [(finding["table"], finding["kind"]) for finding in report["findings"]] == [
        (str(unlisted), "unlisted"),
        (str(stale), "stale"),
    ]


def test_verify_of_an_unlisted_gpu_on_that_gpu(home, monkeypatch):
    here(monkeypatch, as_a10())
    rows = (row(SQUARE), row(DECODE, TileConfig(1024, 1024, 64, num_stages=4)))
    path = store.save(HeuristicTable("a10", A10, rows), home / "a10.json")
    assert [finding["kind"] for finding in data("verify", path, code=1)["findings"]] == ["illegal"]
    here(monkeypatch, replace(as_a10(), sm_count=36))
    assert [finding["kind"] for finding in data("verify", path)["findings"]] == ["unlisted"]


def test_no_row_of_an_unlisted_gpu_is_compiled(home, monkeypatch):
    here(monkeypatch, None)
    assert tables.gate_tables([HeuristicTable("a10", A10, (row(SQUARE),))], catalog.VARIANTS) == []


# prune


def test_prune_leaves_a_table_of_an_unlisted_gpu_and_goes_on(home, monkeypatch):
    here(monkeypatch, None)
    old = (row(SQUARE, digest="0" * 12), row(DECODE))
    unlisted = store.save(HeuristicTable("a10", A10, old), home / "a10.json")
    mine = store.save(HeuristicTable("mine", WHERE, old), home / "mine.json")
    before = unlisted.read_bytes()
    left, done = data("prune", unlisted, mine)
    assert ("NVIDIA A10" in left["unlisted"], left["rows"], left["dropped"]) == (True, 2, [])
    assert (done["unlisted"], done["rows"]) == ("", 1)
    assert unlisted.read_bytes() == before
    assert "unlisted: it is of NVIDIA A10" in run("prune", unlisted)
    here(monkeypatch, as_a10())
    assert data("prune", unlisted)[0]["rows"] == 1


def test_prune_drops_what_cannot_serve_and_keeps_the_old_file(home):
    path = store.save(HeuristicTable("mine", WHERE, (row(SQUARE, digest="0" * 12), row(DECODE))), home / "mine.json")
    before = path.read_text()
    assert "would drop 1 rows; 1 rows are left" in run("prune", path, "--dry-run")
    assert path.read_text() == before
    (done,) = data("prune", path)
    assert [drop["kind"] for drop in done["dropped"]] == ["stale"]
    assert [entry.key.m for entry in store.load(path).entries] == [16]
    assert (home / "mine.json.bak").read_text() == before
    assert "dropped 0 rows; 1 rows are left" in run("prune", path)
    assert not (home / "mine.json.bak2").exists()


def test_prune_by_date_on_the_users_own_table(home):
    assert "you have no table of h200" in run("prune", "h200", code=2)
    store.save(HeuristicTable("mine", WHERE, rows()))
    (done,) = data("prune", "h200", "--before", "2026-02-01")
    assert [drop["kind"] for drop in done["dropped"]] == ["old"]
    assert done["rows"] == 3
    assert "needs a date" in run("prune", "h200", "--before", "yesterday", code=2)


def test_prune_drops_rows_that_no_longer_read(home, file):
    document = json.loads(file.read_text())
    document["entries"][0]["tile"] = "huge"
    file.write_text(json.dumps(document))
    (done,) = data("prune", file)
    assert (done["invalid"], done["rows"]) == (1, 3)
    assert store.read(file)[1] == []


def test_prune_redundant_keeps_what_the_packaged_table_does_not_say(home):
    store.save(HeuristicTable("packaged", WHERE, rows()), home / "packaged" / "h200.json")
    store.save(HeuristicTable("mine", WHERE, (rows()[0], row(DECODE, TileConfig(16, 32, 128, num_stages=4), 5.0))))
    (done,) = data("prune", "h200", "--redundant")
    assert [(drop["kind"], drop["key"]) for drop in done["dropped"]] == [("redundant", "1024 x 1024 x 1024 16bit nt")]


def test_prune_compile_drops_rows_that_fail_the_gate(file, monkeypatch):
    def gate(found, variants, workers=None):
        fault = "4 local-memory accesses; must be 0"
        return [GateResult(tables_row(entry, found[0]), (), (fault,) * (entry.key.m == 16)) for entry in found[0].entries]

    monkeypatch.setattr(tables, "gate_tables", gate)
    (done,) = data("prune", file, "--compile")
    assert [(drop["kind"], drop["key"]) for drop in done["dropped"]] == [("gate", "16 x 4096 x 4096 16bit nt")]


def tables_row(entry, table):
    return GateRow(catalog.get(entry.variant), problem_of(entry.key), entry.tile, listed_device(table), table.name)


# merge and generate


def test_merge_lets_a_measured_row_win_over_a_modelled_one_in_either_order(home):
    guess = store.save(HeuristicTable("a", WHERE, (row(SQUARE, LARGE, source="modelled", date="2027-01-01"),)), home / "a.json")
    seen = store.save(HeuristicTable("b", WHERE, (row(SQUARE, SMALL),)), home / "b.json")
    for number, pair in enumerate(((guess, seen), (seen, guess))):
        out = home / f"out{number}.json"
        assert data("merge", *pair, "-o", out)["rows"] == 1
        assert store.load(out).entries[0].source == "measured"


def test_merge_of_a_file_that_is_not_there(home):
    assert "does not exist" in run("merge", home / "a.json", "-o", home / "out.json", code=2)
    assert not (home / "out.json").exists()


def few(monkeypatch):
    monkeypatch.setattr(generate, "problems", lambda: generate._of("nt", (512, 512, 512), (1, 512, 512)))


def test_generate_writes_a_table_that_verifies(home, monkeypatch):
    few(monkeypatch)
    out = home / "a100.json"
    assert "2 modelled rows for a100" in run("generate", "--arch", "a100", "-o", out)
    assert data("verify", out)["modelled"] == 2
    assert "modelled, never measured" in run("show", out)
    (made,) = data("generate", "--arch", "a100", "-o", out)  # over what it wrote before
    assert (made["rows"], made["gated_on"], made["left_out"]) == (2, "", [])


def test_generate_never_writes_over_measured_rows(home, file, monkeypatch):
    few(monkeypatch)
    before = file.read_bytes()
    assert "holds 4 rows that are no model's" in run("generate", "--arch", "a100", "-o", file, code=2)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arch", "h100-sxm"), "needs no generated table: it borrows the H200's measured rows"),
        (("--arch", "h200"), "its rows are measured"),
        (("--arch", "a10"), "a100"),
        (("-o", "x.json"), "one file"),
    ],
)
def test_generate_says_what_needs_no_table(words, said):
    assert said in run("generate", *words, code=2)


def test_generate_compile_takes_the_next_choice_where_the_gate_refuses(home, monkeypatch):
    few(monkeypatch)
    plain = home / "plain.json"
    run("generate", "--arch", "a100", "-o", plain)
    first = {entry.key: (entry.variant, entry.tile) for entry in store.load(plain).entries}

    def gate(found, variants, workers=None):
        fails = [entry for entry in found[0].entries if entry.key.m == 1 or first[entry.key] == (entry.variant, entry.tile)]
        return [GateResult(tables_row(entry, found[0]), (), ("spills",)) for entry in fails]

    monkeypatch.setattr(tables, "gate_tables", gate)
    (made,) = data("generate", "--arch", "a100", "-o", home / "gated.json", "--compile")
    (entry,) = store.load(home / "gated.json").entries
    assert entry.key.m == 512
    assert (entry.variant, entry.tile) != first[entry.key]
    assert made["left_out"] == ["1 x 512 x 512 16bit nt: 10 choices of the model failed the gate, the last by: spills"]


def test_a_warning_about_a_table_is_a_line_for_the_user(monkeypatch, capsys):
    import warnings

    from bench import terminal
    from heuristics.notices import TableWarning

    others = []
    monkeypatch.setattr(warnings, "showwarning", lambda *given: others.append(given))
    terminal.plain_warnings()
    warnings.showwarning(TableWarning("table x is ignored"), TableWarning, "store.py", 1)
    warnings.showwarning(UserWarning("of another kind"), UserWarning, "other.py", 2)
    assert capsys.readouterr().err == "warning: table x is ignored\n"
    assert [given[2:4] for given in others] == [("other.py", 2)]
