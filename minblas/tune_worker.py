"""The process that candidates may take down: it tunes the shapes it is sent and announces every step.

Started by `tune_remote`, spoken to in pickled frames: first an Opening, answered by Ready, then Tasks, each answered by Steps and a
ShapeResult or a Lost. It ends when its input does, even in the middle of a candidate.
"""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from minblas import settings
from minblas.device import is_lost
from minblas.settings import Options
from minblas.tune_shape import DeviceLostError
from minblas.tune_task import Lost, Task, run_task
from minblas.tune_wire import Parcel, unpack


@dataclass(frozen=True, slots=True)
class Opening:
    """What a worker must know before its first shape.

    Attributes:
        device: e.g. "cuda:1".
        factory: "module:function" that makes the Benches from the variants by name and the device's name.
        parcels: registered variants.
        options: those in force in the parent.
    """

    device: str
    factory: str
    parcels: Mapping[str, Parcel] = field(default_factory=dict)
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is ready; variants that could not be built here, with the reason."""

    missing: Mapping[str, str]


def main() -> None:
    """Serve the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a compiler prints must not end up among the answers
    code = 0
    try:
        serve(sys.stdin.buffer, channel)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the thread that reads holds standard input, and a spoilt device may keep exit handlers from ending


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer tasks until the input ends or the device is lost."""
    frames: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, frames), daemon=True).start()

    def send(message: object) -> None:
        pickle.dump(message, sink)
        sink.flush()

    opening: Opening = frames.get()
    settings.options.restore(replace(opening.options))  # a token of this process's own
    if opening.device.startswith("cuda"):
        import torch

        torch.cuda.set_device(opening.device)  # no context on a GPU that another worker has
    known, missing = unpack(opening.parcels)
    makers = resolve_factory(opening.factory)(known, opening.device)
    send(Ready(missing))
    while True:
        task: Task = frames.get()
        try:
            send(run_task(task, makers, send, lambda: _is_lost(opening.device)))
        except DeviceLostError as error:
            send(Lost(error.picks, error.message))
            return


def _is_lost(device: str) -> bool:
    import torch

    return is_lost(torch.device(device))


def _read(source: BinaryIO, frames: queue.SimpleQueue[Any]) -> None:
    """Pass frames on; without a parent there is nothing to go on for, even in the middle of a candidate that hangs."""
    try:
        while True:
            frames.put(pickle.load(source))
    except BaseException:
        os._exit(0)


def resolve_factory(name: str) -> Any:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
