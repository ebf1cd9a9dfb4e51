"""One measured or checked shape, and the JSON Lines file that holds many of them below a row that says where they were taken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from kernel_zoo.spec import GemmProblem, default_out_dtype

Status = Literal["ok", "wrong", "unserved", "failed"]

CLASSES: Final = ("large", "square", "prefill", "decode", "gemv", "split-K", "ragged", "batched")
SIXTEEN_BIT: Final = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """What became of one problem.

    `status` is "wrong" where the result failed its check, "unserved" where no variant allowed took the problem, "failed" where
    compiling or launching raised. Times are medians over interleaved rounds with an interval; `ratio` is torch's time over ours.
    `error_ratio` is the largest error over its bound. `eager_us` is wall time per public call, back to back.
    `extras` names what a problem has beyond the product.
    """

    suite: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    precision: str
    shape_class: str
    extras: str = ""
    status: Status = "ok"
    message: str = ""
    error_ratio: float | None = None
    variant: str | None = None
    tile: str = ""
    rung: str = ""
    estimate_us: float | None = None
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    torch_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    eager_us: float | None = None
    torch_eager_us: float | None = None
    compile_seconds: float = 0.0
    flops: int = 0
    least_bytes: int = 0

    @classmethod
    def of(cls, problem: GemmProblem, suite: str, **found: Any) -> ShapeResult:
        """The result of a problem."""
        return cls(
            suite,
            problem.batch,
            problem.m,
            problem.n,
            problem.k,
            problem.dtype,
            problem.layout,
            problem.precision,
            problem.shape_class,
            _extras(problem),
            flops=problem.flops,
            least_bytes=problem.least_bytes,
            **found,
        )

    @property
    def name(self) -> str:
        """e.g. 4096 x 4096 x 4096 bf16 nt."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        precision = f" {self.precision}" if self.precision else ""
        extras = f" {self.extras}" if self.extras else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.dtype}{precision} {self.layout}{extras}"

    @property
    def group(self) -> str:
        """The heading it is reported under: the shape class for 16-bit, the dtype and precision for the others."""
        if self.dtype in SIXTEEN_BIT:
            return self.shape_class
        return f"{self.dtype} {self.precision}".strip()


def one_line(error: Exception) -> str:
    """An error as a row's message: its type and what it says, not without end."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def _extras(problem: GemmProblem) -> str:
    """What a problem has beyond a product in its inputs' dtype, e.g. "-> fp32, beta C, bias, gelu"."""
    epilogue = problem.epilogue
    parts = [
        f"-> {problem.out.dtype}" if problem.out.dtype != default_out_dtype(problem.dtype) else "",
        "alpha" if epilogue.alpha != "1" else "",
        "beta C" if epilogue.c is not None else "",
        "bias" if epilogue.bias is not None else "",
        epilogue.activation if epilogue.activation != "none" else "",
    ]
    return ", ".join(filter(None, parts))


def write(path: Path, environment: Mapping[str, Any], results: Iterable[ShapeResult]) -> None:
    """A file of results: the environment, then one row a shape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in _rows(environment, results):
            file.write(json.dumps(row) + "\n")


def _rows(environment: Mapping[str, Any], results: Iterable[ShapeResult]) -> Iterator[dict[str, Any]]:
    yield {"kind": "environment", **environment}
    for result in results:
        yield {"kind": "shape", **{name: _rounded(value) for name, value in asdict(result).items() if value is not None}}


def _rounded(value: Any) -> Any:
    """Five digits of a float: what is beyond them is noise."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read(path: Path) -> tuple[dict[str, Any], list[ShapeResult]]:
    """The environment and the results of a file.

    Raises:
        ValueError: a row is not what `write` makes; the message names the line.
    """
    environment: dict[str, Any] = {}
    results: list[ShapeResult] = []
    known = {field.name for field in fields(ShapeResult)}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            kind = row.pop("kind")
            if kind == "environment":
                environment = row
            else:
                results.append(ShapeResult(**{name: value for name, value in row.items() if name in known}))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}:{number} is not a row of benchmark results ({error}); needed: JSON with a kind") from error
    return environment, results
