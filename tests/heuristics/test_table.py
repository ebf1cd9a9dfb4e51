import math
from dataclasses import replace

import pytest

from heuristics import suites
from heuristics.archs import get_arch
from heuristics.distance import distance
from heuristics.table import Environment, problem_key, problem_of
from kernel_zoo.spec import Epilogue, GemmProblem, Operand
from tests.heuristics.fakes import A100_ENVIRONMENT, H100, H200, H200_ENVIRONMENT, PROBLEM, entry, table


def of(m, n, k, layout="nt", dtype="bf16", **more):
    return GemmProblem.of(m, n, k, dtype, layout, **more)


def test_fp16_and_bf16_share_rows():
    assert problem_key(of(8, 8, 8, dtype="fp16")) == problem_key(of(8, 8, 8))


C = Operand.dense("bf16", 64, 64)


@pytest.mark.parametrize(
    "other",
    [
        of(64, 64, 64, "nn"),
        of(64, 64, 64, "tn"),
        of(64, 64, 64, out_dtype="fp32"),
        of(64, 64, 64, dtype="fp32"),
        of(64, 64, 64, dtype="fp32", precision="tf32"),
        of(64, 64, 64, batch=2),
        of(64, 64, 64, epilogue=Epilogue(beta="1", c=C)),
        replace(of(64, 64, 64), a=Operand("bf16", 64, 64, (0, 65, 1))),
        replace(of(64, 64, 64), a=Operand("bf16", 64, 64, (0, 64, 1), align=2)),
        replace(of(64, 64, 64), out=Operand.dense("bf16", 64, 64, transposed=True)),
    ],
    ids=lambda problem: problem_key(problem).describe(),
)
def test_what_must_not_share_a_row(other):
    assert problem_key(other) != problem_key(of(64, 64, 64))


def test_epilogues_that_do_not_read_c_share_a_row():
    bias = Operand("bf16", 64, 64, (0, 0, 1))
    rich = of(64, 64, 64, epilogue=Epilogue(alpha="x", bias=bias, activation="gelu"))
    assert problem_key(rich) == problem_key(of(64, 64, 64))


def test_a_key_stands_for_a_problem_with_that_key():
    # The compile gate and the re-ranking build problems from rows: every public shape must come back as itself.
    for problem in suites.problems("all"):
        key = problem_key(problem)
        assert problem_key(problem_of(key)) == key


def test_a_key_that_reads_c_or_is_strided_comes_back():
    reads = problem_key(of(64, 96, 32, epilogue=Epilogue(beta="1", c=C)))
    strided = problem_key(replace(of(64, 64, 64), b=Operand("bf16", 64, 64, (0, 256, 2))))
    assert problem_key(problem_of(reads)) == reads
    assert strided.layout == "ns"
    assert problem_key(problem_of(strided)) == strided


def test_lookup_is_exact():
    mine = table(entry(of(64, 64, 64)), entry(of(128, 64, 64)))
    assert mine.lookup(problem_key(of(128, 64, 64))) is mine.entries[1]
    assert mine.lookup(problem_key(of(129, 64, 64))) is None


def test_nearest_orders_by_octaves_and_weighs_k_half():
    far_in_k, far_in_m = entry(of(1024, 1024, 4096)), entry(of(4096, 1024, 1024))
    mine = table(far_in_m, far_in_k)
    found = mine.nearest(problem_key(PROBLEM), 5)
    assert [(far, row) for far, row in found] == [(1.0, far_in_k), (2.0, far_in_m)]
    assert mine.nearest(problem_key(PROBLEM), 5, within=1.0) == [(1.0, far_in_k)]
    assert len(mine.nearest(problem_key(PROBLEM), 1)) == 1


@pytest.mark.parametrize("other", [of(1024, 1024, 1024, "nn"), of(1024, 1024, 1024, dtype="fp32"), of(1024, 1024, 1023)])
def test_nearest_never_mixes_classes(other):
    assert table(entry(other)).nearest(problem_key(PROBLEM), 5) == []
    assert distance(problem_key(other), problem_key(PROBLEM)) == math.inf


def test_distance_agrees_with_nearest():
    other = of(700, 3000, 160, batch=1)
    (far, _), *_ = table(entry(other)).nearest(problem_key(PROBLEM), 1)
    assert far == distance(problem_key(other), problem_key(PROBLEM)) > 0


@pytest.mark.parametrize("size", [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_empty_problems_are_near_nothing(size):
    empty = of(*size)
    assert table(entry(PROBLEM)).nearest(problem_key(empty), 3) == []
    assert table(entry(empty)).nearest(problem_key(PROBLEM), 3) == []


def test_kinship():
    assert table().kinship(H200) == "exact"
    assert table().kinship(H100) == "borrowed"  # same capability and SM count, another memory
    assert table(environment=A100_ENVIRONMENT).kinship(H200) is None


def test_a_slice_of_a_gpu_is_a_device_of_its_own():
    half = Environment("NVIDIA H200", (9, 0), 66)
    assert half.device == "h200-66sm"
    assert table(environment=half).kinship(H200) == "borrowed"
    assert table(environment=half).kinship(replace(H200, name="h200-66sm", sm_count=66)) == "exact"
    assert H200_ENVIRONMENT.device == "h200"


def test_a_device_that_is_not_listed_can_have_tables():
    own = Environment("NVIDIA L40S", (8, 9), 142)
    assert table(environment=own).kinship(replace(get_arch("l4"), name="l40s", sm_count=142)) == "exact"
