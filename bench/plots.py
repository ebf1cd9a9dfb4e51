"""Pictures of a sweep, as PNG files: every shape's ratio sorted, the roofline, the squares. Needs matplotlib (extra `bench`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.records import ShapeResult
from bench.report import geomean

_COLOURS: Final = {
    "large": "#1f4e9c",
    "square": "#2f8fd0",
    "prefill": "#17a398",
    "decode": "#d9822b",
    "gemv": "#b8336a",
    "split-K": "#7a4fbf",
    "ragged": "#6b7280",
    "batched": "#8a6d3b",
}
_OTHER: Final = ("#111827", "#4d7c0f", "#9f1239", "#0e7490", "#a16207")
_SIZE: Final = (10.0, 5.6)


def draw(results: Sequence[ShapeResult], environment: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every picture the results have data for; the files written.

    Raises:
        ImportError: matplotlib is not installed.
    """
    timed = [result for result in results if result.ratio and result.time_us and result.torch_us and result.status == "ok"]
    if not timed:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    source = _source(environment)
    written = [_ratios(timed, source, folder / "ratios.png"), _roofline(timed, environment, source, folder / "roofline.png")]
    squares = [result for result in timed if result.batch == 1 and result.m == result.n == result.k]
    if len({result.m for result in squares}) > 1:
        written.append(_squares(squares, source, folder / "squares.png"))
    return written


def _source(environment: Mapping[str, Any]) -> str:
    parts = [str(environment.get(name, "")) for name in ("gpu_name", "torch", "triton", "commit", "date")]
    labels = ("", "torch ", "triton ", "commit ", "")
    return ", ".join(label + part for label, part in zip(labels, parts, strict=True) if part)


@contextmanager
def _axes(path: Path, title: str, source: str) -> Iterator[Any]:
    """Axes of a figure that is saved at the end. The object API: no pyplot, no global state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    yield axes
    figure.text(0.005, -0.03, source, fontsize=8, color="#4b5563")
    figure.savefig(path, bbox_inches="tight")


def _groups(results: Sequence[ShapeResult]) -> dict[str, str]:
    """The colour of every group present, classes in their usual order first."""
    present = {result.group for result in results}
    colours = {name: colour for name, colour in _COLOURS.items() if name in present}
    others = sorted(present - set(_COLOURS))
    return colours | {name: _OTHER[i % len(_OTHER)] for i, name in enumerate(others)}


def _ratios(results: Sequence[ShapeResult], source: str, path: Path) -> Path:
    ordered = sorted(results, key=lambda result: result.ratio or 0.0)
    mean = geomean(result.ratio for result in ordered if result.ratio)
    with _axes(path, f"torch.matmul time / minblas time, {len(ordered)} shapes, geomean {mean:.3f}", source) as axes:
        colours = _groups(ordered)
        ranks = range(len(ordered))
        low = [result.ratio_low or result.ratio for result in ordered]
        high = [result.ratio_high or result.ratio for result in ordered]
        axes.vlines(ranks, low, high, color="#9ca3af", linewidth=0.6)
        axes.scatter(ranks, [result.ratio for result in ordered], s=11, c=[colours[result.group] for result in ordered], zorder=3)
        for name, colour in colours.items():
            ratios = [result.ratio for result in ordered if result.group == name and result.ratio]
            axes.scatter([], [], s=14, color=colour, label=f"{name} {geomean(ratios):.2f} ({len(ratios)})")
        axes.axhline(1.0, color="#111827", linewidth=1)
        axes.set_yscale("log")
        ticks = [tick for tick in (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 3, 4) if _within(tick, ordered)]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("shapes, sorted")
        axes.set_ylabel("above 1: minblas is faster")
        axes.legend(title="class, geomean (shapes)", fontsize=8, title_fontsize=8, loc="upper left", frameon=False)
    return path


def _within(tick: float, ordered: Sequence[ShapeResult]) -> bool:
    low, high = ordered[0].ratio or tick, ordered[-1].ratio or tick
    return tick == 1.0 or low * 0.8 <= tick <= high * 1.25


def _roofline(results: Sequence[ShapeResult], environment: Mapping[str, Any], source: str, path: Path) -> Path:
    with _axes(path, "Throughput over arithmetic intensity", source) as axes:
        for name, colour in _groups(results).items():
            mine = [result for result in results if result.group == name]
            intensity = [result.flops / result.least_bytes for result in mine]
            axes.scatter(
                intensity,
                [_tflops(result, result.torch_us) for result in mine],
                s=10,
                facecolors="none",
                edgecolors=colour,
                alpha=0.5,
            )
            axes.scatter(intensity, [_tflops(result, result.time_us) for result in mine], s=10, color=colour, label=name)
        _roof(axes, environment, [result.flops / result.least_bytes for result in results])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("FLOP per byte, every operand moved once")
        axes.set_ylabel("TFLOP/s (filled: minblas, hollow: torch.matmul)")
        axes.legend(fontsize=8, loc="lower right", frameon=False)
    return path


def _roof(axes: Any, environment: Mapping[str, Any], intensity: Sequence[float]) -> None:
    """The device's limits, where they are known."""
    bandwidth, peak = environment.get("bandwidth_gbps"), environment.get("peak_tflops_bf16")
    if not bandwidth or not peak:
        return
    low, high = min(intensity), max(intensity)
    knee = peak / bandwidth * 1000
    points = sorted({low, min(max(knee, low), high), high})
    roof = [min(peak, point * bandwidth / 1000) for point in points]
    axes.plot(points, roof, color="#111827", linewidth=1, label=f"{bandwidth:,.0f} GB/s, {peak:,.0f} TFLOP/s (16-bit)")


def _tflops(result: ShapeResult, time_us: float | None) -> float:
    return result.flops / time_us / 1e6 if time_us else math.nan


def _squares(results: Sequence[ShapeResult], source: str, path: Path) -> Path:
    """Device time as throughput, and eager time where it was taken: the difference is the cost of the call."""
    dtype = max({result.dtype for result in results}, key=lambda name: sum(result.dtype == name for result in results))
    best: dict[int, ShapeResult] = {}
    for result in results:
        if result.dtype == dtype:
            best.setdefault(result.m, result)
    ordered = [best[size] for size in sorted(best)]
    sizes = [result.m for result in ordered]
    lines = (
        ("minblas, device", "#1f4e9c", "-", [result.time_us for result in ordered]),
        ("torch.matmul, device", "#d9822b", "-", [result.torch_us for result in ordered]),
        ("minblas, eager call", "#1f4e9c", ":", [result.eager_us for result in ordered]),
        ("torch.matmul, eager call", "#d9822b", ":", [result.torch_eager_us for result in ordered]),
    )
    with _axes(path, f"Squares, {dtype}: M = N = K", source) as axes:
        for label, colour, style, times in lines:
            if any(times):
                values = [_tflops(result, time) for result, time in zip(ordered, times, strict=True)]
                axes.plot(sizes, values, style, color=colour, marker="o", markersize=3, label=label)
        axes.set_xscale("log", base=2)
        ticks = [size for size in (1 << power for power in range(4, 16)) if sizes[0] <= size <= sizes[-1]]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xlabel("M = N = K")
        axes.set_ylabel("TFLOP/s")
        axes.legend(fontsize=8, frameon=False)
    return path
