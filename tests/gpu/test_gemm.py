"""Whole calls: shapes, huge offsets, precision settings, CUDA graphs, streams, determinism, batch invariance, Inf and NaN."""

import math

import pytest
import torch

import minblas
from kernel_zoo.reference import make_slots, verify
from kernel_zoo.spec import GemmProblem
from minblas import errors
from tests.gpu import planned
from tests.gpu.support import DEVICE, case_of, served, sizes_for, tensors

SHAPES = [case_of(problem) if problem.flops else case_of(problem, "aten") for problem in planned.shape_problems()]
TRITON_VARIANTS = served()
each_variant = pytest.mark.parametrize("variant", TRITON_VARIANTS)


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


def needs(gigabytes):
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes * 2**30 * 1.1:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory, there are {free >> 30}")


def close(ours, a, b):
    """Within two roundings of the float64 product and what fp32 sums lose."""
    exact = a.double() @ b.double()
    magnitude = a.double().abs() @ b.double().abs()
    info = torch.finfo(ours.dtype)
    allowed = info.eps * exact.abs() + info.eps * info.tiny + 2 * math.sqrt(a.shape[-1]) * 2**-24 * magnitude
    error = (ours.double() - exact).abs()
    assert bool((error <= allowed).all()), f"worst {float((error / allowed).max()):.3g} of the bound"


@pytest.mark.parametrize("case", SHAPES, ids=[case.problem.describe().replace(" ", "") for case in SHAPES])
def test_a_whole_call_is_right(case):
    problem = case.problem
    slots = make_slots(problem, DEVICE, seed=1)
    given = tensors(problem, slots)
    minblas.stats(reset=True)
    result = minblas.gemm(given["a"], given["b"], out=given["out"], precision=problem.precision or None)
    assert result is given["out"]
    verdict = verify(problem, slots)
    assert verdict.ok, f"{verdict.message}\n{minblas.stats()}"
    assert "aten" not in minblas.stats().calls


# sizes and offsets past 31 bits


def test_a_column_of_a_matrix_of_more_than_2_31_elements():
    needs(9)
    wide = torch.empty(16909322, 127, device=DEVICE)
    column = wide[:, 3:4]
    column.copy_(torch.randn(16909322, 1, device=DEVICE))
    exact = column.double().square().sum()
    assert abs(float(minblas.mm(column.T, column)) - exact) <= 2 * math.sqrt(column.shape[0]) * 2**-24 * exact
    tall = minblas.gemm(column, torch.full((1, 2), 2.0, device=DEVICE))
    assert torch.equal(tall, (2 * column).expand(-1, 2))


@pytest.mark.parametrize("n", [65536, 131072])
def test_the_last_corner_of_an_output_of_2_31_and_2_32_elements(n):
    needs(2 * 32768 * n / 2**30 + 1)
    x, w = randn(32768, 128), randn(n, 128)
    out = torch.full((32768, n), math.nan, device=DEVICE, dtype=torch.bfloat16)
    minblas.gemm(x, w, trans_b=True, out=out)
    for rows in (slice(0, 64), slice(-64, None)):
        for cols in (slice(0, 64), slice(-64, None)):
            close(out[rows, cols], x[rows], w[cols].T)
    assert not bool(out[16384].isnan().any())


@pytest.mark.parametrize("transposed", [False, True])
def test_a_vector_times_a_matrix_of_more_than_2_31_elements(transposed):
    needs(5)
    rows, cols = 35783, 65133
    a = torch.empty(rows, cols, device=DEVICE, dtype=torch.bfloat16)
    for start in range(0, rows, 4096):
        a[start : start + 4096] = randn(*a[start : start + 4096].shape)
    a = a.T if transposed else a
    x = randn(a.shape[1], 1)
    y = minblas.mm(a, x)
    for part in (slice(0, 64), slice(-64, None)):
        close(y[part], a[part], x)


def test_operands_far_apart_in_one_buffer():
    needs(9)
    buffer = torch.empty(2**32 + 2**20, device=DEVICE, dtype=torch.bfloat16)
    a = buffer.as_strided((64, 64), (2**26, 1))
    b = buffer.as_strided((64, 64), (1, 2**26), 64)
    out = buffer.as_strided((64, 64), (2**26, 1), 128)
    a.copy_(randn(64, 64))
    b.copy_(randn(64, 64))
    for variant in ("tiled", "persistent", "tma", None):
        out.fill_(math.nan)
        close(minblas.gemm(a, b, out=out, variant=variant), a, b)


# precision


def test_fp32_is_exact_unless_tf32_was_allowed_and_the_setting_is_read_per_call():
    ramp = torch.arange(8192.0, device=DEVICE)[None]
    one = torch.ones(1, 1, device=DEVICE)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        seen = []
        for setting in ("ieee", "tf32", "ieee"):
            torch.backends.cuda.matmul.fp32_precision = setting
            seen.append(torch.equal(minblas.mm(one.T, ramp), ramp))
            assert torch.equal(minblas.gemm(one, ramp, precision="ieee"), ramp)
        square = torch.eye(256, device=DEVICE), 1 + torch.arange(256.0, device=DEVICE).repeat(256, 1) * 2**-20
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert torch.equal(minblas.mm(*square), square[1])
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert not torch.equal(minblas.mm(*square), square[1])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert seen[0]
    assert seen[2]


def test_tf32_inputs_are_rounded_to_nearest():
    a = torch.full((128, 128), 1 + 2**-11 + 2**-20, device=DEVICE)
    got = minblas.gemm(a, torch.eye(128, device=DEVICE), precision="tf32")
    assert torch.equal(got, torch.full_like(a, 1 + 2**-10))


# CUDA graphs and streams


@each_variant
def test_a_captured_call_computes_anew_at_every_replay(variant):
    m, n, k = sizes_for(variant)
    a, b, out = randn(m, k), randn(n, k).T, torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
    minblas.gemm(a, b, out=out, variant=variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        minblas.gemm(a, b, out=out, variant=variant)
        fresh = minblas.gemm(a, b, variant=variant)
    for _ in range(2):
        a.copy_(randn(m, k))
        b.copy_(randn(k, n))
        out.fill_(math.nan)
        graph.replay()
        close(out, a, b)
        assert torch.equal(out, fresh)
        assert torch.equal(out, minblas.gemm(a, b, variant=variant))  # eager between replays, on the same plan


@each_variant
def test_capture_then_eager_then_replay_do_not_share_a_workspace(variant):
    m, n, k = sizes_for(variant)
    first, second = (randn(m, k), randn(n, k).T), (randn(m, k), randn(n, k).T)
    minblas.gemm(*first, variant=variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = minblas.gemm(*first, variant=variant)
    eager = minblas.gemm(*second, variant=variant)
    graph.replay()
    again = minblas.gemm(*second, variant=variant)
    close(captured, *first)
    assert torch.equal(eager, again)


def test_a_cold_call_during_capture_is_refused_and_the_next_capture_works():
    a, b = randn(72, 200), randn(200, 104)
    graph = torch.cuda.CUDAGraph()
    minblas.gemm(randn(64, 64), randn(64, 64))
    with pytest.raises(errors.ColdCallError, match="capture"), torch.cuda.graph(graph):
        minblas.gemm(a, b, activation="leaky_relu", variant="tiled")
    torch.cuda.synchronize()
    expected = minblas.gemm(a, b, activation="leaky_relu", variant="tiled")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = minblas.gemm(a, b, activation="leaky_relu", variant="tiled")
    graph.replay()
    assert torch.equal(captured, expected)


def test_two_streams_at_once():
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [(randn(64, 8192), randn(8192, 256)) for _ in streams]
    minblas.gemm(*inputs[0], variant="split_k")
    torch.cuda.synchronize()
    results = []
    for _ in range(8):
        for stream, given in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(minblas.gemm(*given, variant="split_k"))
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        assert torch.equal(result, results[i % len(streams)])
        close(result, *inputs[i % len(streams)])


# repeatability


@each_variant
def test_results_repeat_bit_for_bit(variant):
    m, n, k = sizes_for(variant)
    a, b = randn(m, k), randn(k, n)
    results = {minblas.gemm(a, b, variant=variant, deterministic=True).view(torch.int16).sum().item() for _ in range(5)}
    assert len(results) == 1
    assert torch.equal(minblas.gemm(a, b, variant=variant), minblas.gemm(a, b, variant=variant))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_rows_bits_do_not_depend_on_m_or_the_batch(dtype, transposed):
    n = k = 2048
    x = randn(1031, k, dtype=dtype)
    w = randn(n, k, dtype=dtype).T if transposed else randn(k, n, dtype=dtype)
    rows = {m: minblas.gemm(x[:m], w, batch_invariant=True)[0] for m in (1, 2, 3, 4, 5, 16, 17, 33, 64, 65, 128, 257, 1024, 1031)}
    assert all(torch.equal(row, rows[1]) for row in rows.values()), [m for m, row in rows.items() if not torch.equal(row, rows[1])]
    batched = minblas.gemm(x[None, :5].expand(3, 5, k), w.expand(3, k, n), batch_invariant=True)
    assert torch.equal(batched[2, 0], rows[1])


# Inf and NaN


@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (64, 64, 8192), (1000, 1001, 1003), (2048, 2048, 512)], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_inf_and_nan_end_where_they_must(sizes, dtype):
    problem = GemmProblem.of(*sizes, dtype)
    slots = make_slots(problem, DEVICE, seed=1, fill="special")
    given = tensors(problem, slots)
    minblas.gemm(given["a"], given["b"], out=given["out"], precision=problem.precision or None)
    verdict = verify(problem, slots)
    assert verdict.ok, verdict.message


def test_beta_0_does_not_read_c_and_alpha_0_reads_neither_a_nor_b():
    bad = torch.full((40, 48), math.nan, device=DEVICE, dtype=torch.float16)
    a, b = randn(40, 56, dtype=torch.float16), randn(56, 48, dtype=torch.float16)
    close(minblas.gemm(a, b, beta=0.0, c=bad), a, b)
    c = randn(40, 48, dtype=torch.float16)
    got = minblas.gemm(torch.full_like(a, math.inf), torch.full_like(b, math.nan), alpha=0.0, beta=2.0, c=c)
    assert torch.equal(got, 2 * c)


def test_recycled_memory_full_of_nan_does_not_show():
    for _ in range(3):
        for variant in TRITON_VARIANTS:
            m, n, k = sizes_for(variant)
            dirty = torch.full((96, 256), math.nan, device=DEVICE)
            workspace = torch.full((64, 96, 256), math.nan, device=DEVICE)
            del dirty, workspace
            a, b = randn(m, k), randn(k, n)
            close(minblas.gemm(a, b, variant=variant), a, b)
