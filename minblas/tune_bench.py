"""The devices a shape is tuned on: a GPU, or, for verification only, the CPU's interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernel_zoo.spec import GemmProblem, Variant
from minblas import launch
from minblas.buffers import Bank, Slots, scalars
from minblas.device import arch_of, is_lost
from minblas.oracle import Oracle, exact_affordable
from minblas.rival import torch_precision, torch_product
from minblas.timing import CudaEngine, Engine, Timing, time_interleaved
from minblas.tune_trial import Pick

if TYPE_CHECKING:
    import torch

Prepared = Callable[[Mapping[str, Any], float, float], None]


class DeviceBench:
    """One shape on one device.

    Args:
        problem: the shape.
        variants: by name, those a pick may name.
        device: where.
        bank, engine: shared by the shapes of a tune; absent where only verification is wanted.
    """

    def __init__(
        self,
        problem: GemmProblem,
        variants: Mapping[str, Variant],
        device: torch.device,
        bank: Bank | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.problem = problem
        self._variants = variants
        self._device = device
        self._arch = arch_of(device)
        self._bank, self._engine = bank, engine
        self._oracle: Oracle | None = None
        self._scalars = scalars(problem)
        self._sets: list[Slots] = []
        self._exact = device.type == "cpu" or exact_affordable(problem, self._arch)

    def prepare(self, pick: Pick) -> Prepared:
        """Compiled, loaded and ready."""
        prepared = launch.prepare(self._variants[pick.variant], self.problem, pick.tile, self._arch, self._device)
        if prepared.variant != pick.variant:
            raise RuntimeError(f"{pick.variant} was not run: {prepared.reason}")
        return prepared

    def verdict(self, prepared: Prepared) -> str:
        """Run once on poisoned buffers, and compare."""
        if self._oracle is None:
            self._oracle = Oracle(self.problem, self._device, exact=self._exact)
        oracle = self._oracle
        prepared(oracle.slots, oracle.alpha, oracle.beta)
        return oracle.verdict()

    def estimate(self, prepared: Prepared) -> float:
        """Rough microseconds of a launch."""
        return self._timer.estimate(self._run(prepared)) if self._engine is not None else 0.0

    def time(self, prepared: Sequence[Prepared], estimates: Sequence[float], rounds: int, target_us: float) -> list[Timing]:
        """Interleaved, over buffer sets larger than L2."""
        engine = self._timer
        self._oracle = None  # its operands and references, before graphs are made
        runs = [self._run(each) for each in prepared]
        return time_interleaved(runs, sets=len(self._sets), rounds=rounds, target_us=target_us, estimates=estimates, engine=engine)

    def torch(self) -> Prepared | None:
        """torch's own product, straight into out; None where torch has none for the problem."""
        if torch_product(self.problem, self._buffers()[0]) is None:
            return None

        def run(slots: Mapping[str, Any], alpha: float, beta: float) -> None:
            product = torch_product(self.problem, slots, alpha, beta)
            if product is not None:
                product()

        return run

    def lost(self) -> bool:
        """An error that stays: nothing can be launched any more."""
        return is_lost(self._device)

    @property
    def _timer(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("this bench only verifies: it was made without an engine")
        return self._engine

    def _buffers(self) -> list[Slots]:
        """The sets that rivals rotate over, made when they are first needed."""
        if not self._sets:
            assert self._bank is not None
            self._sets = self._bank.sets(self.problem)
        return self._sets

    def _run(self, prepared: Prepared) -> Callable[[int], None]:
        sets, (alpha, beta) = self._buffers(), self._scalars

        def run(index: int) -> None:
            prepared(sets[index], alpha, beta)

        return run


class GpuBenches:
    """Benches on one GPU that share random numbers and a timer."""

    def __init__(self, variants: Mapping[str, Variant], device: torch.device) -> None:
        self._variants, self._device = variants, device
        self._bank, self._engine = Bank(device), CudaEngine(device)

    @contextlib.contextmanager
    def open(self, problem: GemmProblem) -> Iterator[DeviceBench]:
        """A bench, with torch's fp32 precision set to the problem's while it is in use."""
        with torch_precision(problem.precision):
            yield DeviceBench(problem, self._variants, self._device, self._bank, self._engine)


class CpuBenches:
    """Benches that verify through the interpreter and time nothing."""

    def __init__(self, variants: Mapping[str, Variant], device: torch.device) -> None:
        self._variants, self._device = variants, device

    @contextlib.contextmanager
    def open(self, problem: GemmProblem) -> Iterator[DeviceBench]:
        """A bench."""
        yield DeviceBench(problem, self._variants, self._device)


def benches_for(variants: Mapping[str, Variant], device: str) -> GpuBenches | CpuBenches:
    """The benches of a device, by its name."""
    import torch

    place = torch.device(device)
    return CpuBenches(variants, place) if place.type == "cpu" else GpuBenches(variants, place)
