"""The arithmetic of the summary, and results files that survive a round trip."""

import json
import math

import pytest

from bench import html, plots, records, report
from bench.records import ShapeResult
from kernel_zoo.spec import GemmProblem


def timed(m, n, k, ratio, *, variant="tiled", dtype="bf16", layout="nt", batch=1, status="ok", spread=0.02, precision=""):
    problem = GemmProblem.of(m, n, k, dtype, layout, batch=batch, precision=precision)
    return ShapeResult.of(
        problem,
        "test",
        status=status,
        variant=variant,
        rung="exact",
        time_us=10.0,
        torch_us=10.0 * ratio,
        ratio=ratio,
        ratio_low=ratio * (1 - spread),
        ratio_high=ratio * (1 + spread),
        compile_seconds=0.5,
    )


@pytest.fixture
def results():
    return [
        timed(4096, 4096, 4096, 0.5),
        timed(8192, 8192, 8192, 2.0, variant="tma"),
        timed(1024, 1024, 1024, 0.9),
        timed(512, 512, 512, 0.99),
        timed(1, 4096, 4096, 1.3, variant="gemv"),
        timed(16, 4096, 4096, 1.1, variant="aten"),
        timed(127, 127, 127, 3.0),
        timed(64, 64, 64, 0.7, batch=8),
        timed(2048, 2048, 2048, 1.0, dtype="fp32"),
    ]


def test_geomean_is_the_exponential_of_the_mean_logarithm():
    assert report.geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert report.geomean([4.0]) == pytest.approx(4.0)


def test_geomean_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        report.geomean([])


@pytest.mark.parametrize(("fraction", "value"), [(0.0, 1.0), (0.1, 1.4), (0.5, 3.0), (1.0, 5.0)])
def test_percentile_interpolates_between_neighbours(fraction, value):
    assert report.percentile([5.0, 1.0, 3.0, 2.0, 4.0], fraction) == pytest.approx(value)


def test_classes_are_summarised_apart_and_in_order(results):
    lines = report.by_class(results)
    names = [line.name for line in lines]
    assert names == ["large", "square", "decode", "gemv", "ragged", "batched", "fp32 ieee", "16-bit", "16-bit aligned", "all"]
    large = lines[0]
    assert (large.shapes, large.timed, large.worst_shape) == (2, 2, "4096 x 4096 x 4096 bf16 nt")
    assert large.geomean == pytest.approx(1.0)
    assert large.shares == {"tiled": 0.5, "tma": 0.5}


def test_totals_leave_batched_and_then_ragged_out(results):
    lines = {line.name: line for line in report.by_class(results)}
    assert lines["16-bit"].shapes == 7
    assert lines["16-bit aligned"].shapes == 6
    assert lines["16-bit aligned"].geomean == pytest.approx((0.5 * 2.0 * 0.9 * 0.99 * 1.3 * 1.1) ** (1 / 6))
    assert lines["all"].shapes == 9


def test_a_shape_counts_as_slower_only_where_its_interval_says_so(results):
    lines = {line.name: line for line in report.by_class(results)}
    assert lines["square"].slower == 1  # 0.9 within 2% is, 0.99 within 2% is not


def test_aten_is_counted_apart(results):
    lines = {line.name: line for line in report.by_class(results)}
    assert lines["decode"].aten == 1.0
    assert lines["large"].aten == 0.0


def test_wrong_shapes_count_and_are_left_out_of_the_mean():
    lines = report.by_class([timed(512, 512, 512, 0.9), timed(1024, 1024, 1024, 100.0, status="wrong")])
    assert lines[0].wrong == 1
    assert lines[0].geomean == pytest.approx(0.9)
    assert [fault.m for fault in report.faults([timed(8, 8, 8, 1.0, status="failed"), timed(8, 8, 8, 1.0)])] == [8]


def test_shapes_without_a_ratio_have_no_mean():
    line = report.summarise("x", [ShapeResult.of(GemmProblem.of(8, 8, 8), "test", status="unserved")])
    assert line.geomean is None
    assert line.unserved == 1


def test_a_file_of_results_survives_a_round_trip(tmp_path, results):
    path = tmp_path / "deep" / "results.jsonl"
    records.write(path, {"gpu_name": "H200", "date": "2026-01-01"}, results)
    environment, read = records.read(path)
    assert environment == {"gpu_name": "H200", "date": "2026-01-01"}
    assert [result.name for result in read] == [result.name for result in results]
    assert [result.ratio_low for result in read] == pytest.approx([result.ratio_low for result in results], rel=1e-4)
    assert json.loads(path.read_text().splitlines()[0])["kind"] == "environment"


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind": "environment"}\n{"kind": "sh\n')
    with pytest.raises(ValueError, match=r"results\.jsonl:2 is not a row"):
        records.read(path)


def test_tables_render(results):
    from rich.console import Console

    console = Console(width=220, record=True)
    console.print(report.class_table(results))
    console.print(report.shape_table(results, "shapes"))
    text = console.export_text()
    assert "4096 x 4096 x 4096 bf16 nt" in text
    assert "geomean" in text
    assert report.slowest(results, 1)[0].ratio == 0.5


def test_plots_are_written_as_png(tmp_path, results):
    environment = {"gpu_name": "H200", "bandwidth_gbps": 4800.0, "peak_tflops_bf16": 989.0, "date": "2026-01-01"}
    files = plots.draw(results, environment, tmp_path)
    assert sorted(file.name for file in files) == ["ratios.png", "roofline.png", "squares.png"]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files)


def test_the_page_holds_its_pictures_and_every_shape(tmp_path, results):
    pictures = plots.draw(results, {}, tmp_path)
    text = html.write(results, {"gpu_name": "H200"}, pictures, tmp_path / "report.html").read_text()
    assert text.count("data:image/png;base64,") == len(pictures)
    assert all(result.name in text for result in results)
    assert "http" not in text


def test_nothing_timed_draws_nothing(tmp_path):
    assert plots.draw([ShapeResult.of(GemmProblem.of(8, 8, 8), "test")], {}, tmp_path) == []


def test_the_roof_needs_the_devices_limits(tmp_path, results):
    assert math.isnan(plots._tflops(results[0], None))
    assert plots.draw(results, {}, tmp_path)
