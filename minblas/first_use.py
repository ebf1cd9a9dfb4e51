"""Tuning a problem when a call first meets it, for those who ask for it with options(tune="first_use").

On scratch copies, in this process, within a budget of seconds for all calls together, and only where that disturbs nobody: not
while a CUDA graph is being captured, not under a budget of SMs or a forced choice. Whatever goes wrong, the call is served as if
nothing had been tried.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from heuristics.policy import NET
from heuristics.selection import Selection
from heuristics.table import ProblemKey, problem_key
from kernel_zoo.spec import GemmProblem, Variant
from minblas import log, settings
from minblas.inside import INSIDE
from minblas.stats import COUNTERS
from minblas.tune_shape import Bench, tune_shape
from minblas.tune_trial import Pick

if TYPE_CHECKING:
    import torch

    from minblas.tune_task import Benches

_MOST_PICKS: Final = 8
_LEAST_PICKS: Final = 2  # with fewer there is nothing to compare
_FIRST_PICK_S: Final = 1.0  # what compiling and checking a pick takes, until it is known here
_FIRST_REST_S: Final = 0.5  # buffers, the reference, the timing
_ROUNDS: Final = 5


class FirstUse:
    """The policy, and what it has spent. One tune at a time; a call that comes meanwhile is served without.

    Args:
        benches: makes the benches of a device from the variants by name and the device's name.
        kinds: of device; a CPU's tensors are never tuned for.
        clock: seconds.
    """

    def __init__(
        self,
        benches: Callable[[Mapping[str, Variant], str], Benches] | None = None,
        kinds: tuple[str, ...] = ("cuda",),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.spent_s = 0.0
        self._benches, self._kinds, self._clock = benches, kinds, clock
        self._pick_s, self._rest_s = _FIRST_PICK_S, _FIRST_REST_S
        self._tried: set[tuple[str, ProblemKey]] = set()
        self._busy = threading.Lock()

    def improve(self, selection: Selection, device: torch.device, again: Callable[[], Selection]) -> Selection:
        """The selection, or, where the problem was tuned now, the one that the new row gives. Never raises for tuning's sake."""
        if not self._wanted(selection, device) or not self._busy.acquire(blocking=False):
            return selection
        try:
            tried = (selection.arch.name, problem_key(selection.problem)) in self._tried  # by a call that held the lock before
            return again() if not tried and self._improved(selection, device) else selection
        finally:
            self._busy.release()

    def _improved(self, selection: Selection, device: torch.device) -> bool:
        """Tune as far as the budget goes, and account for it; whether there is a row now."""
        began, done = self._clock(), False
        try:
            count, left_s = self._affordable()
            if count < _LEAST_PICKS:
                return False
            with settings.options(tune="never"), _undisturbed(device):
                done = self._tune(selection, device, count, began + left_s)
        except Exception as error:  # out of memory, a compiler, a full disk: the call goes on
            log.once("tune", "tuning on first use came to nothing: %s: %s", type(error).__name__, error)
        finally:
            seconds = self._clock() - began
            self.spent_s += seconds
            COUNTERS.add_tune(seconds, done=done)
        return done

    def _wanted(self, selection: Selection, device: torch.device) -> bool:
        problem, options = selection.problem, settings.current()
        guess = selection.entry is not None and selection.entry.source == "modelled"
        if selection.rung == "forced" or (selection.rung == "exact" and not guess):
            return False
        if device.type not in self._kinds or options.on_cold != "compile" or options.sm_count is not None:
            return False
        if problem.batch_invariant or problem.empty or problem.k <= 0:
            return False
        return not _capturing(device)

    def _affordable(self) -> tuple[int, float]:
        """Candidates that what is left of the budget pays for, and the seconds that are left."""
        budget_s = settings.current().tune_budget
        left_s = budget_s - self.spent_s
        count = int(min(_MOST_PICKS, (left_s - self._rest_s) / self._pick_s))
        if count < _LEAST_PICKS:
            log.once("tune", "the budget for tuning on first use (%g s) is spent", budget_s)
        return count, left_s

    def _tune(self, selection: Selection, device: torch.device, count: int, until: float) -> bool:
        """Tune one problem with so many candidates, none begun after `until`; whether there is a row now."""
        from minblas import dispatch, registry
        from minblas.environment import environment
        from minblas.tune_report import row_of, save_table
        from minblas.tune_session import candidates, report_bad

        problem, arch, options = selection.problem, selection.arch, settings.current()
        began = self._clock()
        self._tried.add((arch.name, problem_key(problem)))
        known = {variant.name: variant for variant in dispatch.registry()}
        # A user's kernel that faults would take this process along: it is tuned where it is asked for, in a process of its own.
        allowed = {name: each for name, each in known.items() if each.origin == "zoo" and name not in {NET, *options.exclude}}
        first = Pick(selection.variant, selection.tile) if selection.variant in allowed else None
        picks = candidates(problem, arch, allowed, count, first)
        if not picks:
            return False
        checked = began
        with self._open(known, device, problem) as bench:

            def skip(pick: Pick) -> str:
                nonlocal checked
                checked = self._clock()
                return "the time for tuning was over" if checked > until and pick != picks[0] else ""

            result = tune_shape(problem, picks, bench, skip=skip, rounds=_ROUNDS)
        report_bad(result, allowed, arch)
        self._learn(checked - began, self._clock() - checked, len(picks))
        if result.winner is None:
            log.get("tune").info("%s: nothing to write on first use: %s", problem.describe(), result.note)
            return False
        row = row_of(result, allowed)
        save_table([row], environment(device), None)
        registry.read_tables_again()
        log.get("tune").info("%s tuned on first use: %s", problem.describe(), row["summary"])
        return True

    def _open(self, known: Mapping[str, Variant], device: torch.device, problem: GemmProblem) -> AbstractContextManager[Bench]:
        from minblas.tune_bench import benches_for

        return (self._benches or benches_for)(known, str(device)).open(problem)

    def _learn(self, picks_s: float, rest_s: float, picks: int) -> None:
        """What the next problem will take, from what this one took. The last pick's own time counts as the rest's."""
        if picks > 1:
            self._pick_s = max((self._pick_s + picks_s / (picks - 1)) / 2, 0.01)
        self._rest_s = (self._rest_s + rest_s) / 2


def _capturing(device: torch.device) -> bool:
    """A CUDA graph is being captured on the current stream."""
    import torch

    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Leave no trace in the caller's program: its random numbers, its autocast, its gradients, its memory."""
    import torch

    cuda: list[Any] = [device] if device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.enter_context(torch.no_grad())
        stack.enter_context(INSIDE)  # the rival is torch's own, not what accelerate() put in its place
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if cuda:
            stack.enter_context(torch.cuda.device(device))
            stack.callback(torch.cuda.empty_cache)  # what the buffers took goes back to the driver
        yield


FIRST_USE: Final = FirstUse()
