"""The committed resource data: complete for the gated versions, of the kernels as they are, and at peace with the tables."""

from __future__ import annotations

import pytest

from heuristics import resources, store
from heuristics.archs import ARCHS, get_arch
from heuristics.legality import Legality
from heuristics.table import problem_of
from kernel_zoo import catalog, census
from kernel_zoo.spec import FORMS, binary_class, tile_key
from kernel_zoo.triton_compat import GATED

BY_NAME = {variant.name: variant for variant in catalog.VARIANTS}
CAPABILITIES = (80, 86, 89, 90, 100, 120)


@pytest.fixture(scope="module", params=GATED)
def hopper(request):
    table = resources.known(90, request.param)
    assert table is not None, f"there are no data for sm_90 and Triton {request.param}: minblas resources build --arch sm_90"
    return table


def test_there_are_data_where_kernels_were_tuned():
    """Elsewhere the formulas decide; `minblas resources verify` lists what is missing."""
    assert set(resources.listed()) >= {(90, triton) for triton in GATED}
    assert {cc for cc, _ in resources.listed()} <= set(CAPABILITIES)


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


def test_every_candidate_is_in_the_data_as_far_as_it_had_to_be_compiled(hopper):
    arch = ARCHS["h200"]
    for item in census.items(catalog.VARIANTS, arch):
        record = hopper.records[item.key]
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
            if key not in data.records and arch.cc == 90:  # modelled rows are gated with their table where data are missing
                unknown.append(key)
    assert refused == []
    assert sorted(set(unknown)) == []
