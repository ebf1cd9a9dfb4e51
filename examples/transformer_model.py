"""A small decoder-only transformer in plain PyTorch: RMSNorm, rotary positions, causal attention, SwiGLU, a key-value cache.

It knows nothing of minblas. Its matrix products are the `nn.Linear` layers: five a block, and the one that gives the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Sizes of a model."""

    vocabulary: int = 32000
    width: int = 2048
    hidden: int = 5632
    layers: int = 8
    heads: int = 16
    context: int = 1024  # positions that the cache holds


class Attention(nn.Module):
    """Causal self-attention over heads of size width / heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.queries_keys_values = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, cache: Tensor | None, positions: Tensor) -> Tensor:
        """(batch, time, width) in and out. While decoding, this layer's cache (2, batch, heads, context, head) is written to."""
        batch, time, width = x.shape
        heads = self.queries_keys_values(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = rotate(heads[0], rotation), rotate(heads[1], rotation), heads[2]
        if cache is None:
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            # Fixed shapes and a mask, rather than slices that grow: one CUDA graph serves every position.
            cache[0].index_copy_(2, positions, keys)
            cache[1].index_copy_(2, positions, values)
            seen = torch.arange(cache.shape[3], device=x.device) <= positions[:, None]
            mixed = functional.scaled_dot_product_attention(queries, cache[0], cache[1], attn_mask=seen)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return result


class Block(nn.Module):
    """Attention, then a gated MLP, each added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, cache: Tensor | None, positions: Tensor) -> Tensor:
        """(batch, time, width) in and out."""
        x = x + self.attention(self.attention_norm(x), rotation, cache, positions)
        normed = self.mlp_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return result


class Transformer(nn.Module):
    """Tokens to logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.logits = nn.Linear(config.width, config.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.width**-0.5)

    def forward(self, tokens: Tensor, cache: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Logits (batch, time, vocabulary) of tokens (batch, time).

        Args:
            tokens: whole sequences, or, with a cache, what comes next.
            cache: keys and values of what came before, from `new_cache`; those of `tokens` are added.
            positions: (time,) where the tokens stand; from 0 on by default.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens)
        rotation = rotations(positions, self.config.width // self.config.heads).to(x.dtype)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, None if cache is None else cache[layer], positions)
        result: Tensor = self.logits(self.norm(x))
        return result

    def new_cache(self, batch: int) -> Tensor:
        """Room for keys and values: (layers, 2, batch, heads, context, head)."""
        config = self.config
        head = config.width // config.heads
        return self.embedding.weight.new_zeros(config.layers, 2, batch, config.heads, config.context, head)


def rotations(positions: Tensor, head: int) -> Tensor:
    """Cosines and sines of rotary position embedding: (2, time, head / 2)."""
    frequencies = 10000.0 ** (-torch.arange(0, head, 2, device=positions.device) / head)
    angles = positions[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs of each head (batch, heads, time, head) by its position's angles."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
