"""What an operand may be: a plain strided tensor of one known dtype, on the CPU or on one GPU.

For the cold path, but for `extent`, `check_version` and, of integers, `check_scalar`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from kernel_zoo.matrices import TORCH_DTYPES
from kernel_zoo.spec import canonical_dtype
from minblas.errors import ArgumentError, DeviceError, DTypeError, GradientError, OperandError, OutError
from minblas.overlap import Extent
from minblas.values import check_out_dtype

DTYPE_NAMES: Final[dict[torch.dtype, str]] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

_FLOATS: Final = ("fp16", "bf16", "fp32")
_EIGHT_BIT_FLOATS: Final = ("fp8e4m3", "fp8e5m2")


def extent(tensor: torch.Tensor) -> Extent:
    """The memory of a tensor."""
    size = tensor.element_size()
    return Extent(tensor.data_ptr(), size, tuple(tensor.shape), tuple(stride * size for stride in tensor.stride()))


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The sizes as plain integers."""
    return tuple(tensor.shape)


def broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that two broadcast to, or None."""
    sizes = []
    for left, right in itertools.zip_longest(reversed(one), reversed(other), fillvalue=1):
        if left != right and 1 not in (left, right):
            return None
        sizes.append(right if left == 1 else left)
    return tuple(reversed(sizes))


def is_fake(tensor: torch.Tensor) -> bool:
    """A tensor without data whose shapes are computed with, as in export and compilation."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def check_tensor(name: str, value: object) -> None:
    """Refuse what is not a strided tensor, of whatever class. torch.compile can trace it.

    Raises:
        OperandError: something else, or a sparse tensor.
    """
    if not isinstance(value, torch.Tensor):
        raise OperandError(f"{name} is a {type(value).__name__}", "a torch.Tensor", "convert it with torch.as_tensor")
    if value.layout != torch.strided:
        raise OperandError(f"{name} has layout {value.layout}", "torch.strided", f"pass {name}.to_dense()")


def check_plain(name: str, value: object) -> None:
    """Refuse what is not a strided tensor with its own memory.

    Raises:
        OperandError: something else, a sparse tensor, a wrapper around other tensors, or a tensor inside vmap or grad.
    """
    check_tensor(name, value)
    assert isinstance(value, torch.Tensor)
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise OperandError(
            f"{name} is wrapped by a function transform (torch.vmap, torch.func.grad)",
            "a tensor with memory of its own",
            "call minblas outside the transform, or use torch.matmul inside it",
        )
    dispatch = getattr(type(value), "__torch_dispatch__", torch._C._disabled_torch_dispatch_impl)
    if dispatch is not torch._C._disabled_torch_dispatch_impl and not is_fake(value):
        kind = type(value).__name__
        raise OperandError(
            f"{name} is a {kind}, a tensor subclass", "a plain torch.Tensor", f"unwrap it first ({kind}s: to_local(), dequantize())"
        )


def check_memory(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose memory was given back; a kernel would read address 0.

    Raises:
        OperandError: its storage is empty, and it is not.
    """
    if tensor.numel() and not tensor.data_ptr():
        raise OperandError(f"{name} has no memory: its storage was freed", "a tensor with memory", "restore its storage first")


def check_version(out: torch.Tensor) -> None:
    """Refuse to write, outside of inference mode, what was made in it: autograd could not see it.

    Raises:
        OutError: as torch has it.
    """
    if out.is_inference() and not torch.is_inference_mode_enabled():
        remedy = "call under torch.inference_mode(), or pass out.clone()"
        raise OutError("out was made in inference mode", "an out that was made outside of it", remedy)


def check_devices(tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """The one device all operands live on.

    Raises:
        DeviceError: they live on several, or on one that minblas does not serve.
    """
    device = tensors["a"].device
    for name, tensor in tensors.items():
        if tensor.device != device:
            given = f"a is on {device} and {name} on {tensor.device}"
            raise DeviceError(given, "all operands on one device", f"move it: {name}.to({str(device)!r})")
    if device.type not in ("cuda", "cpu", "meta") or (device.type == "cuda" and torch.version.hip is not None):
        raise DeviceError(f"operands are on {device}", "an NVIDIA GPU or the CPU", "use torch.matmul there")
    return device


def input_dtype(tensors: Mapping[str, torch.Tensor]) -> str:
    """The dtype that a and b share.

    Raises:
        DTypeError: they differ, or no kernel takes theirs.
    """
    a, b = tensors["a"].dtype, tensors["b"].dtype
    if a != b:
        raise DTypeError(f"a is {a} and b is {b}", "inputs of one dtype", f"convert one: b.to({a})")
    if a not in DTYPE_NAMES:
        raise DTypeError(f"a and b are {a}", f"one of {', '.join(DTYPE_NAMES.values())}", "convert the inputs")
    return DTYPE_NAMES[a]


def result_dtype(inputs: str, default: str, asked: object, out: torch.Tensor | None) -> str:
    """The result's dtype: what is asked for, else out's, else the default.

    Raises:
        DTypeError: `asked` and out disagree, or the inputs cannot be rounded to it.
    """
    wanted = dtype_name("out_dtype", asked) if asked is not None else None
    if out is not None:
        given = DTYPE_NAMES.get(out.dtype)
        if given is None or (wanted is not None and given != wanted):
            raise DTypeError(
                f"out is {out.dtype} and out_dtype is {asked}",
                "an out of the result's dtype",
                "leave out_dtype away, or change out",
            )
        wanted = given
    wanted = wanted or default
    return check_out_dtype("out_dtype" if out is None else "out", wanted, inputs)


def dtype_name(name: str, value: object) -> str:
    """The project's name of a dtype that a keyword gives.

    Raises:
        DTypeError: it is none.
    """
    try:
        return canonical_dtype(value)
    except ValueError as error:
        known = str(error)
    raise DTypeError(f"{name} is {value!r}", "a dtype as 'bf16', 'bfloat16' or torch.bfloat16", known)


def check_addend(name: str, tensor: torch.Tensor, inputs: str, result: str) -> str:
    """The dtype of c or bias.

    Raises:
        DTypeError: it is neither the inputs', nor the result's, nor fp32 beside floating-point inputs.
    """
    allowed = [inputs, *([result] if result != inputs else [])]
    if inputs in (*_FLOATS, *_EIGHT_BIT_FLOATS) and "fp32" not in allowed:
        allowed.append("fp32")
    given = DTYPE_NAMES.get(tensor.dtype)
    if given is None or given not in allowed:
        raise DTypeError(
            f"{name} is {tensor.dtype} beside {inputs} inputs and a {result} result",
            " or ".join(allowed),
            f"convert it: {name}.to(...)",
        )
    return given


def check_gradients(tensors: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> None:
    """Refuse out= where a gradient would have to flow through it.

    Raises:
        GradientError: an operand, or out, requires a gradient.
    """
    if out is None or not torch.is_grad_enabled():
        return
    for name, tensor in {**tensors, "out": out}.items():
        if tensor.requires_grad:
            raise GradientError(
                f"out= is given and {name} requires a gradient",
                "operands without gradients, since writing into out cannot be differentiated",
                "leave out= away, or call under torch.no_grad()",
            )


def check_scalar(name: str, value: object, inputs: str) -> float | complex:
    """alpha or beta as a Python number that the inputs' type can hold.

    Raises:
        ArgumentError: not a number: a matrix in its place, a tensor on a GPU, one with a gradient, a fraction for integer inputs.
    """
    if isinstance(value, torch.Tensor):
        check_scalar_tensor(name, value)
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, complex)):
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError  # float() would read it
            value = float(value)  # type: ignore[arg-type]  # numpy's scalars and the like
        except (TypeError, ValueError):
            raise ArgumentError(
                f"{name} is a {type(value).__name__}", "a number", f"{name} scales the product: pass a float"
            ) from None
    if isinstance(value, complex) and not inputs.startswith("complex"):
        raise ArgumentError(f"{name} is {value} for {inputs} inputs", "a real number", "convert the inputs to complex64 first")
    if inputs.removeprefix("u").startswith("int"):
        if isinstance(value, float) and not value.is_integer():
            raise ArgumentError(
                f"{name} is {value} for {inputs} inputs", "a whole number", "convert the inputs to a floating-point type first"
            )
        return int(value.real)
    return value


def check_scalar_tensor(name: str, value: torch.Tensor) -> None:
    """Refuse a tensor that cannot be read as alpha or beta.

    Raises:
        ArgumentError: it is a matrix, or on a GPU.
        GradientError: it wants a gradient.
    """
    if value.dim() != 0:
        raise ArgumentError(
            f"{name} is a tensor of shape {shape_of(value)}",
            "a number",
            "did you mean c= or out=? gemm(a, b, alpha, beta, c) takes numbers before c",
        )
    if value.device.type != "cpu":
        raise ArgumentError(
            f"{name} is a 0-d tensor on {value.device}",
            "a Python number or a 0-d CPU tensor",
            f"reading it would wait for the GPU; pass {name}.item() to do so",
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise GradientError(f"{name} requires a gradient", "a number without one", "scale the result with torch instead")
