"""Writers that are killed: `python -m tests.heuristics.store_torture FOLDER ROUNDS`. A process of its own, so that it may fork."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from heuristics import store
from kernel_zoo.spec import GemmProblem
from tests.heuristics.fakes import entry, table


def write(path: Path, first: int, acknowledge: int) -> None:
    """Save one row after another, each acknowledged once `save` has returned, until killed."""
    m = first
    while True:
        store.save(table(entry(GemmProblem.of(m, 64, 64), date="2026-11-30")), path)
        os.write(acknowledge, f"{m}\n".encode())
        m += 1


def start(path: Path, first: int) -> tuple[int, int]:
    """A writer's process id, and where its acknowledgements come out."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        write(path, first, into)
    os.close(into)
    return child, out


def main(folder: Path, rounds: int) -> int:
    """Kill one of two writers at a random moment, then the other; after each, everything acknowledged must be in a whole file."""
    path, dice = folder / "h200.json", random.Random(os.getpid())
    with tempfile.TemporaryDirectory() as elsewhere:  # what a first save imports must not take up all of a writer's time
        store.save(table(entry()), Path(elsewhere) / "h200.json")
    acknowledged: set[int] = set()
    for number in range(rounds):
        writers = [start(path, 1 + 10_000 * (2 * number + which)) for which in (0, 1)]
        for child, out in writers:
            time.sleep(dice.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if os.WTERMSIG(status) != signal.SIGKILL:
                print(f"round {number}: a writer failed before it was killed")
                return 1
            with os.fdopen(out, "rb") as acks:  # the writer is dead: this ends
                acknowledged |= {int(line) for line in acks.read().splitlines()}
            if path.exists():
                found, remarks = store.read(path)
                lost = acknowledged - {row.key.m for row in found.entries}
                if lost or remarks:
                    print(f"round {number}: lost {sorted(lost)}, remarks {remarks}")
                    return 1
    store.save(table(entry(GemmProblem.of(1, 1, 1))), path)  # no lock of a dead writer holds this one up
    left = sorted(file.name for file in folder.iterdir())
    print(f"{len(acknowledged)} rows acknowledged, {left} left")
    return 0 if acknowledged and set(left) <= {"h200.json", "h200.json.lock"} else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
