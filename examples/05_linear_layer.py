"""minblas inside a serving stack: as an nn.Linear, as the linear method of an engine, warmed up for every batch size it will meet.

Three things matter there. No request may wait for a compilation: `warm` compiles and loads what every number of rows needs, before
any comes. A row should not depend on what it is batched with: `batch_invariant=True` gives it the same bits at every batch size.
And decoding runs in CUDA graphs: a warm layer can be captured, as it is at the end, on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import minblas


def product(x: Tensor, weight: Tensor, bias: Tensor | None, batch_invariant: bool) -> Tensor:
    """x (..., in) times weight (out, in) transposed, plus bias, rounded once."""
    return minblas.gemm(x, weight, bias=bias, trans_b=True, batch_invariant=batch_invariant)


class MinblasLinear(nn.Linear):
    """nn.Linear, computed by minblas; weights, state dicts and gradients are nn.Linear's."""

    batch_invariant = False

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return product(input, self.weight, self.bias, self.batch_invariant)


def adopt(model: nn.Module, *, batch_invariant: bool = False) -> list[MinblasLinear]:
    """Make every nn.Linear of a loaded model a MinblasLinear, where it stands; weights are neither copied nor moved."""
    layers = []
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = MinblasLinear
        if isinstance(module, MinblasLinear):
            module.batch_invariant = batch_invariant
            layers.append(module)
    return layers


class MinblasLinearMethod:
    """What engines like vLLM and SGLang ask of a linear layer's method. The weight is stored (out, in), as by their own."""

    def __init__(self, *, batch_invariant: bool = False) -> None:
        self.batch_invariant = batch_invariant

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """A weight for this rank's part. `attributes` are the engine's own, its loader among them, which reads the other two."""
        shape = (sum(output_partition_sizes), input_size_per_partition)
        weight = nn.Parameter(torch.empty(shape, dtype=params_dtype), requires_grad=False)
        for name, value in {"input_dim": 1, "output_dim": 0, **attributes}.items():
            setattr(weight, name, value)
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Nothing: kernels take the weight as it lies."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer's product. The engine itself adds up over ranks where the layer is split along its inputs."""
        return product(x, layer.get_parameter("weight"), bias, self.batch_invariant)


def warm(layers: Iterable[MinblasLinear], rows: range) -> None:
    """Compile and load what the layers need for every number of rows; layers of one shape share it."""
    problems = []
    for layer in layers:
        x = layer.weight.new_empty(rows[-1], layer.in_features)
        for count in rows:
            chosen = minblas.explain(x[:count], layer.weight, bias=layer.bias, trans_b=True, batch_invariant=layer.batch_invariant)
            problems.append(chosen.problem)
    print(minblas.warmup(dict.fromkeys(problems)))


def main() -> None:
    device, size, rows = ("cuda", 4096, range(1, 65)) if torch.cuda.is_available() else ("cpu", 48, range(1, 4))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size, bias=False)).to(device, torch.bfloat16)
    x = torch.randn(rows[-1], size, device=device, dtype=torch.bfloat16)

    with torch.no_grad():
        exact = model.double()(x.double())
        torchs = model.bfloat16()(x)
        layers = adopt(model, batch_invariant=True)
        warm(layers, rows)
        minblas.stats(reset=True)
        ours = model(x)
        error, allowed = (float((result.double() - exact).square().mean().sqrt()) for result in (ours, torchs))
        print(f"{len(layers)} layers adopted: off by {error:.3g} where torch is by {allowed:.3g}")

        alone = torch.cat([model(row) for row in x.split(1)])
        print(f"{len(x)} rows one by one:", "the same bits" if torch.equal(alone, ours) else "other bits")

        first, layer, method = layers[0], nn.Module(), MinblasLinearMethod(batch_invariant=True)
        method.create_weights(layer, size, [size, size], size, 2 * size, torch.bfloat16)
        layer.weight.data = first.weight.data  # as an engine's loader fills it
        method.process_weights_after_loading(layer)
        applied = method.apply(layer, x, first.bias)
        print("as a linear method:", "the same bits" if torch.equal(applied, first(x)) else "other bits")
        print(f"served: {minblas.stats()}")

        if device == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # warm: nothing is compiled or loaded in here
                result = model(x)
            x.copy_(x.flip(0))
            graph.replay()
            print("replayed on other rows:", "the same bits" if torch.equal(result, ours.flip(0)) else "other bits")


if __name__ == "__main__":
    main()
