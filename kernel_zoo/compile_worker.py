"""A process that compiles kernels for another one and leaves the binaries in Triton's disk cache.

Run by path, not as part of the package, so that it imports triton and the kernels but not torch: it starts in a second and never
touches a device. It reads pickled frames from standard input: first the parent's sys.path, then jobs; each job is answered by an
Answer's fields, with status "ok", "failed" or "unknown" (the kernel cannot be found here; the parent must compile it).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from kernel_zoo.spec import Resources

#: (module, qualified name, signature, constants, divisors, num_warps, num_stages, dependent, compute capability)
Job = tuple[str, str, tuple[str, ...], tuple[tuple[int, Any], ...], tuple[int, ...], int, int, bool, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a compilation ended: "ok", "failed" or "unknown", why, and what the binary needs where that could be read.

    `seconds` is what it took, next to nothing where the binary was in Triton's disk cache (`cached`).
    """

    status: str
    message: str = ""
    resources: Resources | None = None
    seconds: float = field(default=0.0, compare=False)
    cached: bool = field(default=False, compare=False)


def find_kernel(module: str, qualname: str) -> Any:
    """The jitted function of that name."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def compile_job(job: Job) -> Answer:
    """Compile one binary into the disk cache, and read what it needs."""
    from kernel_zoo.build import Specialisation

    module, qualname, signature, constants, divisors, num_warps, num_stages, dependent, cc = job
    try:
        kernel = find_kernel(module, qualname)
    except Exception as error:  # a user's module may fail to import in any way
        return Answer("unknown", f"{module}.{qualname}: {error!r}")
    spec = Specialisation(kernel, signature, constants, divisors, num_warps, num_stages, dependent)
    return compile_here(spec, cc, launcher=True)


def compile_here(spec: Any, cc: int, *, launcher: bool = False, read: bool = True) -> Answer:
    """Compile a specialisation in this process; where asked, its C launcher too, and read what the binary needs."""
    from kernel_zoo.build import compile_binary, resources

    began = time.perf_counter()
    with _cache_hits() as hits:
        try:
            compiled = compile_binary(spec, cc)
        except Exception as error:  # the compiler raises types of its own, MLIR's included
            text = str(error) or repr(error)
            message = f"{type(error).__name__}: {text.strip().splitlines()[-1] if text.strip() else ''}"
            return Answer("failed", message, seconds=time.perf_counter() - began)
    if launcher:
        build_launcher(compiled)
    took, cached = time.perf_counter() - began, any(hits)
    try:
        return Answer("ok", "", resources(compiled) if read else None, took, cached)
    except (OSError, subprocess.CalledProcessError):  # no disassembler: the binary is there all the same
        return Answer("ok", "", None, took, cached)


@contextlib.contextmanager
def _cache_hits() -> Iterator[list[bool]]:
    """A list that gets, for each compilation in the block, whether triton found the binary on disk."""
    hits: list[bool] = []
    try:
        from triton import knobs
    except ImportError:
        yield hits
        return
    before = knobs.compilation.listener

    def listen(**event: Any) -> None:
        hits.append(bool(event.get("cache_hit")))
        if before is not None:
            before(**event)

    knobs.compilation.listener = listen
    try:
        yield hits
    finally:
        knobs.compilation.listener = before


def build_launcher(compiled: Any) -> None:
    """Compile the C launcher too, where triton makes one for each signature (3.6 does, when a kernel is first loaded).

    Hundreds of signatures at half a second each would otherwise be compiled one after the other in the calling process.
    """
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher"):
        with contextlib.suppress(Exception):  # without a CUDA driver it cannot be linked, nor is it needed
            driver.CudaLauncher(compiled.src, compiled.metadata)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer jobs until the input ends."""
    sys.path[:] = pickle.load(source)
    import triton

    import kernel_zoo.build  # noqa: F401  (fails here rather than at the first job)

    _send(sink, Answer("ready", triton.__version__))
    while True:
        try:
            payload: bytes = pickle.load(source)
        except EOFError:
            return
        try:
            job: Job = pickle.loads(payload)
        except Exception as error:  # a constant of a type this process cannot import
            answer = Answer("unknown", repr(error))
        else:
            answer = compile_job(job)
        _send(sink, answer)


def _send(sink: BinaryIO, answer: Answer) -> None:
    pickle.dump((answer.status, answer.message, answer.resources, answer.seconds, answer.cached), sink)
    sink.flush()


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a compiler prints must not end up among the answers
    serve(sys.stdin.buffer, channel)
