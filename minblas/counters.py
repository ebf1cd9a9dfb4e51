"""Counters that kernels of one launch agree by: int32 words that are zero before a launch, and that every launch leaves zero.

One buffer for each GPU and stream: launches of one stream follow one another, so that each finds what the one before it left. Two
streams share none, since their launches may run at the same time. A dependent launch counts only after it has waited for the launch
before it.

Under CUDA graph capture a launch gets a buffer that lies in the graph's pool and is zeroed by a node of the graph: a graph may be
replayed on any stream, beside launches on the stream it was captured on. So does a launch on the per-thread default stream, whose
one handle stands for as many streams as there are threads.

The buffer of a stream that was destroyed stays, and a new stream with the same handle takes it over. That is right as long as the
new stream's work runs after the old one's: CUDA gives a destroyed stream's resources back once its work is done, and torch never
destroys those that it hands out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from kernel_zoo.spec import next_pow2

_LEAST: Final = 4096  # words; 16 KiB is what a kernel of one wave of tiles needs many times over
_PER_THREAD: Final = 2  # cudaStreamPerThread
_is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing


class _Here(threading.local):
    """Whether this thread's captures are replayed on the stream that they are made on only."""

    stays = False


class Counters:
    """The buffers of a process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], torch.Tensor] = {}
        self._outgrown: list[torch.Tensor] = []  # launches that are under way may still count in them
        self._lock = threading.Lock()
        self._here = _Here()

    def get(self, count: int, index: int, stream: int) -> torch.Tensor:
        """At least `count` words that are zero when what is launched next on a stream starts. Keep it until that is launched.

        Args:
            count: words.
            index: the number of the GPU.
            stream: its current stream, raw.
        """
        kept = self._kept.get((index, stream))
        enough = kept is not None and kept.numel() >= count
        if stream == _PER_THREAD or (_is_capturing() and not (enough and self._here.stays)):
            return torch.zeros(count, dtype=torch.int32, device=torch.device("cuda", index))
        return kept if kept is not None and enough else self._grown(count, index, stream)

    @contextmanager
    def captures_stay_on_their_stream(self) -> Iterator[None]:
        """What this thread captures in the block counts as launches of its stream do: it is replayed on that stream and no other.

        Only where the stream has a buffer already: none can be made for it during the capture.
        """
        before, self._here.stays = self._here.stays, True
        try:
            yield
        finally:
            self._here.stays = before

    def _grown(self, count: int, index: int, stream: int) -> torch.Tensor:
        with self._lock:
            kept = self._kept.get((index, stream))
            if kept is None or kept.numel() < count:
                if kept is not None:
                    self._outgrown.append(kept)
                kept = self._kept[index, stream] = _zeros_for_good(next_pow2(max(count, _LEAST)), index, stream)
            return kept


def _zeros_for_good(count: int, index: int, stream: int) -> torch.Tensor:
    """Zeroed on a stream, and allocated there in torch's common pool.

    By a thread of its own: memory pools (such as torch.compile warms up its CUDA graphs in) are entered by thread, and whoever owns
    one wants it back.
    """
    made: list[torch.Tensor | BaseException] = []

    def make() -> None:
        try:
            device = torch.device("cuda", index)
            ours: Any = torch.cuda.ExternalStream
            with torch.cuda.device(device), torch.cuda.stream(ours(stream, device=device)):
                made.append(torch.zeros(count, dtype=torch.int32, device=device))
        except BaseException as error:  # whatever it is, the caller is who must hear of it
            made.append(error)

    thread = threading.Thread(target=make, name="minblas-counters")
    thread.start()
    thread.join()
    if isinstance(made[0], BaseException):
        raise made[0]
    return made[0]


ZEROED: Final = Counters()
