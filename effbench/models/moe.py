"""A Llama-like transformer decoding one token, with a mixture of experts as its MLP: many small
kernels.

B tokens, D width, E experts, F features of an expert, N experts chosen for a token (`top_k`).
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from effbench.core.errors import UnsupportedError
from effbench.models.llama import LlamaDecoder, residual_of
from effbench.models.weights import linear, undrawn

DISPATCHES = ("auto", "gather", "dense")


class MixtureOfExperts(nn.Module):
    """A router and `experts` SwiGLU MLPs. Each token uses the `top_k` MLPs with the largest logits;
    their outputs are added, weighted with the softmax of these logits.

    Only the device knows the chosen experts, so sorting tokens by expert would need dynamic shapes.
    Both ways to dispatch have static shapes and no branch on a value:

    - `gather`: copy the weights of the chosen experts for each token. This reads no more than one
      token needs.
    - `dense`: run all tokens through all experts, as one wide MLP whose features have weight 0 for
      experts that were not chosen. At decode batches, products are bound by reading weights, and
      even a few tokens together choose nearly all experts, so that all weights are read anyway.

    `auto` gathers if there are fewer choices than experts, which only depends on shapes.

    Weights are undrawn. For a normed input the output has the size `residual`.
    """

    def __init__(
        self,
        width: int,
        ffn: int,
        experts: int,
        top_k: int,
        dispatch: str,
        residual: float,
    ):
        super().__init__()
        if dispatch not in DISPATCHES:
            raise ValueError(f"unknown dispatch {dispatch!r}; allowed: {', '.join(DISPATCHES)}")
        self.top_k = top_k
        self.dispatch = dispatch
        # A sharp router, as after training, gives the last chosen expert little weight. A mode's
        # rounding may change which expert that is, and with nearly equal weights each change would
        # affect the output by percents.
        self.router = linear(width, experts, gain=3.0)
        self.gate_up = undrawn(experts, 2, ffn, width, std=1 / math.sqrt(width))
        # silu(a) · b, weighted, has a size of 0.5
        self.down = undrawn(experts, ffn, width, std=residual / 0.5 / ffn**0.5)

    def tensor_parallel_plan(self) -> dict[str, str]:
        """Raise UnsupportedError: torch has no style for weights [E, F, D]."""
        raise UnsupportedError("tensor parallel: torch has no style for a mixture of experts")

    def forward(self, x: Tensor) -> Tensor:
        # x [B, 1, D] -> [B, 1, D]
        tokens = x.flatten(0, 1)  # [B, D]
        logits, chosen = self.router(tokens).topk(self.top_k, dim=-1)  # [B, N] each
        weights = logits.float().softmax(dim=-1).to(x.dtype)  # [B, N]
        few = chosen.numel() < len(self.down)
        if self.dispatch == "gather" or (self.dispatch == "auto" and few):
            y = self.gathered(tokens, weights, chosen)
        else:
            y = self.dense(tokens, weights, chosen)
        return y.view_as(x)

    def gathered(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        # x [B, D], weights and chosen [B, N] -> [B, D]
        gate_up = self.gate_up[chosen]  # [B, N, 2, F, D]
        products = gate_up.flatten(1, 3) @ x.unsqueeze(-1)  # [B, N * 2 * F, 1]
        hidden = activate(products.view(gate_up.shape[:-1]), weights)  # [B, N * F]
        down = self.down[chosen].flatten(1, 2)  # [B, N * F, D]
        return (hidden.unsqueeze(1) @ down).squeeze(1)

    def dense(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        # x [B, D], weights and chosen [B, N] -> [B, D]
        experts, _, ffn, _ = self.gate_up.shape
        spread = weights.new_zeros(len(x), experts).scatter(1, chosen, weights)  # [B, E]
        products = F.linear(x, self.gate_up.flatten(0, 2))  # [B, E * 2 * F]
        hidden = activate(products.view(len(x), experts, 2, ffn), spread)  # [B, E * F]
        return hidden @ self.down.flatten(0, 1)


def activate(products: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted hidden features [B, N * F] of experts from their products [B, N, 2, F]
    and weights [B, N]."""
    gate, up = products.unbind(2)  # [B, N, F] each
    hidden = F.silu(gate) * up * weights.unsqueeze(-1)
    return hidden.flatten(1)


class MoEDecoder(LlamaDecoder):
    """`LlamaDecoder` with `experts` MLPs of `ffn` features in each block. `settings`: those of
    LlamaDecoder."""

    def __init__(
        self,
        max_batch: int,
        layers: int = 24,
        width: int = 1024,
        ffn: int = 512,
        experts: int = 32,
        top_k: int = 8,
        dispatch: str = "auto",
        **settings: Any,
    ):
        residual = residual_of(width, layers)
        mlps = [
            MixtureOfExperts(
                width,
                ffn,
                experts,
                top_k,
                dispatch,
                residual,
            )
            for _ in range(layers)
        ]
        super().__init__(
            max_batch,
            layers=layers,
            width=width,
            mlps=mlps,
            **settings,
        )
