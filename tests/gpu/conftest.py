"""The GPU suite: collected only where there is a GPU; everything it will launch is compiled in parallel before the first test."""

from __future__ import annotations

import time

import pytest
import torch

from kernel_zoo.compile_pool import compile_all
from tests.kernel_zoo.cases import Case

if not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


def pytest_report_collectionfinish() -> str:
    """One line about what is left out, or what is used."""
    if not torch.cuda.is_available():
        return "tests/gpu: left out, there is no CUDA device"
    return f"tests/gpu: {torch.cuda.get_device_name(0)}, torch {torch.__version__}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A driver's or a library's warning is not this suite's business."""
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU."""
    return torch.device("cuda", 0)


@pytest.fixture(scope="session", autouse=True)
def compiled(request: pytest.FixtureRequest) -> int:
    """Every binary that the selected tests need, and its launcher, built in parallel into triton's disk cache."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    jobs = [job for given in parameters if isinstance(given.get("case"), Case) for job in given["case"].jobs()]
    start = time.perf_counter()
    answers = compile_all(jobs)
    failures = {job: answer.message for job, answer in answers.items() if answer.status == "failed"}
    print(f"\ntests/gpu: {len(answers)} binaries compiled in {time.perf_counter() - start:.0f} s, {len(failures)} failed")
    for (spec, _), text in list(failures.items())[:10]:
        print(f"  {spec.kernel.__name__}: {text}")
    return len(answers)


@pytest.fixture(autouse=True)
def clean() -> None:
    """Buffers of gigabytes go back before the next test."""
    yield
    if torch.cuda.memory_reserved() > 20 << 30:
        torch.cuda.empty_cache()
