"""Generated tables: every row modelled, legal, of few binaries, and no match for a measured one."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from heuristics import archs, choose, compare, generate
from heuristics.resources import ResourceTable
from heuristics.serialise import dumps, loads
from heuristics.table import problem_key, problem_of
from kernel_zoo import catalog
from kernel_zoo.build import specialise
from kernel_zoo.spec import Refusal

VARIANTS = catalog.VARIANTS


def binaries(arch):
    return lambda variant, problem, tile: frozenset(specialise(call) for call in variant.plan(problem, tile, arch).calls)


@cache
def made(name):
    arch = archs.get_arch(name)
    return generate.generate_table(arch, VARIANTS, (), "3.7.1", binaries(arch))


def distinct(table, arch):
    needs = binaries(arch)
    return {spec for row in table.entries for spec in needs(catalog.get(row.variant), problem_of(row.key), row.tile)}


def test_every_listed_device_has_measured_rows_to_use_or_a_generated_table():
    assert {*generate.DEVICES, *generate.BORROWERS} == set(archs.ARCHS)
    assert all(archs.device_name(gpu) == name for name, gpu in generate.DEVICES.items())


@pytest.mark.parametrize("name", generate.DEVICES)
def test_a_generated_table_is_of_its_device_and_says_that_nobody_measured_it(name):
    table, left_out = made(name)
    arch = archs.get_arch(name)
    assert left_out == []
    assert 100 <= len(table.entries) <= 130
    assert table.kinship(arch) == "exact"
    assert {row.source for row in table.entries} == {"modelled"}
    assert not any(row.torch_us or row.low_us or row.high_us or row.date for row in table.entries)
    assert table.protocol["measured"].startswith("nothing")
    assert not table.model
    assert all(len(row.runner_ups) == 2 for row in table.entries)
    assert compare.verify(table, VARIANTS) == []


@pytest.mark.parametrize("name", generate.DEVICES)
def test_its_kernels_are_few_enough_to_compile_all_of_them_in_the_gate(name):
    arch = archs.get_arch(name)
    table, _ = made(name)
    best = {row.key: min(seen.time_us for seen in row.measurements) for row in table.entries}
    assert len(distinct(table, arch)) <= 90
    assert max(row.time_us / best[row.key] for row in table.entries) <= 1.031


def test_the_problems_are_distinct_and_of_every_class_and_layout():
    problems = generate.problems()
    assert len({problem_key(problem) for problem in problems}) == len(problems)
    sixteen = [problem for problem in problems if problem.dtype == "bf16"]
    assert set(Counter(problem.shape_class for problem in sixteen)) == {
        "batched", "ragged", "gemv", "decode", "split-K", "large", "square", "prefill",
    }  # fmt: skip
    assert {problem.layout for problem in sixteen} == {"nn", "nt", "tn", "tt"}
    assert {problem.precision for problem in problems if problem.dtype == "fp32"} == {"ieee", "tf32"}


def test_it_is_the_same_each_time_and_survives_being_a_file():
    arch = archs.get_arch("a100")
    table, _ = made("a100")
    again, _ = generate.generate_table(arch, VARIANTS, (), "3.7.1", binaries(arch))
    assert dumps(again) == dumps(table)
    read, remarks = loads(dumps(table), table.name, "packaged")
    assert remarks == []
    assert dumps(read) == dumps(table)


def test_what_a_gate_refused_is_not_taken_again():
    arch = archs.get_arch("a100")
    row = made("a100")[0].entries[0]
    refused = {generate.kind(row.variant, problem_of(row.key), row.tile): "spills"}
    table, _ = generate.generate_table(arch, VARIANTS, (), "3.7.1", binaries(arch), refused)
    (other,) = (entry for entry in table.entries if entry.key == row.key)
    assert (row.variant, row.tile) not in {(seen.variant, seen.tile) for seen in other.measurements}


class Spilling(ResourceTable):
    """Data under which the persistent kernel always spills."""

    def for_problem(self, problem):
        class Needs:
            def refusal(self, arch, variant, tile):
                return Refusal("spills", "it spills", "no spills") if variant.name == "persistent" else None

        return Needs()


def test_resource_data_of_any_version_that_is_given_keeps_a_kernel_out():
    arch = archs.get_arch("a100")
    assert any(row.variant == "persistent" for row in made("a100")[0].entries)
    table, _ = generate.generate_table(arch, VARIANTS, (ResourceTable(80, "3.6.0"), Spilling(80, "3.7.1")), "3.7.1", binaries(arch))
    assert not any(seen.variant == "persistent" for row in table.entries for seen in row.measurements)
    assert "3.6.0, 3.7.1" in table.protocol["candidates"]


def test_a_problem_that_nothing_can_serve_is_left_out_and_named(monkeypatch):
    arch = archs.get_arch("a100")
    gemv = [catalog.get("gemv")]
    monkeypatch.setattr(generate, "problems", lambda: generate._of("nt", (1, 4096, 4096), (512, 512, 512)))
    table, left_out = generate.generate_table(arch, gemv, (), "3.7.1", binaries(arch))
    assert [row.key.m for row in table.entries] == [1]
    assert left_out == ["512 x 512 x 512 16bit nt: nothing of the zoo can serve it"]


def test_the_choice_takes_a_modelled_row_and_says_what_it_is():
    table, _ = made("a100")
    found = choose.choose(problem_of(table.entries[5].key), archs.get_arch("a100"), VARIANTS, [table])
    assert found.rung == "exact"
    assert "nobody measured" in found.reason


def test_a_measured_row_of_the_user_beats_a_modelled_packaged_one():
    arch = archs.get_arch("a100")
    table, _ = made("a100")
    row = table.entries[5]
    other = row.runner_ups[0]
    own = replace(
        row, variant=other.variant, tile=other.tile, digest=other.digest, source="measured", date="2026-01-01", runner_ups=()
    )
    user = replace(table, name="mine", entries=(own,), origin="user")
    found = choose.choose(problem_of(row.key), arch, VARIANTS, [table, user])
    assert (found.variant, found.tile, found.table) == (other.variant, other.tile, "mine")
    for tables in ((table, user), (user, table)):
        merged = {entry.key: entry for entry in compare.merge(*tables).entries}
        assert merged[row.key] == own
        assert len(merged) == len(table.entries)
