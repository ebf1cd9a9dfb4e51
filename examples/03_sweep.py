"""Sweep sizes and keep the results. On a GPU: against torch.matmul. Without one: small sizes, checked through the interpreter."""

import sys
import tempfile
from pathlib import Path

from bench import records
from bench.cli import app


def main(folder: Path) -> None:
    results = folder / "sweep.jsonl"
    # The same as: minblas bench --limit 4 --no-eager --out sweep.jsonl
    app(["bench", "--limit", "4", "--no-eager", "--out", str(results)], standalone_mode=False)

    # One JSON object a line: where it was measured, then a row per shape.
    environment, rows = records.read(results)
    print(f"{len(rows)} rows from {environment['gpu_name']}, torch {environment['torch']}, triton {environment['triton']}")
    for row in rows:
        speed = f"{row.ratio:.2f} times torch's speed" if row.ratio else "not timed"
        print(f"{row.name}: {row.status}, {row.variant}, {speed}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
