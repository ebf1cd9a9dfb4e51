"""A CUDA driver without a GPU: built from stub_libcuda.c, loaded before triton asks for the real one, and read back from here.

For a process of its own: the driver stays loaded, and triton's active driver is replaced.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import triton
from triton.backends.nvidia import driver as nvidia

SOURCE = Path(__file__).with_name("stub_libcuda.c")
STREAM = 4321
RING = 64  # MOST_LAUNCHES there


class Launch(ctypes.Structure):
    """What reached cuLaunchKernelEx; the C source has the same structure."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("attribute_count", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("attribute_ids", ctypes.c_uint32 * 4),
        ("attribute_values", ctypes.c_uint64 * 4),
        ("bytes", ctypes.c_uint32),
        ("parameters", ctypes.c_ubyte * 4096),
    )


class Stub:
    """The stand-in, loaded, and triton's driver over it, for a device of capability 9.0."""

    def __init__(self, folder: Path) -> None:
        built = folder / "libcuda.so.1"
        include = Path(nvidia.__file__).parent / "include"
        flags = ["-O2", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", f"-I{include}"]
        subprocess.run([os.environ.get("CC", "gcc"), *flags, str(SOURCE), "-o", str(built)], check=True)
        os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
        self._library = ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)  # found by its soname from now on
        self._launches = (Launch * RING).in_dll(self._library, "stub_launches")
        self._count = ctypes.c_uint64.in_dll(self._library, "stub_launch_count")
        self.encodings = ctypes.c_uint64.in_dll(self._library, "stub_encode_count")
        self.failure = ctypes.c_int.in_dll(self._library, "stub_fail_launch")
        self.context = ctypes.c_uint64.in_dll(self._library, "stub_context")
        active = nvidia.CudaDriver()
        active.get_device_capability = lambda device=None: (9, 0)
        active.get_current_device = lambda: 0
        active.get_current_stream = lambda device: STREAM
        triton.runtime.driver.set_active(active)

    def lay_out(self, binary: Any) -> int:
        """Tell the stand-in how long a loaded kernel's parameters are, as its machine code says; returns how many there are."""
        sizes = parameter_sizes(binary.asm["cubin"])
        self.set_layout(binary.function, sizes)
        return len(sizes)

    def set_layout(self, function: int, sizes: list[int]) -> None:
        """What a function's parameters are."""
        self._library.stub_set_layout(ctypes.c_uint64(function), len(sizes), (ctypes.c_uint32 * len(sizes))(*sizes))

    def launches_of(self, run: Any) -> list[dict[str, Any]]:
        """Everything that was launched while `run` ran."""
        before = self._count.value
        run()
        return [_as_dict(self._launches[i % RING]) for i in range(before, self._count.value)]


def parameter_sizes(cubin: bytes) -> list[int]:
    """Bytes of each parameter of the one kernel in a binary, from the description that ptxas puts there."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = Path(os.environ["TRITON_LIBCUDA_PATH"]) / "kernel.cubin"
    file.write_bytes(cubin)
    text = subprocess.run([str(tool), "-elf", str(file)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"Ordinal : (0x[0-9a-f]+)\s+Offset\s+: 0x[0-9a-f]+\s+Size\s+: (0x[0-9a-f]+)", text)
    sizes = {int(ordinal, 16): int(size, 16) for ordinal, size in found}
    return [sizes[i] for i in range(len(sizes))]


def _as_dict(launch: Launch) -> dict[str, Any]:
    count = launch.attribute_count
    return {
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.shared,
        "stream": launch.stream,
        "function": launch.function,
        "attributes": dict(zip(map(str, launch.attribute_ids[:count]), launch.attribute_values[:count], strict=True)),
        "parameters": bytes(launch.parameters[: launch.bytes]).hex(),
    }
