"""Several processes at one table file, and processes that are killed while they write it."""

import json
import subprocess
import sys
import threading

from heuristics import store
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import LARGE, SMALL, entry, table
from tests.processes import ROOT, environment

WRITER = """
import sys
from heuristics import store
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import LARGE, SMALL, entry, table

path, first, count, shared = sys.argv[1], *map(int, sys.argv[2:])
for m in range(count):
    rows = [entry(GemmProblem.of(first + m, 64, 64), date="2026-11-30")]
    if m < shared:  # the same problems in every process, each with a date of its own
        rows.append(entry(GemmProblem.of(1 + m, 8, 8), tile=LARGE if first == 2000 else SMALL, date=f"2026-12-{first // 1000:02}"))
    store.save(table(*rows), path)
"""


def start(*words):
    return subprocess.Popen([sys.executable, *map(str, words)], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_different_and_equal_rows_at_once_lose_nothing(tmp_path):
    path = tmp_path / "h200.json"
    writers = [start("-c", WRITER, path, first, 15, 5) for first in (1000, 2000)]
    for writer in writers:
        writer.communicate(timeout=120)
    assert [writer.returncode for writer in writers] == [0, 0]
    rows = {(row.key.m, row.key.n): row for row in store.load(path).entries}
    assert {m for m, n in rows if n == 64} == {*range(1000, 1015), *range(2000, 2015)}
    assert {m for m, n in rows if n == 8} == {*range(1, 6)}
    assert {row.tile for (_, n), row in rows.items() if n == 8} == {LARGE}  # the later date wins, whoever wrote last
    assert sorted(file.name for file in tmp_path.iterdir()) == ["h200.json", "h200.json.lock"]


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_acknowledged(tmp_path):
    torture = start("-m", "tests.heuristics.store_torture", tmp_path, 20)
    said, _ = torture.communicate(timeout=120)
    assert torture.returncode == 0, said
    json.loads((tmp_path / "h200.json").read_text())


def test_a_lock_file_that_a_dead_process_left_holds_nobody_up(tmp_path):
    path = tmp_path / "h200.json"
    (tmp_path / "h200.json.lock").write_text("4194304")
    store.save(table(entry()), path)
    assert len(store.load(path).entries) == 1


def test_threads_of_one_process_lose_nothing(tmp_path):
    path = tmp_path / "h200.json"

    def write(first):
        for m in range(first, first + 8):
            store.save(table(entry(GemmProblem.of(m, 64, 64), tile=SMALL)), path)

    threads = [threading.Thread(target=write, args=(first,)) for first in (1, 101, 201)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {row.key.m for row in store.load(path).entries} == {*range(1, 9), *range(101, 109), *range(201, 209)}


def test_a_reader_during_writes_sees_a_whole_table_each_time(tmp_path):
    path = tmp_path / "h200.json"
    store.save(table(entry(GemmProblem.of(1, 64, 64))), path)
    done = threading.Event()
    counts = []

    def look():
        while not done.is_set():
            counts.append(len(store.read(path)[0].entries))

    reader = threading.Thread(target=look)
    reader.start()
    for m in range(2, 40):
        store.save(table(entry(GemmProblem.of(m, 64, 64))), path)
    done.set()
    reader.join(60)
    assert counts
    assert counts == sorted(counts)
    assert min(counts) >= 1
