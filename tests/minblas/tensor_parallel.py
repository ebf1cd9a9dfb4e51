"""One rank of a small tensor-parallel world: products of DTensors, and an MLP split by columns and rows, against a single process.

    python tests/minblas/tensor_parallel.py RANK RANKS STORE DEVICE DTYPE...

STORE is a file at which the ranks meet: nothing listens on a port that could be taken. Prints what it counted, as one line of JSON.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

import minblas

BATCH, WIDTH, HIDDEN = (2, 5), 24, 40
ROW, COLUMN, WHOLE, SUM = Shard(0), Shard(1), Replicate(), Partial()
BOTH = {"alpha": 1.5, "beta": -0.5, "c": WHOLE, "bias": WHOLE}
PRODUCTS = [
    # a, b, the other arguments, the result, and whether operands have to be moved between ranks
    (ROW, WHOLE, {}, ROW, False),
    (WHOLE, COLUMN, {}, COLUMN, False),
    (COLUMN, ROW, {}, SUM, False),
    # The same placements of other storage: the decision for one must not be taken for the other's.
    (ROW, WHOLE, {"trans_a": True}, SUM, False),
    (ROW, WHOLE, {"trans_b": True}, ROW, False),
    (ROW, WHOLE, {"trans_a": True, "trans_b": True}, SUM, False),
    (WHOLE, COLUMN, {"trans_b": True}, SUM, False),
    (COLUMN, ROW, {"trans_a": True, "trans_b": True}, None, True),
    (WHOLE, WHOLE, {}, WHOLE, False),
    (SUM, WHOLE, {}, SUM, False),
    # What is added is added once, whole or in shards or in partial sums.
    (ROW, WHOLE, BOTH, ROW, False),
    (WHOLE, COLUMN, BOTH, COLUMN, False),
    (COLUMN, ROW, BOTH, SUM, False),
    (COLUMN, ROW, {"c": WHOLE}, SUM, False),
    (COLUMN, ROW, {"bias": WHOLE}, SUM, False),
    (COLUMN, ROW, {"c": SUM, "alpha": 0.5}, SUM, False),
    (COLUMN, ROW, {"c": SUM, "alpha": torch.tensor(0.25)}, SUM, False),
    # A whole sum is needed for the activation.
    (WHOLE, COLUMN, BOTH | {"activation": "gelu"}, COLUMN, False),
    (COLUMN, ROW, BOTH | {"activation": "relu"}, None, True),
    (SUM, WHOLE, {"activation": "relu"}, None, True),
]


class Linear(nn.Linear):
    """nn.Linear through the op."""

    def forward(self, input):
        return minblas.linear(input, self.weight, self.bias)


class MLP(nn.Module):
    """Two layers, as in a transformer."""

    def __init__(self, layer):
        super().__init__()
        self.up = layer(WIDTH, HIDDEN)
        self.down = layer(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(functional.relu(self.up(x)))


def check(found, theirs, exact, magnitude, depth, roundings):
    """The project's bound where values are rounded to the type `roundings` times on the way; sums of `depth` terms are fp32's."""
    eps, unit = torch.finfo(theirs.dtype).eps, torch.finfo(torch.float32).eps / 2
    on_the_way = (roundings * eps / 2 + 2 * math.sqrt(depth) * unit) * magnitude
    allowed = 2 * (theirs.double() - exact).abs() + eps * exact.abs() + on_the_way
    error = (found.double() - exact).abs()
    assert found.shape == exact.shape, (found.shape, exact.shape)
    assert bool((error <= allowed).all()), f"worst error is {float((error / allowed).nan_to_num(nan=9).max()):.3g} of the bound"


def served(count):
    """Assert that minblas computed so many products since the counts were reset, none of them by aten."""
    calls = minblas.stats().calls
    assert sum(calls.values()) == count, minblas.stats()
    assert "aten" not in calls, minblas.stats()


def placed(tensor, mesh, placement):
    """A tensor that every rank has, as a DTensor; partial sums differ between the ranks."""
    if not isinstance(placement, Partial):
        return distribute_tensor(tensor, mesh, [placement])
    share = 2.0 if mesh.get_local_rank() == 0 else -1.0 / (mesh.size() - 1)
    return DTensor.from_local(tensor * share, mesh, [placement])


def gemm64(a, b, alpha=1.0, beta=1.0, c=0.0, bias=0.0, trans_a=False, trans_b=False, activation=None):
    """The contract in the operands' type, by torch."""
    product = alpha * ((a.mT if trans_a else a) @ (b.mT if trans_b else b)) + beta * c + bias
    return product if activation is None else getattr(functional, activation)(product)


def products(mesh, dtype):
    """gemm of DTensors against float64."""
    made = torch.Generator().manual_seed(1)
    shapes = {"a": (16, 16), "b": (16, 16), "c": (16, 16), "bias": (16,)}
    for a_place, b_place, given, expected, moves in PRODUCTS:
        places = {"a": a_place, "b": b_place, **{name: given[name] for name in ("c", "bias") if name in given}}
        options = {name: value for name, value in given.items() if name not in places}
        values = {name: torch.randn(shapes[name], generator=made).to(mesh.device_type, dtype) for name in places}
        operands = {name: placed(value, mesh, places[name]) for name, value in values.items()}
        minblas.stats(reset=True)
        with CommDebugMode() as communication:
            result = minblas.gemm(**operands, **options)
        served(1)
        assert isinstance(result, DTensor)
        assert (communication.get_total_counts() > 0) == moves, (places, options, communication.get_comm_counts())
        assert expected is None or result.placements == (expected,), (places, options, result.placements)
        exact = gemm64(**{name: value.double() for name, value in values.items()}, **options)
        signs = {
            name: abs(value) if isinstance(value, float | torch.Tensor) else value
            for name, value in options.items()
            if name != "activation"
        }
        magnitude = gemm64(**{name: value.double().abs() for name, value in values.items()}, **signs)
        check(result.full_tensor(), gemm64(**values, **options), exact, magnitude, 16 + mesh.size(), 2 * mesh.size() + 2)
    return len(PRODUCTS)


def batches(mesh, dtype):
    """A batch that is split over the ranks, and one weight for all of it."""
    made = torch.Generator().manual_seed(2)
    a = torch.randn(4, 6, 16, generator=made).to(mesh.device_type, dtype)
    for b in (torch.randn(4, 16, 8, generator=made).to(a), torch.randn(16, 8, generator=made).to(a)):
        minblas.stats(reset=True)
        result = minblas.gemm(placed(a, mesh, ROW), placed(b, mesh, ROW if b.dim() == 3 else WHOLE))
        served(1)
        assert result.placements == (ROW,)
        check(result.full_tensor(), a @ b, a.double() @ b.double(), a.double().abs() @ b.double().abs(), 16, 1)


def gradients(model, x, grad):
    """The result and every gradient."""
    x = x.clone().requires_grad_()
    result = model(x)
    result.backward(grad)
    weights = getattr(model, "_orig_mod", model).named_parameters()  # of what torch.compile wraps
    found = {"result": result, "x": x.grad} | {name: weight.grad for name, weight in weights}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in found.items()}


def mlp(mesh, dtype, layer, serving):
    """Forward and backward of the MLP, its first layer split by columns and its second by rows: the single process's."""
    torch.manual_seed(3)
    model = MLP(layer).to(mesh.device_type, dtype)
    x, grad = (torch.randn(*BATCH, WIDTH, device=mesh.device_type, dtype=dtype) for _ in range(2))
    plain = MLP(nn.Linear).to(mesh.device_type, dtype)
    plain.load_state_dict(model.state_dict())
    theirs = gradients(plain, x, grad)
    exact = gradients(copy.deepcopy(plain).double(), x.double(), grad.double())
    # Of absolute values, with which relu does nothing: sums of the magnitudes of all that is added.
    positive = copy.deepcopy(plain).double()
    with torch.no_grad():
        for weight in positive.parameters():
            weight.abs_()
    magnitude = gradients(positive, x.double().abs(), grad.double().abs())

    depth = 2 * WIDTH + 2 * HIDDEN + math.prod(BATCH)
    minblas.stats(reset=True)
    with serving():
        single = gradients(model, x, grad)
    served(6)
    split = parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    split.zero_grad()
    assert model.up.weight.to_local().shape == (HIDDEN // mesh.size(), WIDTH)
    minblas.stats(reset=True)
    with CommDebugMode() as communication, serving():
        found = gradients(split, x, grad)
    served(6)  # of this rank, forward and backward
    sums = {str(name): count for name, count in communication.get_comm_counts().items() if "all_reduce" in str(name)}
    assert sum(sums.values()) == 2, communication.get_comm_counts()  # of the result, and of the input's gradient
    split.zero_grad()
    minblas.stats(reset=True)
    with serving():
        compiled = gradients(torch.compile(split, backend="aot_eager", fullgraph=True), x, grad)
    served(6)
    for name in exact:
        check(single[name], theirs[name], exact[name], magnitude[name], depth, 4)
        for one in (found, compiled):
            check(one[name], theirs[name], exact[name], magnitude[name], depth, 4 + 2 * mesh.size())
    return minblas.stats().calls


def refused(mesh):
    """out= cannot be a DTensor, and says so."""
    a, b = (placed(torch.ones(4, 4, device=mesh.device_type), mesh, WHOLE) for _ in range(2))
    with contextlib.suppress(minblas.errors.MinblasError):
        minblas.gemm(a, b, out=torch.empty_like(a))
        raise AssertionError("out= was taken")


def everything(mesh, dtype):
    """The products of each part that minblas computed on this rank."""
    counted = {"products": products(mesh, dtype)}
    batches(mesh, dtype)
    counted["op"] = mlp(mesh, dtype, Linear, contextlib.nullcontext)
    counted["accelerate"] = mlp(mesh, dtype, nn.Linear, minblas.accelerate)
    return counted


def main(rank, ranks, store, device, *dtypes):
    """Everything above, in a world of `ranks`."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    timeout = timedelta(seconds=120)
    dist.init_process_group(backend, store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timeout)
    try:
        mesh = init_device_mesh(device, (ranks,))
        refused(mesh)
        counted = {name: everything(mesh, getattr(torch, name)) for name in dtypes}
        print(json.dumps(counted))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
