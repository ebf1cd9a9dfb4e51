"""accelerate: torch's own products, wherever they are called from, computed by minblas."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Collection
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Final, TypeVar

import torch

from minblas import accelerate_product, log, settings
from minblas.accelerate_switch import KEYS, SWITCH
from minblas.dynamo import unseen_by_dynamo
from minblas.errors import ArgumentError, suggestion
from minblas.inside import INSIDE

F = TypeVar("F", bound=Callable[..., Any])
Devices = str | torch.device | Collection[str | torch.device]

_LOCK: Final = threading.Lock()
_enabled: list[tuple[str, ...]] = []


class accelerate(ContextDecorator):  # noqa: N801  (read as a verb: with minblas.accelerate():)
    """Let minblas compute what torch calls mm, addmm, bmm, baddbmm and addmv, and so all that comes down to them.

    >>> with minblas.accelerate():          # doctest: +SKIP
    ...     loss = model(x).sum()
    ...     loss.backward()
    >>> @minblas.accelerate()               # doctest: +SKIP
    ... def step(x): ...
    >>> minblas.accelerate.enable()         # doctest: +SKIP

    Linear, matmul, einsum, multi_dot, tensordot, attention's math path: forward and backward, eager, and in graphs that
    torch.compile made, which call what is in force when they run. torch's rules hold (types, shapes, broadcasting, out=, errors):
    what minblas does not serve is torch's own kernel, and `minblas.stats` counts by op what was served, by which variant, and what
    was left and why.

    It is process-wide: while one thread is inside, all threads are. Blocks nest and may overlap between threads; the last to leave
    puts torch's kernels back, exceptions or not. Options of `minblas.options` that surround it hold in all threads that have none
    of their own, autograd's too. Enter it outside of torch.compile's functions, and around a step rather than around each product:
    entering takes milliseconds.

    Not reached: cuDNN and fused attention, torch._scaled_mm, what inductor compiles with cpp_wrapper or AOTInductor (which call
    aten's kernels directly), and CUDA graphs captured outside. A CUDA graph captured inside keeps our kernels.

    Args:
        devices: "cuda", "cpu" or both, or devices of these kinds: all GPUs are reached, whichever is named. By default CUDA where
            there is a GPU; else the CPU, whose tensors the interpreter computes: right, and slow.

    Raises:
        ArgumentError: a device that cannot be served; a function, given without parentheses.
    """

    def __init__(self, devices: Devices | None = None) -> None:
        self._devices = _names(devices)
        self._open: list[tuple[int, settings.Options | None]] = []  # who is inside, by thread: threads may share one object

    def __enter__(self) -> accelerate:
        SWITCH.add(self._devices)
        options = settings.local()
        self._open.append((threading.get_ident(), options))
        if options is not None:
            accelerate_product.take(options)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        options = self._left()
        if options is not None:
            accelerate_product.untake(options)
        SWITCH.remove(self._devices)

    def _left(self) -> settings.Options | None:
        """The options that this thread came in with last; of a block that ends in another thread, those of whoever came last."""
        me = threading.get_ident()
        with _LOCK:
            mine = [place for place, (thread, _) in enumerate(self._open) if thread == me]
            return self._open.pop(mine[-1] if mine else -1)[1]

    def __call__(self, function: F) -> F:
        """The function, accelerated whenever it runs.

        Raises:
            ArgumentError: its body does not run when it is called: a generator or a coroutine; or it is a class.
        """
        _check_runs_when_called(function)
        return super().__call__(function)

    def _recreate_cm(self) -> accelerate:
        return accelerate(self._devices)  # a decorated function may run in many threads at once

    @staticmethod
    def enable(devices: Devices | None = None) -> None:
        """Accelerate from now on, until `disable`. Enabling again only changes the devices."""
        names = _names(devices)
        with _LOCK:
            SWITCH.add(names)
            _turn_off()
            _enabled.append(names)

    @staticmethod
    def disable() -> None:
        """Undo `enable`; blocks that are open stay in force. Nothing happens where it is not enabled."""
        with _LOCK:
            _turn_off()

    @staticmethod
    def devices() -> tuple[str, ...]:
        """Where products are accelerated now; () for nowhere."""
        return SWITCH.devices()

    @staticmethod
    def suspended() -> Any:
        """A block in which this thread's products are torch's own again. A backward pass on a GPU runs in a thread of its own."""
        return INSIDE


def _turn_off() -> None:
    while _enabled:
        SWITCH.remove(_enabled.pop())


def _names(devices: Any) -> tuple[str, ...]:
    if devices is None:
        return _default()
    if not isinstance(devices, (str, torch.device, Collection)):
        given = f"accelerate is given a {type(devices).__name__}"
        raise ArgumentError(given, 'devices, as in accelerate(devices="cuda")', "a decorator is written @minblas.accelerate()")
    listed = [devices] if isinstance(devices, (str, torch.device)) else list(devices)
    names = tuple(dict.fromkeys(map(_kind, listed)))
    for name in names:
        if name not in KEYS:
            raise ArgumentError(f"devices has {name!r}", " or ".join(map(repr, KEYS)), suggestion(name, KEYS))
    if not names:
        raise ArgumentError("devices is empty", "at least one device", "leave devices away for the default")
    if "cuda" in names and torch.version.cuda is None:
        raise ArgumentError("devices has 'cuda'", "a torch that is built for CUDA", "install one, or pass devices='cpu'")
    return names


def _kind(device: Any) -> str:
    """The kind of a device; what is none as it was written, for the refusal to name."""
    with contextlib.suppress(RuntimeError):
        if isinstance(device, (str, torch.device)):
            return torch.device(device).type
    return str(device)


@functools.cache
def _default() -> tuple[str, ...]:
    if torch.version.cuda is not None and torch.cuda.device_count():
        return ("cuda",)
    log.once("launch", "accelerate: there is no GPU; products of CPU tensors run in Triton's interpreter: right, and slow")
    return ("cpu",)


def _check_runs_when_called(function: Any) -> None:
    bare = inspect.unwrap(function) if callable(function) else function
    while isinstance(bare, functools.partial):
        bare = bare.func
    called = bare if inspect.isroutine(bare) else getattr(type(bare), "__call__", None)  # noqa: B004  (its code is read)
    suspends = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if not callable(function) or inspect.isclass(bare) or any(test(each) for test in suspends for each in (bare, called)):
        given = f"accelerate() decorates {getattr(function, '__qualname__', function)!r}"
        needed = "a function whose body runs when it is called (no class, generator or coroutine)"
        raise ArgumentError(given, needed, "write `with minblas.accelerate():` inside it, around what does not yield or await")


unseen_by_dynamo(
    (accelerate.__init__, accelerate.__enter__, accelerate.__exit__, accelerate.enable, accelerate.disable),
    "minblas.accelerate is entered outside of graphs; they call what is in force when they run",
)
