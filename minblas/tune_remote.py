"""A process that tunes for this one, and its replacement when a candidate took it down."""

from __future__ import annotations

import contextlib
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from minblas.errors import MinblasError
from minblas.tune_shape import DeviceLostError
from minblas.tune_task import Lost, Step, Task, Told
from minblas.tune_trial import ShapeResult
from minblas.tune_worker import Opening, Ready

_START_S: Final = 300.0  # torch's import and a CUDA context on a busy machine
_COMPILE_S: Final = 300.0  # loading a pick may compile it
_CODE: Final = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from minblas.tune_worker import main; main()"


class WorkerError(MinblasError):
    """A tuning process cannot be started."""


class StoppedError(Exception):
    """The process was ended from outside while it worked."""


class Remote:
    """Tunes shapes in a process of its own. Use as a context manager.

    Args:
        opening: what the process is told first.
        told: of every step before it is taken.
        limit_s: seconds without a sign of life after which a candidate counts as hung.
        unsent: variants that could not be sent, with the reason.
    """

    survives = True

    def __init__(self, opening: Opening, told: Told, limit_s: float, unsent: Mapping[str, str] | None = None) -> None:
        self._missing: dict[str, str] = dict(unsent or {})
        self._opening, self._told, self._limit_s = opening, told, limit_s
        self._process: _Process | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, task: Task) -> ShapeResult:
        """Tune a shape.

        Raises:
            DeviceLostError: a candidate took the process or the device down, or hung; the next shape gets a new process.
            WorkerError: no process can be started.
            StoppedError: `close` was called meanwhile.
        """
        process = self._start()
        step = Step("begin")
        message = ""
        process.send(task)
        try:
            while True:
                frame = process.receive(_COMPILE_S if step.name == "load" else self._limit_s)
                if isinstance(frame, Step):
                    step = frame
                    self._told(task, step)
                elif isinstance(frame, Lost):
                    step, message = Step(step.name, frame.picks), frame.message
                    break
                elif isinstance(frame, ShapeResult):
                    return frame
                else:
                    raise WorkerError(f"the tuning process sent {type(frame).__name__}", "a step or a result")
        except (EOFError, TimeoutError) as error:
            message = str(error)
        self._discard()
        raise DeviceLostError(step.picks, f"{message} (step: {step.name})")

    def lacking(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the variants that could not be sent; where all could, those that the process could not build.

        Raises:
            WorkerError: no process can be started.
            StoppedError: `close` was called.
        """
        asked = set(names)
        if not asked & set(self._missing):
            self._start()
        return {name: self._missing[name] for name in sorted(asked & set(self._missing))}

    def _start(self) -> _Process:
        """The running process; a new one where there is none.

        Raises:
            WorkerError: it does not start.
            StoppedError: `close` was called.
        """
        with self._lock:
            if self._stopped:
                raise StoppedError
            if self._process is not None:
                return self._process
            process = self._process = _Process()
        try:
            process.send(sys.path)
            process.send(self._opening)
            ready = process.receive(_START_S)
        except (EOFError, TimeoutError, OSError) as error:
            self._discard()
            raise WorkerError(
                f"the process that tunes on {self._opening.device} did not start: {error}",
                "a device that a new process can use",
                "isolate=False (--no-isolate) tunes in the calling process",
            ) from None
        assert isinstance(ready, Ready)
        self._missing |= ready.missing
        return process

    def close(self) -> None:
        """End the process, whatever it is doing."""
        with self._lock:
            self._stopped = True
        self._end()

    def _discard(self) -> None:
        """Forget a process that is of no use any more.

        Raises:
            StoppedError: it was `close` that ended it.
        """
        self._end()
        if self._stopped:
            raise StoppedError

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Process:
    """A spawned interpreter (never a fork: a CUDA context does not survive one) and the frames to and from it."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        pipe = subprocess.PIPE
        self._child = subprocess.Popen([sys.executable, "-c", _CODE], stdin=pipe, stdout=pipe, stderr=self._errors)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._sink, self._source = self._child.stdin, self._child.stdout
        self._frames: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_read, args=(self._source, self._frames.put), daemon=True)
        self._reader.start()

    def send(self, message: object) -> None:
        """Pass a message on. One that is lost with the process is noticed when the answer is waited for."""
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(message, self._sink)
            self._sink.flush()

    def receive(self, limit_s: float) -> Any:
        """The next message.

        Raises:
            EOFError: the process has ended.
            TimeoutError: there was none in time.
        """
        try:
            frame = self._frames.get(timeout=limit_s)
        except queue.Empty:
            raise TimeoutError(f"no sign of life for {limit_s:.0f} s") from None
        if frame is None:
            raise EOFError(self._obituary())
        return frame

    def end(self) -> None:
        """Kill it and wait for its end."""
        self._child.kill()
        self._child.wait()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError):
            self._sink.close()
        self._source.close()
        self._errors.close()

    def _obituary(self) -> str:
        """How the process ended, and the line of its standard error that says most."""
        code = self._child.wait()
        how = f"the process was ended by {_signal(-code)}" if code < 0 else f"the process ended with exit code {code}"
        try:
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
        except ValueError:  # closed by `end` in another thread
            return how
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "")
        return f"{how}: {telling[:200]}" if telling else how


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(source: BinaryIO, put: Callable[[Any], None]) -> None:
    """Pass frames on until there are no more, then None."""
    try:
        while True:
            put(pickle.load(source))
    except Exception:  # the process ended, perhaps in the middle of a frame
        put(None)
