"""A launch from C: one function that fills the gaps of a parameter buffer and calls the driver.

The C source beside this file is built at first use by triton's own builder, with the compiler that triton needs too, into triton's
cache. What it relies on of triton is what a compiled kernel takes: its parameters in the signature's order, descriptors as a tensor
map with sizes and strides, then the two scratch pointers. The driver is asked whether the loaded kernel has such parameters.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from kernel_zoo.spec import Descriptor, Scalar, View
from minblas.launch_adapters import DirectLaunch, Launch, tensor_map
from minblas.launch_arguments import VALUES, ByAddress, offset_of

_WARP: Final = 32
_MAP_BYTES: Final = 128
_MAP_ALIGNMENT: Final = 128
_ADDRESS, _FLOAT, _DOUBLE, _MAP = range(4)  # the C source's Kind
_SCALARS: Final = {"fp32": (_FLOAT, 4), "fp64": (_DOUBLE, 8)}
_INTEGERS: Final = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


class NativeLaunch(DirectLaunch):
    """From C, for kernels without clusters and scratch memory."""

    __slots__ = ()

    def _made(self) -> Launch:
        binary, run = self._binary, self._binary.run
        warps, clusters, shared = binary.packed_metadata
        if clusters != 1:
            raise LookupError(f"the kernel runs in clusters of {clusters}")
        parameters = _Parameters(binary)
        for i, kind in enumerate(binary.src.signature.values()):
            if kind != "constexpr":
                parameters.add(kind, self._call.args[i])
        for _ in range(2):  # scratch memory: global, profile
            parameters.constant("Q", 0)
        made: Launch = native_module().Launch(
            binary.function, self._index, self._grid, warps * _WARP, shared, run.launch_cooperative_grid, run.launch_pdl,
            bytes(parameters.buffer), tuple(parameters.places), tuple(parameters.gaps), len(VALUES),
        )  # fmt: skip
        return made


class _Parameters:
    """A kernel's parameters as they are laid out, one after another, each aligned to its size."""

    def __init__(self, binary: Any) -> None:
        self.buffer = bytearray()
        self.places: list[tuple[int, int]] = []  # where each starts, and its bytes
        self.gaps: list[tuple[int, int, int, int, ByAddress | None]] = []
        self._described = iter(getattr(binary.metadata, "tensordesc_meta", None) or ())

    def add(self, kind: str, arg: Any) -> None:
        """What the kernel takes for an argument of a type."""
        if isinstance(arg, View):
            self._gap(_ADDRESS, 8, arg.slot, offset_of(arg))
        elif isinstance(arg, Descriptor):
            encode, rest = tensor_map(arg, next(self._described, None))
            self._gap(_MAP, _MAP_BYTES, arg.view.slot, 0, ByAddress(_bytes_of(encode), offset_of(arg.view)))
            for i, number in enumerate(rest):
                self.constant("i" if i < len(arg.shape) else "q", number)
        elif isinstance(arg, Scalar) and kind in _SCALARS:
            self._gap(*_SCALARS[kind], arg.name)
        elif kind in _INTEGERS and isinstance(arg, int):
            self.constant(_INTEGERS[kind], arg)
        else:
            raise LookupError(f"a parameter is {arg!r} of type {kind}")

    def constant(self, form: str, number: int) -> None:
        """A number that is known now."""
        self._place(struct.calcsize(form), struct.calcsize(form))
        self.buffer[-struct.calcsize(form) :] = struct.pack(form, number)

    def _gap(self, kind: int, size: int, name: str, shift: int = 0, kept: ByAddress | None = None) -> None:
        offset = self._place(size, min(size, _MAP_ALIGNMENT))
        self.gaps.append((kind, offset, VALUES.index(name), shift, kept))

    def _place(self, size: int, alignment: int) -> int:
        offset = -(-len(self.buffer) // alignment) * alignment
        self.buffer.extend(bytes(offset + size - len(self.buffer)))
        self.places.append((offset, size))
        return offset


def _bytes_of(encode: Callable[[int], Any]) -> Callable[[int], bytes]:
    """Triton's encoded maps as bytes: a map is the last member of the object that holds it."""

    def encoded(address: int) -> bytes:
        made = encode(address)
        size: int = type(made).__basicsize__
        if type(made).__name__.rpartition(".")[2] != "PyCUtensorMap" or size not in (_MAP_BYTES + 64, _MAP_BYTES + 128):
            raise LookupError(f"an encoded tensor map is a {type(made).__name__} of {size} bytes")
        return ctypes.string_at(id(made) + size - _MAP_BYTES, _MAP_BYTES)

    return encoded


@cache
def native_module() -> Any:
    """The C part, built where it is not in triton's cache yet."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_module_from_src

    source = Path(__file__).with_name("launch_native.c").read_text(encoding="utf-8")
    include = Path(driver.__file__).parent / "include"
    return compile_module_from_src(src=source, name="minblas_launch", library_dirs=[], include_dirs=[str(include)], libraries=[])
