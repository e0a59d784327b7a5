"""A transformer block for measurements with long sequences, and parts of other transformers.

B batch, T sequence, S slots of a cache, D width, H heads, K width of a head (D / H).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from effbench.models.attentions import ChosenAttention
from effbench.models.cache import CacheSize, KeyValueCache

if TYPE_CHECKING:
    from effbench.models.parallel import Plan


def join_heads(x: Tensor) -> Tensor:
    """Return x [B, H, T, K] as [B, T, H * K]."""
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


def head_width(width: int, heads: int) -> int:
    """Return K. Raises ValueError if the heads do not share the width equally."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    return width // heads


class Attention(ChosenAttention):
    """Multi-head self-attention: over whole sequences, or of new tokens over a cache, if it has one
    of this `size`."""

    def __init__(
        self,
        width: int,
        heads: int,
        causal: bool = False,
        size: CacheSize | None = None,
    ):
        super().__init__()
        self.heads = heads
        self.head_width = head_width(width, heads)
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.cache = None
        if size is not None:
            self.cache = KeyValueCache(size, heads, self.head_width, self.head_width)

    def tensor_parallel_plan(self) -> Plan:
        """Split the heads."""
        from effbench.models.parallel import CacheHeads, FusedHeadColumns

        return {
            "qkv": FusedHeadColumns(self.heads),
            "project": "rowwise",
            "cache": CacheHeads(),
        }

    def forward(
        self, x: Tensor, position: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        # x [B, T, D], for a cache position [T] and mask [T, S] -> [B, T, D]
        batch, length, _ = x.shape
        # a rank may have some of the heads
        parts = self.qkv(x).view(batch, length, 3, -1, self.head_width)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, T, K] each
        if self.cache is not None:
            k, v = self.cache.update(position, k, v)  # [B, H, S, K] each
        y = self.attend(q, k, v, mask, self.causal)  # [B, H, T, K]
        return self.project(join_heads(y))


class Block(nn.Module):
    """Pre-norm transformer block with an attention and an MLP, each with a residual."""

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: nn.Module,
        mlp_norm: nn.Module,
        mlp: nn.Module,
    ):
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        # x [B, T, D], further arguments of the attention -> [B, T, D]
        x = x + self.attention(self.attention_norm(x), *given)
        return x + self.mlp(self.mlp_norm(x))


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
        # Make the attention as sharp as a trained one. With PyTorch's defaults its weights are
        # nearly uniform: their mean over many tokens is negligible next to the residual, and
        # comparing outputs would not test the attention.
        for layer in (self.attention.qkv, self.attention.project):
            nn.init.normal_(layer.weight, std=1.25 / math.sqrt(width))
        self.mlp = None
        if mlp_ratio:
            self.mlp = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, mlp_ratio * width),
                nn.GELU(),
                nn.Linear(mlp_ratio * width, width),
            )

    def tensor_parallel_plan(self) -> Plan:
        """Split the hidden features of the MLP."""
        return {"mlp.1": "colwise", "mlp.3": "rowwise"}

    def forward(self, x: Tensor) -> Tensor:
        # x [B, T, D] -> [B, T, D]
        x = x + self.attention(self.norm(x))
        if self.mlp is not None:
            x = x + self.mlp(x)
        return x
