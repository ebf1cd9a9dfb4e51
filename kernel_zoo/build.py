"""From a launch as data to a binary: the one place where a recipe becomes a signature, attributes and compile options.

The plan, the compile gate and the resource data all build through here, so what is gated is what is launched. Compiling needs
no GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from kernel_zoo.digest import unspecialised
from kernel_zoo.spec import INT32_MAX, Descriptor, KernelCall, Resources, Scalar, View, pow2_divisor
from kernel_zoo.triton_compat import HAVE_GLUON, HAVE_TRITON, gl, is_gluon

TRITON_TYPES: Final[dict[str, str]] = {
    "fp64": "fp64",
    "fp32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "fp8e4m3": "fp8e4nv",
    "fp8e5m2": "fp8e5",
}

#: The names that Gluon's language has for the types a descriptor may hold.
_GLUON_TYPES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int32": "int32", "int8": "int8", "uint8": "uint8",
                       "fp8e4m3": "float8e4nv", "fp8e5m2": "float8e5"}  # fmt: skip
#: The least compute capability on which a launch can depend on the one before it.
DEPENDENT_CC: Final = 90
_DIVISOR_LIMIT: Final = 16
_LEAST_DIVISOR: Final = 2  # two 16-bit numbers make a 4-byte access, the narrowest that can be copied asynchronously


@dataclass(frozen=True, slots=True)
class Specialisation:
    """All a binary depends on besides its source and target. Hashable: the key of the binary cache.

    `signature` has one entry per kernel parameter; "constexpr" where the value is in `constants`. `divisors` gives, per parameter,
    the power of two known to divide it (an address in bytes, an integer in units), or 0.
    """

    kernel: Any
    signature: tuple[str, ...]
    constants: tuple[tuple[int, Any], ...]
    divisors: tuple[int, ...]
    num_warps: int
    num_stages: int
    dependent: bool = False

    @property
    def source(self) -> Any:
        """The triton ASTSource, or Gluon's."""
        if is_gluon(self.kernel):
            from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
        else:
            from triton.compiler import ASTSource

        names = self.kernel.arg_names
        attributes = {(i,): [["tt.divisibility", d]] for i, d in enumerate(self.divisors) if d}
        constants = {(i,): value for i, value in self.constants}
        return ASTSource(self.kernel, dict(zip(names, self.signature, strict=True)), constants, attributes)

    def options(self, cc: int) -> dict[str, int]:
        """Compile options for a compute capability."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return {**options, "launch_pdl": True} if self.dependent and cc >= DEPENDENT_CC else options


def specialise(call: KernelCall) -> Specialisation:
    """The specialisation a launch needs.

    Integers equal to 1 or 0 become constants: a unit stride left as an argument would hinder vectorising, and a zero
    one lets a broadcast fold away. A parameter that the kernel's decorator names in `do_not_specialize` stays an argument of which
    nothing is known, whatever its value, so that one binary serves all; `do_not_specialize_on_alignment` is honoured likewise.

    Raises:
        TypeError: the arguments and constants do not match the kernel's parameters.
    """
    names = call.kernel.arg_names
    positional = len(call.args)
    missing = [name for name in names[positional:] if name not in call.constants]
    unknown = [name for name in call.constants if name not in names[positional:]]
    if positional > len(names) or missing or unknown:
        raise TypeError(
            f"{call.kernel.__name__} takes {len(names)} parameters and got {positional} positional arguments; "
            f"missing constants: {missing or 'none'}; unknown constants: {unknown or 'none'}"
        )
    signature: list[str] = []
    constants: list[tuple[int, Any]] = []
    divisors: list[int] = []
    general, unaligned = unspecialised(call.kernel)
    for name, arg in zip(names, call.args, strict=False):
        if isinstance(arg, Descriptor):
            kind, divisor = tensordesc(arg, is_gluon(call.kernel)), 0
        else:
            kind, divisor = _parameter(arg, name in general)
        if kind == "constexpr":
            constants.append((len(signature), arg))
        signature.append(kind)
        divisors.append(0 if name in unaligned else divisor)
    for i, name in enumerate(names[positional:], positional):
        constants.append((i, call.constants[name]))
        signature.append("constexpr")
        divisors.append(0)
    return Specialisation(
        call.kernel, tuple(signature), tuple(constants), tuple(divisors), call.num_warps, call.num_stages, call.dependent
    )


def _parameter(arg: object, general: bool) -> tuple[str, int]:
    """A launch argument's type in the signature and the divisor known of it; `general`: nothing may be known of its value."""
    if isinstance(arg, View):
        return f"*{TRITON_TYPES[arg.dtype]}", arg.operand.align if arg.operand.align > 1 else 0
    if isinstance(arg, Scalar):
        return TRITON_TYPES[arg.dtype], 0
    if isinstance(arg, int) and not isinstance(arg, bool) and (general or arg not in (0, 1)):
        divisor = 0 if general else pow2_divisor(arg, _DIVISOR_LIMIT)
        return "i32" if -INT32_MAX <= arg <= INT32_MAX else "i64", divisor if divisor >= _LEAST_DIVISOR else 0
    return "constexpr", 0


def tensordesc(described: Descriptor, of_gluon: bool) -> str:
    """A descriptor's type in the signature; one of Gluon's says how its blocks lie in shared memory."""
    dtype, block = TRITON_TYPES[described.view.dtype], ", ".join(map(str, described.block))
    layout = f",{block_layout(described.block, described.view.dtype)!r}" if of_gluon else ""
    return f"tensordesc<{dtype}[{block}]{layout}>"


@cache
def block_layout(block: tuple[int, ...], dtype: str) -> Any:
    """How Gluon lays a block of a descriptor out in shared memory: by default, as kernels that ask for none assume.

    Raises:
        ImportError: triton is not installed, or has no Gluon.
    """
    if not HAVE_GLUON:
        raise ImportError("a Gluon kernel needs a triton that has Gluon; it is not installed (pip install triton)")
    return gl.NVMMASharedLayout.get_default_for(list(block), getattr(gl, _GLUON_TYPES[dtype]))


def compile_binary(spec: Specialisation, cc: int) -> Any:
    """The compiled kernel for a compute capability (90 for 9.0). Needs triton, not a GPU; cached on disk by triton.

    Raises:
        ImportError: triton is not installed.
    """
    if not HAVE_TRITON:
        raise ImportError("compiling a kernel needs triton; it is not installed (pip install triton)")
    import triton
    from triton.backends.compiler import GPUTarget

    return triton.compile(spec.source, target=GPUTarget("cuda", cc, 32), options=spec.options(cc))


_INSTRUCTIONS: Final = {
    "wgmma": r"\b[HQI]GMMA\b|\bBGMMA\b",
    "tcgen05": r"\bUTC\w*MMA\b",
    "mma": r"\b[HQID]MMA\b",
    "tma": r"\bUTMA\w+\b",
    "cp.async": r"\bLDGSTS\b",
    "ffma": r"\bFFMA2?\b",  # FFMA2 forms two products at a time (10.0)
}


def resources(compiled: Any) -> Resources:
    """Shared memory, registers, local-memory accesses and instruction kinds, read from a compiled kernel's machine code."""
    sass = disassemble(compiled.asm["cubin"])
    registers = re.search(r"REG:(\d+)", sass)
    found = tuple(kind for kind, pattern in _INSTRUCTIONS.items() if re.search(pattern, sass))
    return Resources(
        shared_bytes=compiled.metadata.shared,
        registers=int(registers.group(1)) if registers else 0,
        spills=len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        instructions=found,
    )


def disassemble(cubin: bytes) -> str:
    """SASS and resource usage, through the cuobjdump that ships with triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(cubin)
    try:
        command = [str(tool) if tool.exists() else "cuobjdump", "-res-usage", "-sass", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    finally:
        os.unlink(file.name)
