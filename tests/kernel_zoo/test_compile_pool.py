"""Compiling in worker processes: the parent finds the binary on disk, and no kernel can take the others down."""

from __future__ import annotations

import os
import subprocess

import pytest
import triton
import triton.language as tl

from heuristics.archs import ARCHS
from kernel_zoo import build, catalog
from kernel_zoo.compile_pool import Answer, CompilePool, compile_all, job_of
from kernel_zoo.compile_worker import compile_job, find_kernel
from kernel_zoo.spec import GemmCall, GemmProblem, KernelCall
from tests.minblas.user_kernels import TILES, recipe, tutorial_kernel

H200 = ARCHS["h200"]
PROBLEM = GemmProblem.of(64, 64, 64, "fp16")


@triton.jit
def broken_kernel(A, K: tl.constexpr):
    tl.store(A, tl.arange(0, K))  # K is no power of two


@triton.jit
def aborting_kernel(A, K: tl.constexpr):
    tl.store(A, K)


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def spec_of(tile=TILES[0]):
    return build.specialise(recipe(GemmCall.of(PROBLEM, H200), tile))


def simple(kernel, k):
    return build.specialise(KernelCall(kernel, (1,), (GemmCall.of(PROBLEM, H200).a,), {"K": k}))


def test_binaries_land_where_the_parent_looks(tmp_path):
    variant = catalog.get("tiled")
    tile = variant.space(PROBLEM, H200)[0]
    spec = build.specialise(variant.plan(PROBLEM, tile, H200).calls[0])
    with CompilePool(1) as pool:
        answer = pool.submit(spec, 90).result(timeout=120)
        assert answer == Answer("ok", resources=build.resources(build.compile_binary(spec, 90)))
        assert pool.submit(spec, 90) is pool.submit(spec, 90)
    before = set(tmp_path.rglob("*.cubin"))
    assert before
    build.compile_binary(spec, 90)
    assert set(tmp_path.rglob("*.cubin")) == before


def test_a_kernel_that_does_not_compile_says_why():
    with CompilePool(1) as pool:
        bad, good = pool.submit(simple(broken_kernel, 48), 90), pool.submit(spec_of(), 90)
        assert bad.result(timeout=120).status == "failed"
        assert "power of 2" in bad.result().message
        assert good.result(timeout=120).status == "ok"


def test_a_compiler_that_dies_costs_one_job(monkeypatch, tmp_path):
    script = tmp_path / "compile_worker.py"
    script.write_text(
        "import os, sys\n"
        "from kernel_zoo import compile_worker\n"
        "real = compile_worker.compile_job\n"
        "compile_worker.compile_job = lambda job: os.abort() if 'aborting' in job[1] else real(job)\n"
        "compile_worker.serve(sys.stdin.buffer, os.fdopen(os.dup(1), 'wb'))\n"
    )
    monkeypatch.setattr("kernel_zoo.compile_pool._SCRIPT", script)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    with CompilePool(1) as pool:
        dead, alive = pool.submit(simple(aborting_kernel, 1), 90), pool.submit(spec_of(), 90)
        assert dead.result(timeout=120) == Answer("failed", "the compiler process ended (exit code -6)")
        assert alive.result(timeout=120).status == "ok"


def test_a_worker_that_cannot_start_leaves_the_work_to_the_caller(monkeypatch, tmp_path):
    script = tmp_path / "compile_worker.py"
    script.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr("kernel_zoo.compile_pool._SCRIPT", script)
    with CompilePool(1) as pool:
        answer = pool.submit(spec_of(), 90).result(timeout=60)
    assert answer == Answer("unknown", "the compiler process could not start (exit code 3)")


def test_what_another_process_cannot_name_is_left_to_the_caller(monkeypatch):
    @triton.jit
    def local_kernel(A, K: tl.constexpr):
        tl.store(A, K)

    assert job_of(simple(local_kernel, 1), 90) is None
    monkeypatch.setattr(tutorial_kernel.fn, "__module__", "__main__")
    assert job_of(spec_of(), 90) is None
    with CompilePool(2) as pool:
        assert pool.submit(spec_of(), 90).result(timeout=1).status == "unknown"
        assert pool._threads == []


def test_no_workers():
    with CompilePool(0) as pool:
        assert pool.submit(spec_of(), 90).result(timeout=1).status == "unknown"


def test_without_a_process_to_be_had_the_caller_compiles(monkeypatch):
    def refuse(*arguments, **keywords):
        raise OSError("resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with CompilePool(1) as pool:
        answers = [pool.submit(spec_of(tile), 90).result(timeout=10) for tile in TILES]
    assert all(answer.status == "unknown" and "resource temporarily" in answer.message for answer in answers)


def test_closing_early_drops_what_is_pending():
    with CompilePool(1) as pool:
        futures = [pool.submit(spec_of(tile), 90) for tile in TILES for _ in range(3)]
    assert all(future.done() or future.cancelled() for future in futures)


def test_the_worker_itself():
    job = job_of(spec_of(), 90)
    assert find_kernel(job[0], job[1]) is tutorial_kernel
    assert compile_job(job).status == "ok"
    assert compile_job(("no.such.module", *job[1:])).status == "unknown"
    assert compile_job((*job[:2], ("*fp16",) * 3, *job[3:])).status == "failed"


def test_a_kernel_that_workers_cannot_import_is_compiled_here():
    @triton.jit
    def local_kernel(A, K: tl.constexpr):
        tl.store(A, 0.0)

    job = (simple(local_kernel, 1), 90)
    assert job_of(*job) is None
    answers = compile_all([job, job, (spec_of(), 90)], workers=2)
    assert [answer.status for answer in answers.values()] == ["ok", "ok"]
    assert answers[job].resources.spills == 0
