"""One self-contained HTML page of a sweep: the summary, the pictures, every shape. Needs jinja2 (extra `bench`)."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.records import ShapeResult


def write(results: Sequence[ShapeResult], environment: Mapping[str, Any], pictures: Sequence[Path], path: Path) -> Path:
    """Write the page, pictures embedded.

    Raises:
        ImportError: jinja2 is not installed.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    engine.filters |= {"ratio": lambda value: "-" if value is None else f"{value:.3f}"}
    engine.filters |= {"us": lambda value: "-" if value is None else f"{value:.2f}"}
    page = engine.get_template("report.html.j2").render(
        where={**dict.fromkeys(("gpu_name", "driver", "torch", "triton", "commit", "date"), ""), **environment},
        summaries=[line.as_dict() | {"total": line.is_total} for line in report.by_class(results)],
        pictures=[{"name": picture.stem, "data": base64.b64encode(picture.read_bytes()).decode()} for picture in pictures],
        rows=sorted(results, key=lambda result: result.ratio or math.inf),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path
