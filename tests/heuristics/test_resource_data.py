"""The committed resource data: complete for the gated versions, of the kernels as they are, and at peace with the tables."""

from __future__ import annotations

import pytest

from heuristics import resources, store
from heuristics.archs import get_arch
from heuristics.legality import Legality
from heuristics.table import problem_of
from kernel_zoo import catalog, census
from kernel_zoo.spec import FORMS, binary_class, tile_key
from kernel_zoo.triton_compat import GATED

BY_NAME = {variant.name: variant for variant in catalog.VARIANTS}
CAPABILITIES = (80, 86, 89, 90, 100, 120)


#: Data that are whole; elsewhere the formulas decide, and `minblas resources verify` lists what is missing.
COMPLETE = [*((cc, triton) for cc in (80, 89, 90) for triton in GATED), (120, "3.7.1")]


def test_data_are_of_known_capabilities_and_versions():
    assert set(COMPLETE) <= set(resources.listed())
    assert {cc for cc, _ in resources.listed()} <= set(CAPABILITIES)
    assert {triton for _, triton in resources.listed()} <= set(GATED)


def test_files_are_as_they_would_be_written_and_small():
    for cc, triton in resources.listed():
        path = resources.path_of(cc, triton)
        text = path.read_text(encoding="utf-8")
        table = resources.loads(text)
        assert (table.cc, table.triton) == (cc, triton)
        assert resources.dumps(table) == text, f"{path.name} was edited by hand"
        assert len(text) < 200_000


def test_the_data_are_of_the_kernels_as_they_are():
    for cc, triton in resources.listed():
        table = resources.known(cc, triton)
        stale = [name for name, digest in table.digests.items() if BY_NAME[name].digest != digest]
        assert not stale, f"sm_{cc} triton {triton}: minblas resources build --arch sm_{cc} compiles {stale} again"


@pytest.mark.parametrize(("cc", "triton"), COMPLETE)
def test_every_candidate_is_in_the_data_as_far_as_it_had_to_be_compiled(cc, triton):
    arch = get_arch(f"sm_{cc}")
    table = resources.known(cc, triton)
    for item in census.items(catalog.VARIANTS, arch):
        record = table.records[item.key]
        known = {form: getattr(record, form) for form in FORMS if getattr(record, form) is not None}
        assert census.next_form(known, arch) is None, item.key


def packaged_rows():
    for path in sorted(store.PACKAGED.glob("*.json")):
        table = store.load(path)
        yield from ((table.name, get_arch(table.environment.device), entry) for entry in table.entries)


@pytest.mark.parametrize("triton", GATED)
def test_no_packaged_row_is_refused(triton):
    refused, unknown = [], []
    for name, arch, entry in packaged_rows():
        data, problem = resources.known(arch.cc, triton), problem_of(entry.key)
        if data is None:
            continue
        may = Legality(problem, arch, data)
        for seen in entry.measurements:
            variant = BY_NAME[seen.variant]
            if seen.tile is None or variant.recipe is None:
                continue
            refusal = may.refusal(variant, seen.tile)
            if refusal is not None:
                refused.append(f"{name}: {entry.key.describe()}: {seen.variant} {seen.tile.describe()}: {refusal.sentence}")
            key = f"{variant.name} {binary_class(problem)} {tile_key(problem, seen.tile)}"
            if key not in data.records and (arch.cc, triton) in COMPLETE:
                unknown.append(key)
    assert refused == []
    assert sorted(set(unknown)) == []
