"""A transformer block for measurements with long sequences.

B batch, T sequence, D width, H heads, K width of a head (D / H).
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn


def split_heads(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [B, H, T, K] of a projection [B, T, 3 * D]."""
    batch, length, _ = x.shape
    parts = x.view(batch, length, 3, heads, -1)
    q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def join_heads(x: Tensor) -> Tensor:
    """Return x [B, H, T, K] as [B, T, D]."""
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


def head_width(width: int, heads: int) -> int:
    """Return K. Raises ValueError if the heads do not share the width equally."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    return width // heads


class Attention(nn.Module):
    """Multi-head self-attention over whole sequences, through `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        head_width(width, heads)  # raises
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        # Make the attention as sharp as a trained one. With PyTorch's defaults its weights are
        # nearly uniform: their mean over many tokens is negligible next to the residual, and
        # comparing outputs would not test the attention.
        for layer in (self.qkv, self.project):
            nn.init.normal_(layer.weight, std=1.25 / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        # x [B, T, D] -> [B, T, D]
        q, k, v = split_heads(self.qkv(x), self.heads)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=self.causal,
        )
        return self.project(join_heads(y))


class AttentionBlock(nn.Module):
    """Pre-norm block: attention, and an MLP of `mlp_ratio` times the width (0: no MLP), each with a
    residual.

    `seq`: sequence length, used by the input's shape in the YAML; the weights do not depend on it.
    """

    def __init__(
        self,
        seq: int = 512,
        width: int = 1024,
        heads: int = 16,
        mlp_ratio: int = 0,
        causal: bool = False,
    ):
        super().__init__()
        self.seq = seq
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = None
        if mlp_ratio:
            self.mlp = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, mlp_ratio * width),
                nn.GELU(),
                nn.Linear(mlp_ratio * width, width),
            )

    def forward(self, x: Tensor) -> Tensor:
        # x [B, T, D] -> [B, T, D]
        x = x + self.attention(self.norm(x))
        if self.mlp is not None:
            x = x + self.mlp(x)
        return x
