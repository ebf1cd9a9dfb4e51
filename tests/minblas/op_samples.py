"""Calls of the ops, for tests that say something about all of them: layouts, batches, addends, types, empty sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

LAYOUTS = ("plain", "turned", "pitched", "shifted", "odd", "broadcast")
WHOLE = (torch.int8, torch.int32)


def laid(shape, layout="plain", dtype=torch.float64, grad=False):
    """Random values in a tensor of that shape.

    Layouts: turned (column-major), pitched (rows apart), shifted (an odd address), odd (any stride in size-1 dimensions, and a
    batch with gaps), broadcast (a batch of stride 0).
    """
    values = torch.randint(-5, 6, shape).to(dtype) if dtype in WHOLE else torch.randn(shape).to(dtype)
    batch, columns = shape[:-2], shape[-1]
    made = values
    if layout == "turned":
        made = values.mT.contiguous().mT if len(shape) > 1 else values
    elif layout == "pitched":
        made = torch.empty(*shape[:-1], columns + 5, dtype=dtype)[..., :columns]
    elif layout == "shifted":
        made = torch.empty(math.prod(shape) + 1, dtype=dtype)[1:].view(shape)
    elif layout == "odd" and math.prod(shape):
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step if size > 1 else 77)
            step = step * size + (3 if len(strides) > 1 else 0)
        made = torch.empty(step + 128, dtype=dtype).as_strided(shape, strides[::-1], 2)
    elif layout == "broadcast" and batch:
        values = values[(slice(0, 1),) * len(batch)]
        return values.expand(shape).requires_grad_(grad)
    if made is not values:
        made.copy_(values)
    return made.detach().requires_grad_(grad)


@dataclass
class Sample:
    """One call: operands' shapes and layouts, and the arguments that follow."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float64
    addend: torch.dtype | None = None
    layouts: tuple[str, str] = ("plain", "plain")
    alpha: Any = 1
    beta: Any = None
    rest: dict[str, Any] = field(default_factory=dict)

    def args(self, grad=False):
        """The op's arguments, in the schema's order."""
        grad = grad and self.dtype not in WHOLE
        kind = self.addend or self.dtype
        c = None if self.c is None else laid(self.c, self.layouts[0], kind, grad)
        bias = None if self.bias is None else laid(self.bias, "shifted", kind, grad)
        named = {"trans_a": False, "trans_b": False, "activation": None, "out_dtype": None, "precision": None, **self.rest}
        operands = (laid(self.a, self.layouts[0], self.dtype, grad), laid(self.b, self.layouts[1], self.dtype, grad))
        return (*operands, self.alpha, self.beta, c, bias, *named.values())


f16, bf16, f32, i8 = torch.float16, torch.bfloat16, torch.float32, torch.int8
SAMPLES = [
    Sample("plain", (5, 7), (7, 3)),
    Sample("fp32", (5, 7), (7, 3), dtype=f32),
    Sample("one row", (1, 7), (7, 3), layouts=("odd", "turned")),
    Sample("turned", (5, 7), (7, 3), layouts=("turned", "turned"), alpha=0.5),
    Sample("flags", (7, 5), (3, 7), layouts=("pitched", "shifted"), rest={"trans_a": True, "trans_b": True}),
    Sample("all of it", (5, 7), (7, 3), (5, 1), (3,), alpha=0.7, beta=-1.3, rest={"activation": "gelu"}),
    Sample("silu", (5, 7), (7, 3), (3,), (5, 3), layouts=("pitched", "turned"), beta=2, rest={"activation": "silu"}),
    Sample("relu", (5, 7), (7, 3), None, (1, 3), rest={"activation": "relu"}),
    Sample("beta 0", (5, 7), (7, 3), (5, 3), beta=0),
    Sample("alpha 0", (5, 7), (7, 3), (5, 3), alpha=0, beta=3),
    Sample("batch", (2, 5, 7), (2, 7, 3), layouts=("odd", "pitched")),
    Sample("shared weight", (2, 5, 7), (7, 3), None, (3,), layouts=("plain", "turned")),
    Sample("shared left", (5, 7), (2, 7, 3), (2, 1, 3)),
    Sample("broadcast batches", (2, 1, 5, 7), (3, 7, 4), layouts=("odd", "broadcast")),
    Sample("stride 0", (2, 5, 7), (2, 7, 3), layouts=("broadcast", "broadcast")),
    Sample("wide result", (5, 7), (7, 3), None, (3,), dtype=f16, rest={"out_dtype": f32}),
    Sample("wide addend", (2, 5, 7), (2, 7, 3), (5, 3), (3,), dtype=bf16, addend=f32),
    Sample("narrow result", (5, 7), (7, 3), dtype=f32, rest={"out_dtype": bf16, "precision": "tf32"}),
    Sample("int8", (5, 16), (16, 3), (5, 3), dtype=i8, addend=torch.int32, beta=2),
    Sample("int8 to int8", (2, 5, 16), (16, 3), dtype=i8, rest={"out_dtype": i8}),
    Sample("complex", (5, 7), (7, 3), (3,), dtype=torch.complex128, alpha=0.5 + 1j),
    Sample("no rows", (0, 7), (7, 3), None, (3,)),
    Sample("no columns", (2, 5, 7), (2, 7, 0)),
    Sample("no batch", (0, 5, 7), (7, 3)),
    Sample("nothing to sum", (5, 0), (0, 3), (3,), (5, 1), beta=3, rest={"activation": "gelu_tanh"}),
]
