"""A transformer, trained for a few steps and decoded, by torch alone and inside minblas.accelerate(). Nothing in the model changes.

Both are held against the same run in float64, from which minblas may be at most twice as far as torch is. On a GPU the tokens per
second are shown side by side: eager, compiled by torch.compile, and captured in a CUDA graph. Without a GPU the sizes are tiny and
Triton's interpreter computes, which says nothing about speed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformer_model import Config, Transformer

import minblas

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
CONFIG = Config() if GPU else Config(vocabulary=64, width=32, hidden=48, layers=2, heads=4, context=16)
BATCH, TIME, STEPS, DECODED = (8, 384, 4, 128) if GPU else (6, 5, 2, 3)
MODES = ("eager", "compiled", "captured") if GPU else ("eager", "compiled")
SIDES: dict[str, Callable[[], AbstractContextManager[object]]] = {"torch": contextlib.nullcontext, "minblas": minblas.accelerate}

Step = Callable[..., Tensor]


def learning_step(model: Transformer, forward: Step) -> Step:
    """Tokens (batch, time + 1) -> their loss; the weights move."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = forward(tokens[:, :-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def decoding_step(model: Transformer, forward: Step) -> Step:
    """Tokens (batch, 1) and where they stand (1,) -> logits of what comes next. Keys and values are kept in a cache."""
    cache = model.new_cache(BATCH)

    @torch.no_grad()
    def step(tokens: Tensor, position: Tensor) -> Tensor:
        return forward(tokens, cache, position)

    return step


def captured(step: Step, *examples: Tensor) -> Step:
    """The step as a CUDA graph, replayed with other inputs of the same shapes."""
    inputs = [example.clone() for example in examples]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are chosen, compiled and loaded before the capture
        for _ in range(3):
            step(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(*inputs)

    def replay(*values: Tensor) -> Tensor:
        for buffer, value in zip(inputs, values, strict=True):
            buffer.copy_(value)
        graph.replay()
        return result

    return replay


@dataclass
class Run:
    """One side in one mode: a model of its own, and its two steps."""

    model: Transformer
    learn: Step
    decode: Step

    @classmethod
    def of(cls, start: Transformer, mode: str, tokens: Tensor) -> Run:
        """Compiled or captured as the mode says. A captured step keeps the kernels of the side on which it was captured."""
        model = copy.deepcopy(start)
        forward = model if mode != "compiled" else torch.compile(model, backend="inductor" if GPU else "aot_eager")
        run = cls(model, learning_step(model, forward), decoding_step(model, forward))
        if mode == "captured":
            run.learn = captured(run.learn, tokens)
            run.decode = captured(run.decode, tokens[:, :1], torch.zeros(1, dtype=torch.long, device=DEVICE))
            model.load_state_dict(start.state_dict())  # the steps before the capture moved the weights
        return run

    def losses(self, tokens: Tensor) -> list[float]:
        """What each step of training lost."""
        found: list[float] = torch.stack([self.learn(tokens).clone() for _ in range(STEPS)]).tolist()
        return found

    def logits(self, tokens: Tensor) -> Tensor:
        """(batch, DECODED, vocabulary), one position after the other, given the tokens before it."""
        positions = torch.arange(DECODED, device=DEVICE).split(1)
        return torch.cat([self.decode(tokens[:, at : at + 1], position).clone() for at, position in enumerate(positions)], dim=1)


def tokens_per_second(runs: dict[str, Run], work: Callable[[Run], object], tokens: int) -> dict[str, float]:
    """The best of six times each, taken in turns so that a clock that drifts is fair to both."""
    best = dict.fromkeys(runs, float("inf"))
    for name in ["torch", "minblas", "minblas", "torch"] * 3:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with SIDES[name]():
            begin.record()
            work(runs[name])
            end.record()
        end.synchronize()
        best[name] = min(best[name], begin.elapsed_time(end) / 1e3)
    return {name: tokens / seconds for name, seconds in best.items()}


def show_speed(what: str, speeds: dict[str, float]) -> None:
    theirs, ours = speeds["torch"], speeds["minblas"]
    print(f"    {what}: {theirs:,.0f} tokens/s by torch, {ours:,.0f} by minblas, {ours / theirs:.3f} times as many")


def main() -> None:
    torch.manual_seed(0)
    start = Transformer(CONFIG).to(DEVICE, DTYPE)
    tokens = torch.randint(CONFIG.vocabulary, (BATCH, TIME + 1), device=DEVICE)
    weights = sum(weight.numel() for weight in start.parameters())
    print(f"{weights:,} weights in {DTYPE} on {DEVICE}: {STEPS} steps of {BATCH * TIME} tokens, then {DECODED} of {BATCH} decoded")
    exact = Run.of(copy.deepcopy(start).double(), "eager", tokens)
    show_losses("float64", "", exact.losses(tokens))
    exact_logits = exact.logits(tokens)

    minblas.stats(reset=True)
    for mode in MODES:
        runs: dict[str, Run] = {}
        losses: dict[str, list[float]] = {}
        off: dict[str, Tensor] = {}
        for name, serving in SIDES.items():
            with serving():
                run = runs[name] = Run.of(start, mode, tokens)
                losses[name] = run.losses(tokens)
                off[name] = (run.logits(tokens).double() - exact_logits).abs()
            show_losses(mode, name, losses[name], f", logits off by {rms(off[name]):.3g}")
        assert rms(off["minblas"]) <= 2 * rms(off["torch"]), "minblas is further from float64 than it may be"
        # A loss moves by at most twice what its logits move.
        apart = max(abs(one - other) for one, other in zip(losses["torch"], losses["minblas"], strict=True))
        assert apart <= 2 * sum(float(error.max()) for error in off.values()), "the losses are not the same"
        print(f"    the same losses within {apart:.2g}")
        if GPU:
            show_speed("training", tokens_per_second(runs, lambda run: run.losses(tokens), STEPS * BATCH * TIME))
            show_speed("decoding", tokens_per_second(runs, lambda run: run.logits(tokens), DECODED * BATCH))
    print(minblas.stats())
    if not GPU:
        print("No tokens per second: a CPU says nothing about speed.")


def show_losses(mode: str, side: str, losses: list[float], remark: str = "") -> None:
    print(f"{mode:9} {side:8} losses {' '.join(f'{loss:.6f}' for loss in losses)}{remark}")


def rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


if __name__ == "__main__":
    main()
