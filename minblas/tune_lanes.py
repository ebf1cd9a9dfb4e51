"""Who tunes the shapes of a tune: this process, or one process for each GPU, all taking from one queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kernel_zoo.spec import GemmProblem, Variant
from minblas import settings
from minblas.tune_remote import Remote, StoppedError
from minblas.tune_session import Planned, Session
from minblas.tune_task import Benches, Local, Runner, Told
from minblas.tune_wire import pack
from minblas.tune_worker import Opening, resolve_factory

if TYPE_CHECKING:
    import torch

BENCHES: Final = "minblas.tune_bench:benches_for"


class Work:
    """Shapes, handed out one at a time to whoever asks.

    Args:
        session: runs them.
        planned: the shapes and their candidates.
        over: true once no further shape is to be begun.
        done: told of each finished row, by one thread at a time.

    Attributes:
        later: shapes with variants that whoever took them does not have.
        notes: why, in words.
    """

    def __init__(
        self,
        session: Session,
        planned: Iterable[Planned],
        over: Callable[[], bool],
        done: Callable[[GemmProblem, dict[str, Any]], None],
    ) -> None:
        self.later: list[Planned] = []
        self.notes: list[str] = []
        self._session, self._shapes, self._over, self._done = session, session.ready(planned), over, done
        self._lock = threading.Lock()

    def serve(self, runner: Runner) -> None:
        """Let a runner tune shapes until there are no more, or it is stopped.

        Raises:
            MinblasError: the runner cannot go on.
        """
        while (planned := self._take()) is not None:
            problem, picks = planned
            if lacking := runner.lacking(pick.variant for pick in picks):
                self._postpone(planned, [f"{name} is tuned in this process: {why}" for name, why in lacking.items()])
                continue
            row = self._session.run(problem, picks, runner)
            with self._lock:
                self._done(problem, row)

    def postponed(self) -> bool:
        """Turn to the shapes that were put off; false where there are none."""
        postponed, self.later = self.later, []
        self._shapes = self._session.ready(postponed)
        return bool(postponed) and not self._over()

    def _take(self) -> Planned | None:
        with self._lock:
            return None if self._over() else next(self._shapes, None)

    def _postpone(self, planned: Planned, notes: Iterable[str]) -> None:
        with self._lock:
            self.later.append(planned)
            self.notes += [note for note in notes if note not in self.notes]


@dataclass(frozen=True)
class Crew:
    """Those who tune.

    Attributes:
        places: the devices, all of one kind.
        variants: all there are, by name.
        allowed: those that compete.
        benches: how shapes are run, or the "module:function" that makes it.
        isolated: in a process of its own for each device.
        limit_s: seconds one step of an isolated candidate may take.
    """

    places: Sequence[torch.device]
    variants: Mapping[str, Variant]
    allowed: Mapping[str, Variant]
    benches: Benches | str
    isolated: bool
    limit_s: float

    def serve(self, work: Work, told: Told) -> None:
        """Tune what there is; what the other processes do not have, here.

        Raises:
            MinblasError: a device or process could not go on.
        """
        if self.isolated:
            serve_all(work, self._remotes(told))
            if not work.postponed():
                return
        work.serve(self._local(told))

    def _remotes(self, told: Told) -> list[Remote]:
        factory = self.benches if isinstance(self.benches, str) else BENCHES
        parcels, unsent = pack(self.allowed)
        options = settings.current()
        return [Remote(Opening(str(place), factory, parcels, options), told, self.limit_s, unsent) for place in self.places]

    def _local(self, told: Told) -> Local:
        from minblas.device import is_lost

        place = self.places[0]
        made = resolve_factory(self.benches)(self.variants, str(place)) if isinstance(self.benches, str) else self.benches
        return Local(made, told, lambda: is_lost(place))


def serve_all(work: Work, remotes: Sequence[Remote]) -> None:
    """Let processes tune shapes side by side until there are no more; ends them, however this ends.

    Raises:
        MinblasError: one of them could not go on; the others did without it.
    """
    with ExitStack() as stack:
        for remote in remotes:
            stack.enter_context(remote)
        if len(remotes) == 1:
            work.serve(remotes[0])
            return
        errors: list[BaseException] = []
        threads = [threading.Thread(target=_guarded, args=(work, remote, errors), daemon=True) for remote in remotes]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(0.1)  # not without a limit: Ctrl-C is for this thread
        finally:
            for remote in remotes:
                remote.close()
    if errors:
        raise errors[0]


def _guarded(work: Work, remote: Remote, errors: list[BaseException]) -> None:
    try:
        work.serve(remote)
    except StoppedError:
        return
    except BaseException as error:  # raised again where the tune was asked for
        errors.append(error)
