"""Llama for a decode step or a whole prompt: RMSNorm, rotary positions, grouped-query attention,
SwiGLU.

It follows the publication, with separate projections for queries, keys and values; dimensions are
settings. Rotary frequencies are powers of `theta`; Llama 3.2's scaling of low frequencies changes
the values of a table, not the work.

B batch, T sequence, S slots of the cache, D width, H heads, G key-value heads, R query heads per
key-value head (H / G), K width of a head (D / H), V vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effbench.models.attention import head_width, join_heads
from effbench.models.gpt2 import check_context, filled_cache
from effbench.models.swiglu import SwiGLU
from effbench.models.weights import NormalWeight, by_fan_in, embedding, fill_normal, linear

EPS = 1e-5


def rotary_tables(length: int, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [T, K] of the angles by which positions rotate the pairs (i, i + K /
    2) of a head."""
    pairs = torch.arange(
        0,
        head_width,
        2,
        dtype=torch.float64,
    )
    frequencies = theta ** -(pairs / head_width)  # [K / 2]
    positions = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(positions, frequencies).repeat(1, 2)  # [T, K]
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys x [B, heads, T, K] rotated by tables [T, K]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cos + turned * sin


class GroupedAttention(nn.Module):
    """Causal attention over whole sequences, with several query heads per key-value head."""

    def __init__(self, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_width = head_width(width, heads)
        self.query = linear(width, width)
        self.key = linear(width, kv_heads * self.head_width)
        self.value = linear(width, kv_heads * self.head_width)
        self.project = linear(width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # x [B, T, D], cos and sin [T, K] -> [B, T, D]
        q, k, v = self.heads_of(x, cos, sin)
        # Copy keys and values for each query head, because torch 2.11 does not count the FLOPs of
        # `enable_gqa` in scaled_dot_product_attention. The copy is cheap compared with the
        # products. [B, H, T, K]
        k = self.shared(k)
        v = self.shared(v)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
        )
        return self.project(join_heads(y))

    def heads_of(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, K], keys and values [B, G, T, K], with rotary positions for
        queries and keys."""
        q = self.split(self.query(x), self.heads)
        k = self.split(self.key(x), self.kv_heads)
        v = self.split(self.value(x), self.kv_heads)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def split(self, x: Tensor, heads: int) -> Tensor:
        """Return x [B, T, heads * K] by heads: [B, heads, T, K]."""
        batch, length, _ = x.shape
        return x.view(batch, length, heads, self.head_width).transpose(1, 2)

    def shared(self, x: Tensor) -> Tensor:
        """Return keys or values [B, G, T, K], repeated for R query heads each: [B, H, T, K]."""
        repeats = self.heads // self.kv_heads
        if repeats == 1:
            return x
        copies = x.unsqueeze(2).expand(-1, -1, repeats, -1, -1)  # [B, G, R, T, K]
        return copies.flatten(1, 2)

    def initial_weights(self, residual: float) -> list[NormalWeight]:
        """Return the weights with which a normed input gives an output of size `residual`."""
        # as sharp as a trained attention: with 1 its weights are nearly uniform, and their mean
        # over tokens vanishes
        sharp = 1.5
        return [
            by_fan_in(self.query.weight, sharp),
            by_fan_in(self.key.weight),
            by_fan_in(self.value.weight),
            by_fan_in(self.project.weight, residual / 0.3),
        ]


class CachedGroupedAttention(GroupedAttention):
    """Attention of new tokens over a cache of fixed shape, in buffers like those of
    gpt2.CachedAttention."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        max_batch: int,
        max_seq: int,
        context: int,
    ):
        super().__init__(width, heads, kv_heads)
        for name in ("keys", "values"):
            cache = filled_cache(max_batch, kv_heads, max_seq, self.head_width, context)
            self.register_buffer(name, cache, persistent=False)

    def forward(  # type: ignore[override]  # a cache takes a position and a mask, too
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        position: Tensor,
        mask: Tensor,
    ) -> Tensor:
        # x [B, T, D], cos and sin [T, K], position [T], mask [1, S] or [R * T, S] -> [B, T, D]
        batch, length, width = x.shape
        q, k, v = self.heads_of(x, cos, sin)
        keys = self.keys[:batch].index_copy_(2, position, k)  # [B, G, S, K]
        values = self.values[:batch].index_copy_(2, position, v)  # [B, G, S, K]
        # the query heads of a group extend the sequence, so the cache is not copied
        q = q.reshape(batch, self.kv_heads, -1, self.head_width)  # [B, G, R * T, K]
        y = F.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=mask,
        )  # [B, G, R * T, K]
        if length > 1:
            y = y.reshape(batch, self.heads, length, self.head_width).transpose(1, 2)
        return self.project(y.reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm transformer block with an attention and an MLP."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=EPS)
        self.attention = attention
        self.mlp_norm = nn.RMSNorm(width, eps=EPS)
        self.mlp = mlp

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        # x [B, T, D], further arguments of the attention -> [B, T, D]
        x = x + self.attention(self.attention_norm(x), *given)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """The common part of decoding and prefilling: token embedding, blocks, head, and their
    initialisation.

    `attention`: returns an attention for width, heads and kv_heads. `length`: number of positions.
    `mlp`: returns the MLP of a block; None: SwiGLU with `ffn` features. `tied`: the head shares the
    weight of the token embedding. Both subclasses have the same settings and weight names.
    """

    def __init__(
        self,
        attention: Callable[[int, int, int], GroupedAttention],
        length: int,
        layers: int = 16,
        width: int = 2048,
        heads: int = 32,
        kv_heads: int = 8,
        ffn: int = 8192,
        vocab: int = 128256,
        theta: float = 500000.0,
        tied: bool = True,
        mlp: Callable[[], nn.Module] | None = None,
    ):
        if heads % kv_heads:
            raise ValueError(f"heads {heads} is not a multiple of kv_heads {kv_heads}")
        super().__init__()
        mlp = mlp or (lambda: SwiGLU(width, ffn))
        self.tokens = embedding(vocab, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            block = Block(width, attention(width, heads, kv_heads), mlp())
            self.blocks.append(block)
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.head = linear(width, vocab)
        if tied:
            self.head.weight = self.tokens.weight
        self.init_weights(tied)
        cos, sin = rotary_tables(length, width // heads, theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def init_weights(self, tied: bool) -> None:
        """Initialise weights so that all blocks together add as much to the residual stream as the
        embedding does.

        Thus the logits depend on the token as well as on the cache or the other tokens, and
        rounding errors do not accumulate over the layers.
        """
        table = by_fan_in(self.tokens.weight)
        residual = table.std / math.sqrt(2 * len(self.blocks))
        weights = [table]
        for block in self.blocks:
            weights += block.attention.initial_weights(residual)
            weights += block.mlp.initial_weights(residual)
        if not tied:
            weights.append(by_fan_in(self.head.weight))
        fill_normal(weights)


class LlamaDecoder(Transformer):
    """A decode step: write the tokens' keys and values at `position`, then attend to the slots up
    to it.

    A call has one token, or a whole prompt. Shapes are static: all `max_seq` slots are read under a
    mask. A call with the same token and position writes the same values again, so it gives the same
    output however often it runs. The first `context` slots are filled already. `settings`: those of
    Transformer.
    """

    def __init__(self, max_batch: int, max_seq: int = 1024, context: int = 512, **settings: Any):
        check_context(context, max_seq)
        cache = {"max_batch": max_batch, "max_seq": max_seq, "context": context}
        super().__init__(partial(CachedGroupedAttention, **cache), max_seq, **settings)
        self.register_buffer("slots", torch.arange(max_seq), persistent=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        mask = self.slots <= position.unsqueeze(1)  # [T, S]
        if len(position) > 1:
            attention = self.blocks[0].attention
            mask = mask.repeat(attention.heads // attention.kv_heads, 1)  # [R * T, S]
        cos = self.cos[position]  # [T, K]
        sin = self.sin[position]  # [T, K]
        x = self.tokens(token)  # [B, T, D]
        for block in self.blocks:
            x = block(
                x,
                cos,
                sin,
                position,
                mask,
            )
        return self.head(self.norm(x[:, -1:]))


class LlamaPrefill(Transformer):
    """A prompt of `seq` tokens, processed at once, with the logits of its last position. There is
    no cache."""

    def __init__(self, seq: int = 512, **settings: Any):
        super().__init__(GroupedAttention, seq, **settings)

    def forward(self, tokens: Tensor) -> Tensor:
        # tokens [B, T] -> logits of the last position [B, 1, V]
        length = tokens.shape[1]
        cos = self.cos[:length]  # [T, K]
        sin = self.sin[:length]  # [T, K]
        x = self.tokens(tokens)  # [B, T, D]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x[:, -1:]))
