"""The arguments of one launch: a list that lies ready, with gaps for what is read at every call.

What a tensor descriptor becomes is made once per address and kept, up to a bound: a tensor map holds an address and no memory, so
one whose tensor is gone is merely of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from kernel_zoo.build import block_layout
from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import Argument, Descriptor, KernelCall, Scalar, View
from kernel_zoo.triton_compat import is_gluon
from minblas.launch import SLOTS, Slots

#: What a direct launch is called with, in this order: the slots' addresses (0 where there is none), the scalars, the raw stream.
VALUES: Final = (*SLOTS, "ALPHA", "BETA", "STREAM")
_INDEX: Final = {name: i for i, name in enumerate(VALUES)}
#: Objects kept per descriptor argument: a model's layers share plans, and each has a weight of its own.
MOST_KEPT: Final = 1024

#: From a descriptor, and what the compiled kernel says of it: what stands for it at an address, and the arguments that follow.
Expand = Callable[[Descriptor, Any], tuple[Callable[[int], Any], Sequence[int]]]


class Address:
    """What triton's descriptor encoder reads of a tensor: where it starts and what it holds."""

    __slots__ = ("address", "dtype")

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address."""
        return self.address


class HostDescriptor:
    """A tensor descriptor with the attributes that triton's launcher reads, without the checks of its own class."""

    __slots__ = ("base", "block_shape", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(self, described: Descriptor, address: int) -> None:
        self.base = Address(address, TORCH_DTYPES[described.view.dtype])
        self.shape = list(described.shape)
        self.strides = list(described.strides)
        self.block_shape = list(described.block)
        self.padding = "zero"
        self.round_f32_to_tf32 = False


class ByAddress(dict[int, Any]):
    """What is passed for an address; made where it is missing, and forgotten with all others when there are too many."""

    def __init__(self, make: Callable[[int], Any], offset: int = 0) -> None:
        super().__init__()
        self._make = make
        self._offset = offset

    def __missing__(self, address: int) -> Any:
        made = self._make(address + self._offset)
        if len(self) >= MOST_KEPT:
            self.clear()
        self[address] = made
        return made


class Arguments:
    """Everything a launch is called with. Holds no tensor.

    Attributes:
        ready: the arguments; copy it before the gaps are filled.
        gaps: (place in the list, place among VALUES) of what is passed as it is.
        made: likewise, of what is passed for an address, and the dict that has it.
    """

    __slots__ = ("gaps", "made", "ready")

    def __init__(self, call: KernelCall, binary: Any, expand: Expand, head: Sequence[Any] = ()) -> None:
        """Args: the launch, its compiled kernel, what a descriptor becomes, what goes before the kernel's own arguments."""
        self.ready = [*head]
        gaps: list[tuple[int, int]] = []
        made: list[tuple[int, int, ByAddress]] = []
        metadata = iter(getattr(binary.metadata, "tensordesc_meta", None) or ())
        for arg in call.args:
            place = len(self.ready)
            if isinstance(arg, Descriptor):
                make, rest = expand(arg, next(metadata, None))
                made.append((place, _INDEX[arg.view.slot], ByAddress(make, offset_of(arg.view))))
                self.ready.extend((None, *rest))
                continue
            if isinstance(arg, View) and offset_of(arg):
                made.append((place, _INDEX[arg.slot], ByAddress(int, offset_of(arg))))
            elif isinstance(arg, View | Scalar):
                gaps.append((place, _INDEX[arg.slot if isinstance(arg, View) else arg.name]))
            self.ready.append(arg)
        # Constants take their places: the launcher wants an object for each, and passes none of them on.
        self.ready += constants_of(call)
        self.gaps = tuple(gaps)
        self.made = tuple(made)


def values_of(slots: Slots, alpha: float, beta: float, stream: int) -> tuple[Any, ...]:
    """VALUES for tensors by slot."""
    return (*[slots[name].data_ptr() if name in slots else 0 for name in SLOTS], alpha, beta, stream)


def as_triton_takes_them(call: KernelCall, slots: Slots, alpha: float, beta: float) -> list[Any]:
    """A launch's arguments as a caller of triton's would write them: tensors, and triton's own descriptors."""
    describe = _gluon_descriptor if is_gluon(call.kernel) else _triton_descriptor
    return [_for_triton(arg, slots, alpha, beta, describe) for arg in call.args]


def _for_triton(arg: Argument, slots: Slots, alpha: float, beta: float, describe: Callable[[Descriptor, torch.Tensor], Any]) -> Any:
    if isinstance(arg, View):
        return _typed(slots[arg.slot], arg)
    if isinstance(arg, Descriptor):
        return describe(arg, _typed(slots[arg.view.slot], arg.view))
    if isinstance(arg, Scalar):
        return alpha if arg.name == "ALPHA" else beta
    return arg


def _triton_descriptor(described: Descriptor, base: torch.Tensor) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(base, list(described.shape), list(described.strides), list(described.block))


def _gluon_descriptor(described: Descriptor, base: torch.Tensor) -> Any:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = block_layout(described.block, described.view.dtype)
    return TensorDescriptor(base, list(described.shape), list(described.strides), list(described.block), layout)


def constants_of(call: KernelCall) -> list[Any]:
    """The values of the parameters that a launch does not pass by position, in the kernel's order."""
    return [call.constants[name] for name in call.kernel.arg_names[len(call.args) :]]


def _typed(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """The slot's memory from where the view starts, under its element type (a workspace is bytes)."""
    dtype, offset = TORCH_DTYPES[view.dtype], offset_of(view)
    if offset:
        tensor = tensor.view(torch.uint8)[offset:]
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def offset_of(view: View) -> int:
    """Bytes into the slot at which a view starts."""
    return view.offset
