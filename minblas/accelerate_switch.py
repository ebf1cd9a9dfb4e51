"""Putting our kernels in the place of torch's in the dispatcher, and taking them out again.

Process-wide, counted by device: in the table while anyone wants them there. torch's own kernel is fetched before it is covered, and
lies there untouched until ours is removed, so leaving restores the table exactly, whoever else registered something meanwhile.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from minblas.accelerate_kernels import OVERLOADS, kernel_for
from minblas.dynamo import unseen_by_dynamo

KEYS: Final = {"cuda": "CUDA", "cpu": "CPU"}
#: A thread may have looked up a kernel of ours and wait for Python's lock while it is taken out: torch would free it under that
#: thread (an internal assertion of its own is what one sees). So they are kept for a while.
_KEPT_S: Final = 60.0
_MOST_KEPT: Final = 1024


class Switch:
    """Who wants the kernels on which device."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wanted: Counter[str] = Counter()
        self._installed: dict[str, Installed] = {}
        self._removed: deque[tuple[float, Installed]] = deque()
        self._warned = False

    def add(self, devices: Iterable[str]) -> None:
        """Want the kernels on some devices; in force for all threads on return.

        Raises:
            Exception: what torch raised; nothing changed then.
        """
        with self._lock:
            added: list[str] = []
            try:
                for device in devices:
                    if not self._wanted[device]:
                        self._install(device)
                    self._wanted[device] += 1
                    added.append(device)
            except BaseException:
                self.remove(added)
                raise

    def remove(self, devices: Iterable[str]) -> None:
        """Want them no longer."""
        with self._lock:
            for device in devices:
                self._wanted[device] -= 1
                if not self._wanted[device]:
                    installed = self._installed.pop(device)
                    installed.remove()
                    self._keep(installed)

    def devices(self) -> tuple[str, ...]:
        """Where the kernels are in force."""
        with self._lock:
            return tuple(sorted(self._installed))

    def _install(self, device: str) -> None:
        with self._quietly():
            self._installed[device] = Installed(KEYS[device])

    def _keep(self, installed: Installed) -> None:
        now = time.monotonic()
        self._removed.append((now, installed))
        while len(self._removed) > _MOST_KEPT or now - self._removed[0][0] > _KEPT_S:
            self._removed.popleft()

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """torch warns once in a process that a kernel of its own is covered; here that is what was asked for."""
        if self._warned:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            yield
        self._warned = True


class Installed:
    """Our kernels on one dispatch key."""

    def __init__(self, key: str) -> None:
        names = [name for name in OVERLOADS if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)]
        kernels = {name: kernel_for(name, torch.library.get_kernel(f"aten::{name}", key)) for name in names}
        unseen_by_dynamo(kernels.values(), "the kernels of minblas.accelerate run as they are")
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._handles: list[Any] = []
        try:
            for name, kernel in kernels.items():
                self._library.impl(name, kernel, key, with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]
                self._handles.append(torch.library.get_kernel(f"aten::{name}", key))  # keeps it alive, see _KEPT_S
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take them out."""
        self._library._destroy()  # type: ignore[no-untyped-call]


SWITCH: Final = Switch()
