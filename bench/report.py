"""What a sweep says: the summary by class, and the tables printed in a terminal."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.records import CLASSES, SIXTEEN_BIT, ShapeResult

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the summary. Ratios are torch's time over ours; `slower` counts shapes whose whole interval lies below 1."""

    name: str
    shapes: int
    timed: int
    geomean: float | None
    p10: float | None
    worst: float | None
    worst_shape: str
    slower: int
    shares: Mapping[str, float]
    wrong: int
    failed: int
    unserved: int
    compile_seconds: float

    @property
    def aten(self) -> float:
        """Share of the shapes served by PyTorch's own product."""
        return self.shares.get("aten", 0.0)

    @property
    def is_total(self) -> bool:
        """It sums up lines above it."""
        return self.name.startswith(("16-bit", "all"))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "aten": self.aten}


def geomean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers.

    Raises:
        ValueError: there are none, or one is not positive.
    """
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("a mean needs at least one number; given none")
    return math.exp(statistics.fmean(logs))


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the numbers lie, interpolated between neighbours."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(name: str, results: Sequence[ShapeResult]) -> Summary:
    """The figures of one group of shapes."""
    timed = [result for result in results if result.ratio is not None and result.status == "ok"]
    ratios = [result.ratio for result in timed if result.ratio is not None]
    worst = min(timed, key=lambda result: result.ratio or math.inf, default=None)
    served = Counter(result.variant for result in results if result.variant)
    statuses = Counter(result.status for result in results)
    return Summary(
        name=name,
        shapes=len(results),
        timed=len(timed),
        geomean=geomean(ratios) if ratios else None,
        p10=percentile(ratios, 0.1) if ratios else None,
        worst=worst.ratio if worst else None,
        worst_shape=worst.name if worst else "",
        slower=sum(result.ratio_high is not None and result.ratio_high < 1.0 for result in timed),
        shares={str(variant): count / len(results) for variant, count in served.most_common()},
        wrong=statuses["wrong"],
        failed=statuses["failed"],
        unserved=statuses["unserved"],
        compile_seconds=sum(result.compile_seconds for result in results),
    )


def by_class(results: Sequence[ShapeResult]) -> list[Summary]:
    """A summary for each class and other dtype present, then the totals.

    "16-bit" leaves batched out, "16-bit aligned" ragged as well, so that totals of different sweeps compare.
    """
    groups: dict[str, list[ShapeResult]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    order = [name for name in CLASSES if name in groups] + sorted(set(groups) - set(CLASSES))
    summaries = [summarise(name, groups[name]) for name in order]
    sixteen = [result for result in results if result.dtype in SIXTEEN_BIT and result.shape_class != "batched"]
    aligned = [result for result in sixteen if result.shape_class != "ragged"]
    if sixteen:
        summaries.append(summarise("16-bit", sixteen))
    if aligned and len(aligned) < len(sixteen):
        summaries.append(summarise("16-bit aligned", aligned))
    if len(results) != len(sixteen):
        summaries.append(summarise("all", results))
    return summaries


def class_table(results: Sequence[ShapeResult], title: str = "") -> Table:
    """The summary by class as a terminal table."""
    from rich.table import Table

    table = Table(title=title or "torch.matmul time / minblas time", title_justify="left", title_style="bold")
    table.add_column("class")
    for heading in ("shapes", "geomean", "p10", "worst"):
        table.add_column(heading, justify="right")
    table.add_column("worst shape")
    for heading in ("slower", "wrong", "failed", "unserved", "aten"):
        table.add_column(heading, justify="right")
    table.add_column("served by")
    summaries = by_class(results)
    for index, line in enumerate(summaries):
        totals_follow = index + 1 < len(summaries) and summaries[index + 1].is_total and not line.is_total
        table.add_row(*_cells(line), end_section=totals_follow)
    return table


def _cells(line: Summary) -> list[str]:
    shares = ", ".join(f"{variant} {share:.0%}" for variant, share in line.shares.items())
    return [
        line.name,
        str(line.shapes),
        _number(line.geomean, line.geomean is not None and line.geomean >= 1),
        _number(line.p10),
        _number(line.worst),
        line.worst_shape,
        str(line.slower),
        _count(line.wrong),
        _count(line.failed),
        str(line.unserved),
        f"{line.aten:.0%}",
        shares,
    ]


def _number(value: float | None, good: bool = False) -> str:
    text = "-" if value is None else f"{value:.3f}"
    return f"[green]{text}[/green]" if good else text


def _count(value: int) -> str:
    return f"[bold red]{value}[/bold red]" if value else "0"


def shape_table(results: Sequence[ShapeResult], title: str) -> Table:
    """Every shape: what served it, how right, how fast where it was timed."""
    from rich.table import Table

    timed = any(result.time_us is not None for result in results)
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("problem", "class", "variant", "tile", "chosen by"):
        table.add_column(heading)
    judged = any(result.error_ratio is not None for result in results)
    if judged:
        table.add_column("error / bound", justify="right")
    if timed:
        for heading in ("us", "torch us", "ratio"):
            table.add_column(heading, justify="right")
    table.add_column("result")
    for result in results:
        cells = [result.name, result.shape_class, result.variant or "-", result.tile or "-", result.rung]
        if judged:
            cells.append("-" if result.error_ratio is None else f"{result.error_ratio:.3f}")
        if timed:
            cells += [_us(result.time_us), _us(result.torch_us), _number(result.ratio)]
        table.add_row(*cells, _verdict(result))
    return table


def _verdict(result: ShapeResult) -> Text:
    from rich.text import Text

    if result.status == "ok":
        return Text("ok", style="green")
    style, word = ("yellow", "refused") if result.status == "unserved" else ("bold red", result.status)
    return Text.assemble((word, style), f" {result.message}")


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def slowest(results: Sequence[ShapeResult], count: int = 10) -> list[ShapeResult]:
    """The shapes that lose most against torch."""
    timed = [result for result in results if result.ratio is not None and result.status == "ok"]
    return sorted(timed, key=lambda result: result.ratio or math.inf)[:count]


def faults(results: Sequence[ShapeResult]) -> list[ShapeResult]:
    """The shapes that are wrong or could not be compiled or launched."""
    return [result for result in results if result.status in ("wrong", "failed")]
