"""Compiling many binaries in parallel worker processes.

The workers fill Triton's disk cache, so the parent's own compilation becomes a look-up. A worker that dies (some compilers abort on
some kernels) costs the job it held, not the others.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from kernel_zoo.build import Specialisation
from kernel_zoo.compile_worker import Answer, Job, compile_here

_TIMEOUT_S: Final = 300.0
_SCRIPT = Path(__file__).with_name("compile_worker.py")


def job_of(spec: Specialisation, cc: int) -> Job | None:
    """The specialisation in words another process understands, or None where its kernel or a constant cannot be named there."""
    fn = spec.kernel.fn
    module, qualname = fn.__module__, fn.__qualname__
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if module == "__main__" or found is not spec.kernel:
        return None
    about = (spec.signature, spec.constants, spec.divisors, spec.num_warps, spec.num_stages, spec.dependent)
    return module, qualname, *about, cc


class CompilePool:
    """Compiles in the order of submission; equal specialisations once. Use as a context manager.

    Attributes:
        workers: processes at most, by default one per CPU but one; 0 submits nothing and answers "unknown" at once.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = max(1, (os.cpu_count() or 1) - 1) if workers is None else workers
        self._jobs: queue.SimpleQueue[tuple[bytes, Future[Answer]] | None] = queue.SimpleQueue()
        self._futures: dict[tuple[Specialisation, int], Future[Answer]] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, spec: Specialisation, cc: int) -> Future[Answer]:
        """The pending answer for a specialisation."""
        known = self._futures.get((spec, cc))
        if known is not None:
            return known
        future: Future[Answer] = Future()
        self._futures[spec, cc] = future
        payload = self._payload(spec, cc) if self.workers else None
        if payload is None:
            future.set_result(Answer("unknown", "compiled in the calling process"))
            return future
        self._jobs.put((payload, future))
        if len(self._threads) < self.workers:
            thread = threading.Thread(target=self._drive, name=f"minblas-compile-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Drop what is pending and end the workers."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @staticmethod
    def _payload(spec: Specialisation, cc: int) -> bytes | None:
        job = job_of(spec, cc)
        try:
            return pickle.dumps(job) if job is not None else None
        except Exception:  # pickling runs the constants' own code
            return None

    def _drive(self) -> None:
        """One thread: keeps one worker process busy."""
        worker: _Worker | None = None
        try:
            while (item := self._jobs.get()) is not None:
                payload, future = item
                if self._closed:
                    future.cancel()
                    continue
                if worker is not None and not worker.alive:
                    worker.stop()
                    worker = None
                try:
                    worker = worker or _Worker()
                except OSError as error:  # out of processes or memory; whoever waits must not wait for ever
                    future.set_result(Answer("unknown", f"the compiler process could not start ({error})"))
                    continue
                future.set_result(worker.ask(payload))
        finally:
            if worker is not None:
                worker.stop()


class _Worker:
    """One process and the conversation with it."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, str(_SCRIPT)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._sink, self._source = self._process.stdin, self._process.stdout
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, payload: bytes) -> Answer:
        """Send a job and wait for its answer."""
        process = self._process
        timer = threading.Timer(_TIMEOUT_S, process.kill)
        timer.start()
        try:
            if not self._ready:
                pickle.dump(sys.path, self._sink)
                self._sink.flush()
                pickle.load(self._source)
                self._ready = True
            pickle.dump(payload, self._sink)
            self._sink.flush()
            return Answer(*pickle.load(self._source))
        except (EOFError, OSError, pickle.UnpicklingError):
            process.kill()
            code = process.wait()
            if not self._ready:
                return Answer("unknown", f"the compiler process could not start (exit code {code})")
            return Answer("failed", f"the compiler process ended (exit code {code})")
        finally:
            timer.cancel()

    def stop(self) -> None:
        process = self._process
        process.kill()
        process.wait()
        self._sink.close()
        self._source.close()


def compile_all(jobs: Iterable[tuple[Specialisation, int]], workers: int | None = None) -> dict[tuple[Specialisation, int], Answer]:
    """The answer for every (specialisation, compute capability); what no worker can take is compiled here.

    Args:
        jobs: duplicates are compiled once.
        workers: processes, by default one per CPU, since this one only waits; 0 compiles here.
    """
    unique = list(dict.fromkeys(jobs))
    count = os.cpu_count() if workers is None else workers
    with CompilePool(0 if len(unique) < 2 else count) as pool:
        futures = [(job, pool.submit(*job)) for job in unique]
        answers = {job: future.result() for job, future in futures}
    return {job: compile_here(*job) if answer.status == "unknown" else answer for job, answer in answers.items()}


__all__ = ["Answer", "CompilePool", "compile_all", "job_of"]
