from collections import Counter

import pytest

from heuristics import suites


def test_every_suite_is_there_with_its_source():
    public = [suite for suite in suites.SUITES.values() if not suite.fitting]
    assert len(public) == 41
    assert sum(len(suite.cases) for suite in public) == 1056
    assert all(len(suite.source) > 20 for suite in suites.SUITES.values())


def test_counts_by_dtype():
    counts = Counter(case.dtype for suite in suites.SUITES.values() if not suite.fitting for case in suite.cases)
    assert counts == {"bf16": 420, "fp16": 308, "fp32": 203, "fp64": 62, "fp8": 24, "int8": 24, "tf32": 15}


def test_class_totals():
    found = Counter(problem.shape_class for problem in suites.problems("all"))
    expected = {
        "prefill": 238,
        "decode": 197,
        "batched": 181,
        "ragged": 111,
        "square": 106,
        "gemv": 104,
        "large": 90,
        "split-K": 23,
    }
    assert found == expected


def test_all_16bit_leaves_batched_out():
    problems = suites.problems("all-16bit")
    found = Counter(problem.shape_class for problem in problems)
    assert found == {"prefill": 196, "decode": 137, "gemv": 77, "large": 71, "square": 71, "ragged": 50, "split-K": 21}
    assert {problem.dtype for problem in problems} == {"fp16", "bf16"}
    assert {problem.shape_class for problem in suites.problems("all-16bit-batched")} == {"batched"}


def test_a_case_becomes_the_problem_it_names():
    case = suites.SUITES["llama3-8b"].cases[0]
    assert case == suites.Case(1, 1, 4096, 4096, "nt", "bf16")
    problem = case.problem
    assert (problem.m, problem.n, problem.k, problem.layout) == (1, 4096, 4096, "nt")
    assert problem.b.strides == (0, 1, 4096)  # stored (N, K)


def test_tf32_is_fp32_with_a_precision():
    problems = suites.problems("all-tf32")
    assert {(problem.dtype, problem.precision) for problem in problems} == {("fp32", "tf32")}


def test_filter_by_dtype_and_no_duplicates():
    twice = suites.cases(["square-pow2", "square-pow2"], "16bit")
    assert len(twice) == len(set(twice)) == 11
    assert {case.dtype for case in suites.cases("square-pow2", "bf16")} == {"bf16"}


def test_unknown_suite_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"'llama3-8' is not known; did you mean llama3-8b"):
        suites.problems("llama3-8")


def test_what_the_model_is_fitted_to_is_in_no_group():
    fitting = set(suites.cases("off-grid"))
    assert len(fitting) == 165
    for group in suites.GROUPS:
        assert not fitting & set(suites.cases(group))
