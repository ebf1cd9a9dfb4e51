"""Gate every row of every packaged table: `python -m tests.gate.run_gate`, under each supported version of triton.

Prints the rows that fail and one summary line. A row that fails must leave its table, or its kernel must change.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from heuristics import store
from heuristics.archs import get_arch
from heuristics.table import HeuristicTable, problem_of
from kernel_zoo import catalog
from kernel_zoo.gate import GateRow, gate


def rows_of(table: HeuristicTable) -> Iterator[GateRow]:
    """A table's rows; those that name an opaque variant have nothing to compile."""
    arch = get_arch(table.environment.device)
    for entry in table.entries:
        variant = catalog.get(entry.variant)
        if variant.recipe is not None and entry.tile is not None:
            yield GateRow(variant, problem_of(entry.key), entry.tile, arch, Path(table.name).name)


def main(argv: list[str] | None = None) -> int:
    """0 where every row passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, help="files; by default every packaged table")
    parser.add_argument("--workers", type=int, help="processes; the number of CPUs by default")
    options = parser.parse_args(argv)
    paths = options.tables or sorted(store.PACKAGED.glob("*.json"))
    start = time.perf_counter()
    results = gate([row for path in paths for row in rows_of(store.load(path))], options.workers)
    failed = [result for result in results if not result.ok]
    for result in failed:
        print(f"{result.row.describe()}: {'; '.join(result.faults)}")
    seconds = time.perf_counter() - start
    passed, where = len(results) - len(failed), f"{len(paths)} tables, triton {version('triton')}"
    print(f"gate: {passed} of {len(results)} rows pass in {where}, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
