"""The calls whose host time is measured: ours as users make them, torch's beside them, and the launch alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional

import minblas
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import GemmProblem, Recipe
from minblas import dispatch
from minblas.device import arch_of

Call = Callable[[], object]

WARM: Final = 5  # calls before any is timed: the plan is made, then recognised


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time; `against` names what its time is divided by, `within` makes the block that its calls are made in."""

    name: str
    call: Call
    against: str = ""
    within: Callable[[], AbstractContextManager[object]] = nullcontext


def cpu_contenders(n: int, k: int, dtype: torch.dtype) -> list[Contender]:
    """A product without rows, as far as a call of ours goes without a launch."""
    a, b, out = torch.empty(0, k, dtype=dtype), torch.empty(k, n, dtype=dtype), torch.empty(0, n, dtype=dtype)
    return [
        Contender("torch.empty", lambda: torch.empty(0, n, dtype=dtype)),
        Contender("minblas.gemm", lambda: minblas.gemm(a, b)),
        Contender("minblas.gemm, out=", lambda: minblas.gemm(a, b, out=out)),
        Contender("minblas.plan", minblas_plan(a, b)),
        *op_contenders(a, b),
    ]


def gpu_contenders(problem: GemmProblem, device: torch.device, *, launches: bool = True) -> list[Contender]:
    """Ours and torch's: with and without out=, by the op, torch's own call inside accelerate(), a linear layer, a graph's replay.

    With `launches`, the launch alone, too.
    """
    dtype = TORCH_DTYPES[problem.dtype]
    m, n, k = problem.m, problem.n, problem.k
    a, b, w, bias = (torch.randn(*sizes, device=device).to(dtype) for sizes in ((m, k), (k, n), (n, k), (n,)))
    out = torch.empty(m, n, dtype=dtype, device=device)
    return [
        Contender("torch.empty", lambda: torch.empty(m, n, dtype=dtype, device=device)),
        Contender("torch.matmul", lambda: torch.matmul(a, b)),
        Contender("minblas.gemm", lambda: minblas.gemm(a, b), "torch.matmul"),
        Contender("torch.matmul, out=", lambda: torch.matmul(a, b, out=out)),
        Contender("minblas.gemm, out=", lambda: minblas.gemm(a, b, out=out), "torch.matmul, out="),
        Contender("minblas.plan", minblas_plan(a, b), "torch.matmul"),
        *op_contenders(a, b),
        Contender(
            "torch.matmul in accelerate()", lambda: torch.matmul(a, b), "torch.matmul", lambda: minblas.accelerate(device.type)
        ),
        Contender("torch linear, bias", lambda: functional.linear(a, w, bias)),
        Contender("minblas.linear, bias", lambda: minblas.linear(a, w, bias), "torch linear, bias"),
        *(launch_contenders(problem, {"A": a, "B": b, "OUT": out}, device) if launches else ()),
        Contender("graph replay, torch", replay_of(lambda: torch.matmul(a, b))),
        Contender("graph replay, minblas", replay_of(lambda: minblas.gemm(a, b)), "graph replay, torch"),
    ]


def minblas_plan(a: torch.Tensor, b: torch.Tensor) -> Call:
    """A plan of the caller's own."""
    plan = minblas.plan(a, b)
    return lambda: plan(a, b)


def op_contenders(a: torch.Tensor, b: torch.Tensor) -> list[Contender]:
    """Through the registered operator, as compiled code calls it."""
    from minblas import op

    return [Contender("torch.ops.minblas.gemm", lambda: op.GEMM(a, b), "torch.matmul")]


def launch_contenders(problem: GemmProblem, slots: dict[str, torch.Tensor], device: torch.device) -> list[Contender]:
    """The picked kernel's launch alone: through triton's JIT, as a user of triton calls it, and directly."""
    from minblas import launch
    from minblas.launch_arguments import values_of
    from minblas.launch_cuda import TritonLaunch

    selection = dispatch.select(problem, device)
    variant, arch = dispatch.get(selection.variant), arch_of(device)
    if variant.recipe is None or selection.tile is None:
        return []
    recipe: Recipe = variant.plan(problem, selection.tile, arch)
    prepared = launch.prepare(variant, problem, selection.tile, arch, device)
    given = {
        **slots,
        "WS": torch.empty(recipe.workspace_bytes, dtype=torch.uint8, device=device),
        "COUNTERS": torch.zeros(recipe.counters, dtype=torch.int32, device=device),
    }
    steps = [TritonLaunch(call, arch.cc) for call in recipe.calls]

    def by_jit() -> None:
        for step in steps:
            step(given, 1.0, 0.0)

    found = [Contender("triton's JIT launch", by_jit, "torch.matmul, out=")]
    values = values_of(given, 1.0, 0.0, torch.cuda.current_stream(device).cuda_stream)

    def directly() -> None:
        for step in prepared.direct:
            step.launch(values)

    how = "" if not prepared.direct else type(prepared.direct[0]).__name__
    return [*found, Contender(f"direct launch ({how})", directly, "triton's JIT launch")] if how else found


def replay_of(call: Call) -> Call:
    """A CUDA graph of one call."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay(kept: object = result) -> None:
        graph.replay()

    return replay
