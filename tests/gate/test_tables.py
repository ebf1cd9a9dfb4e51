"""Every row of every packaged table is legal, and a sample is compiled; `python -m tests.gate.run_gate` compiles them all."""

import pytest

from heuristics import store
from kernel_zoo.gate import gate
from tests.gate.run_gate import rows_of

TABLES = sorted(store.PACKAGED.glob("*.json"))
SAMPLE = 6


def test_a_table_ships():
    """Without one the tests below would have nothing to run on."""
    assert TABLES, f"no table in {store.PACKAGED}"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_row_is_legal_on_its_device(path):
    refused = [
        (row.describe(), refusal)
        for row in rows_of(store.load(path))
        if (refusal := row.variant.refusal(row.problem, row.arch, row.tile))
    ]
    assert refused == []


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_sample_of_rows_compiles_to_what_it_promises(path):
    rows = list(rows_of(store.load(path)))
    results = gate(rows[:: max(1, len(rows) // SAMPLE)])
    assert [(result.row.describe(), result.faults) for result in results if not result.ok] == []
