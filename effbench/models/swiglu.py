"""SwiGLU feed-forward blocks, the MLP of Llama and similar models: bound by launches at small
batches.

B batch (any leading dimensions), D width, F hidden features.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from effbench.models.weights import draw_weights, linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)), without biases, with undrawn weights. For a normed input the
    output has the size `residual`."""

    def __init__(self, width: int, ffn: int, residual: float):
        super().__init__()
        self.gate = linear(width, ffn)
        self.up = linear(width, ffn)
        # silu(a) · b has a size of 0.6 for normal a and b
        self.down = linear(ffn, width, gain=residual / 0.6)

    def tensor_parallel_plan(self) -> dict[str, str]:
        """Split the hidden features."""
        return {"gate": "colwise", "up": "colwise", "down": "rowwise"}

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        return self.down(F.silu(self.gate(x)) * self.up(x))


class SwiGLUStack(nn.Module):
    """`depth` pre-norm SwiGLU blocks, each with a residual, followed by a norm."""

    def __init__(self, width: int = 1024, depth: int = 8, ffn: int = 2816):
        super().__init__()
        # together, the blocks add as much to the residual stream as their input
        residual = 1 / math.sqrt(depth)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(depth))
        self.mlps = nn.ModuleList(SwiGLU(width, ffn, residual) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return self.norm(x)
