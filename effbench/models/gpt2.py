"""GPT-2 decoding with a static key-value cache: the many small kernels of token generation.

B batch, T new tokens, S slots of the cache, D width, H heads, K width of a head (D / H), V
vocabulary, L layers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effbench.models.attention import head_width, join_heads, split_heads
from effbench.models.cache import CacheSize, KeyValueCache


class CachedAttention(nn.Module):
    """Attention of new tokens over a cache."""

    def __init__(self, width: int, heads: int, size: CacheSize):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        key_width = head_width(width, heads)
        self.cache = KeyValueCache(size, heads, key_width, key_width)

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        # x [B, T, D], position [T], mask [T, S] -> [B, T, D]
        q, k, v = split_heads(self.qkv(x), self.heads)
        keys, values = self.cache.update(position, k, v)  # [B, H, S, K] each
        y = F.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=mask,
        )  # [B, H, T, K]
        return self.project(join_heads(y))


class GPT2Block(nn.Module):
    """Pre-norm transformer block with a cached attention."""

    def __init__(self, width: int, heads: int, size: CacheSize):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CachedAttention(width, heads, size)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        # x [B, T, D], position [T], mask [T, S] -> [B, T, D]
        x = x + self.attention(self.attention_norm(x), position, mask)
        hidden = F.gelu(self.expand(self.mlp_norm(x)), approximate="tanh")
        return x + self.contract(hidden)


class GPT2Decoder(nn.Module):
    """A decode step: write the tokens' keys and values at `position`, then attend to the slots up
    to it.

    A call has one token, or a whole prompt. Shapes are static: all `max_seq` slots are read under a
    mask. A call with the same token and position writes the same values again, so it gives the same
    output however often it runs. The first `context` slots are filled already.
    """

    def __init__(
        self,
        max_batch: int,
        max_seq: int = 1024,
        context: int = 512,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        vocab: int = 50257,
    ):
        super().__init__()
        size = CacheSize(max_batch, max_seq, context)
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(max_seq, width)
        self.blocks = nn.ModuleList(GPT2Block(width, heads, size) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("slots", torch.arange(max_seq), persistent=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise as GPT-2 does: normal, std 0.02 ÷ √(number of additions) where a layer adds to
        the residual."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        residual = 0.02 / math.sqrt(2 * len(self.blocks))
        for block in self.blocks:
            nn.init.normal_(block.attention.project.weight, std=residual)
            nn.init.normal_(block.contract.weight, std=residual)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        mask = self.slots <= position.unsqueeze(1)  # [T, S]
        x = self.tokens(token) + self.positions(position)  # [B, T, D]
        for block in self.blocks:
            x = block(x, position, mask)
        return F.linear(self.norm(x[:, -1:]), self.tokens.weight)
