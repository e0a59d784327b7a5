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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from effbench.models.attention import Block, head_width, join_heads
from effbench.models.attentions import ChosenAttention
from effbench.models.cache import CacheSize, KeyValueCache
from effbench.models.swiglu import SwiGLU
from effbench.models.weights import draw_weights, embedding, linear

if TYPE_CHECKING:
    from effbench.models.parallel import Plan

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


class GroupedAttention(ChosenAttention):
    """Causal attention with several query heads per key-value head: over whole sequences, or of new
    tokens over a cache, if it has one of this `size`. Weights are undrawn. For a normed input the
    output has the size `residual`."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        size: CacheSize | None,
        residual: float,
    ):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_width = head_width(width, heads)
        # as sharp as a trained attention: with a gain of 1 its weights are nearly uniform, and
        # their mean over tokens vanishes
        self.query = linear(width, width, gain=1.5)
        self.key = linear(width, kv_heads * self.head_width)
        self.value = linear(width, kv_heads * self.head_width)
        self.project = linear(width, width, gain=residual / 0.3)
        self.cache = None
        if size is not None:
            self.cache = KeyValueCache(size, kv_heads, self.head_width, self.head_width)

    def tensor_parallel_plan(self) -> Plan:
        """Split the heads."""
        from effbench.models.parallel import CacheHeads, HeadColumns

        return {
            "query": HeadColumns(self.heads),
            "key": HeadColumns(self.kv_heads),
            "value": HeadColumns(self.kv_heads),
            "project": "rowwise",
            "cache": CacheHeads(),
        }

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        position: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        # x [B, T, D], cos and sin [T, K]; for a cache position [T], mask [1, S] or [R * T, S]
        # -> [B, T, D]
        batch, length, _ = x.shape
        # a rank has some of the heads
        q = self.split(self.query(x))  # [B, H, T, K]
        k = self.split(self.key(x))  # [B, G, T, K]
        v = self.split(self.value(x))  # [B, G, T, K]
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)
        if self.cache is None:
            # Copy keys and values for each query head, because torch 2.11 does not count the FLOPs
            # of `enable_gqa` in scaled_dot_product_attention. The copy is cheap compared with the
            # products.
            y = self.attend(q, self.shared(k), self.shared(v), None, True)  # [B, H, T, K]
            return self.project(join_heads(y))
        k, v = self.cache.update(position, k, v)  # [B, G, S, K] each
        # the query heads of a group extend the sequence, so the cache is not copied
        q = q.reshape(batch, k.shape[1], -1, self.head_width)  # [B, G, R * T, K]
        y = self.attend(q, k, v, mask, False)  # [B, G, R * T, K]
        if length > 1:
            y = y.reshape(batch, -1, length, self.head_width).transpose(1, 2)
        return self.project(y.reshape(batch, length, -1))

    def split(self, x: Tensor) -> Tensor:
        """Return x [B, T, heads * K] by heads: [B, heads, T, K]."""
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.head_width).transpose(1, 2)

    def shared(self, x: Tensor) -> Tensor:
        """Return keys or values [B, G, T, K], repeated for R query heads each: [B, H, T, K]."""
        repeats = self.heads // self.kv_heads
        if repeats == 1:
            return x
        copies = x.unsqueeze(2).expand(-1, -1, repeats, -1, -1)  # [B, G, R, T, K]
        return copies.flatten(1, 2)


def residual_of(width: int, layers: int) -> float:
    """Return the size of what an attention or an MLP adds to the residual stream, so that all of
    them together add as much as the embedding does.

    Thus the logits depend on the token as well as on the cache or the other tokens, and rounding
    errors do not accumulate over the layers.
    """
    return 1 / math.sqrt(width) / math.sqrt(2 * layers)


class Transformer(nn.Module):
    """The common part of decoding and prefilling: token embedding, blocks, head, and their
    initialisation.

    `length`: number of positions. `size`: that of the cache, or None. `tied`: the head shares the
    weight of the token embedding. `mlps`: the MLP of each block; None: SwiGLU with `ffn` features.
    Both subclasses have the same settings and weight names.
    """

    def __init__(
        self,
        length: int,
        size: CacheSize | None,
        layers: int = 16,
        width: int = 2048,
        heads: int = 32,
        kv_heads: int = 8,
        ffn: int = 8192,
        vocab: int = 128256,
        theta: float = 500000.0,
        tied: bool = True,
        mlps: Sequence[nn.Module] | None = None,
    ):
        if heads % kv_heads:
            raise ValueError(f"heads {heads} is not a multiple of kv_heads {kv_heads}")
        super().__init__()
        self.tokens = embedding(vocab, width)
        self.blocks = nn.ModuleList()
        residual = residual_of(width, layers)
        for mlp in mlps or [SwiGLU(width, ffn, residual) for _ in range(layers)]:
            attention = GroupedAttention(
                width,
                heads,
                kv_heads,
                size,
                residual,
            )
            self.blocks.append(
                Block(
                    nn.RMSNorm(width, eps=EPS),
                    attention,
                    nn.RMSNorm(width, eps=EPS),
                    mlp,
                )
            )
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.head = linear(width, vocab)
        if tied:
            self.head.weight = self.tokens.weight
        draw_weights(self)
        cos, sin = rotary_tables(length, width // heads, theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def tensor_parallel_plan(self) -> Plan:
        """Split the vocabulary."""
        return {"tokens": "embedding_rowwise", "head": "colwise_gather_output"}

    def last_logits(self, tokens: Tensor, positions: Tensor | slice, *cached: Tensor) -> Tensor:
        """Return the logits [B, 1, V] of the last of the tokens [B, T]. `cached`: further arguments
        of an attention with a cache."""
        cos = self.cos[positions]  # [T, K]
        sin = self.sin[positions]  # [T, K]
        x = self.tokens(tokens)  # [B, T, D]
        for block in self.blocks:
            x = block(x, cos, sin, *cached)
        return self.head(self.norm(x[:, -1:]))


class LlamaDecoder(Transformer):
    """A decode step: write the tokens' keys and values at `position`, then attend to the slots up
    to it.

    A call has one token, or a whole prompt. Shapes are static: all `max_seq` slots are read under a
    mask. A call with the same token and position writes the same values again, so it gives the same
    output however often it runs. The first `context` slots are filled already. `settings`: those of
    Transformer.
    """

    def __init__(self, max_batch: int, max_seq: int = 1024, context: int = 512, **settings: Any):
        super().__init__(max_seq, CacheSize(max_batch, max_seq, context), **settings)
        self.register_buffer("slots", torch.arange(max_seq), persistent=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        mask = self.slots <= position.unsqueeze(1)  # [T, S]
        if len(position) > 1:
            attention = self.blocks[0].attention
            mask = mask.repeat(attention.heads // attention.kv_heads, 1)  # [R * T, S]
        return self.last_logits(token, position, position, mask)


class LlamaPrefill(Transformer):
    """A prompt of `seq` tokens, processed at once, with the logits of its last position. There is
    no cache."""

    def __init__(self, seq: int = 512, **settings: Any):
        super().__init__(seq, None, **settings)

    def forward(self, tokens: Tensor) -> Tensor:
        # tokens [B, T] -> logits of the last position [B, 1, V]
        return self.last_logits(tokens, slice(tokens.shape[1]))
