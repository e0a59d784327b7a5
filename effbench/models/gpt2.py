"""GPT-2 decoding with a static key-value cache: the many small kernels of token generation.

B batch, T new tokens, S slots of the cache, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effbench.models.attention import Attention, Block
from effbench.models.cache import CacheSize


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
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            attention = Attention(width, heads, size=size)
            mlp = nn.Sequential(
                OrderedDict(
                    expand=nn.Linear(width, 4 * width),
                    gelu=nn.GELU(approximate="tanh"),
                    contract=nn.Linear(4 * width, width),
                )
            )
            self.blocks.append(Block(nn.LayerNorm(width), attention, nn.LayerNorm(width), mlp))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("slots", torch.arange(max_seq), persistent=False)
        self.init_weights()

    def tensor_parallel_plan(self) -> dict[str, str]:
        """Split the hidden features of the MLPs."""
        return {"blocks.*.mlp.expand": "colwise", "blocks.*.mlp.contract": "rowwise"}

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
            nn.init.normal_(block.mlp.contract.weight, std=residual)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        mask = self.slots <= position.unsqueeze(1)  # [T, S]
        x = self.tokens(token) + self.positions(position)  # [B, T, D]
        for block in self.blocks:
            x = block(x, position, mask)
        return F.linear(self.norm(x[:, -1:]), self.tokens.weight)
