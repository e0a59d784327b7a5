"""SwiGLU feed-forward blocks, the MLP of Llama and its kin: bound by launches at a small batch.

B batch (any leading dimensions), D width, F features between.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from effbench.models.weights import fan_in_std, fill_normal, linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)), without biases. Weights are for `fill_normal`."""

    def __init__(self, width: int, ffn: int):
        super().__init__()
        self.gate = linear(width, ffn)
        self.up = linear(width, ffn)
        self.down = linear(ffn, width)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def stds(self, residual: float) -> list[tuple[Tensor, float]]:
        """Weights with the standard deviations that make of a normed input an output of about `residual`."""
        gain = residual / 0.6  # what silu(a) · b of normal a and b has left
        return [
            (self.gate.weight, fan_in_std(self.gate.weight)),
            (self.up.weight, fan_in_std(self.up.weight)),
            (self.down.weight, fan_in_std(self.down.weight, gain)),
        ]


class SwiGLUStack(nn.Module):
    """`depth` pre-norm SwiGLU blocks, each with its residual, and a norm."""

    def __init__(self, width: int = 1024, depth: int = 8, ffn: int = 2816):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(depth))
        self.mlps = nn.ModuleList(SwiGLU(width, ffn) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        # together the blocks add as much to the residual stream as enters it
        residual = 1 / math.sqrt(depth)
        fill_normal(weight for mlp in self.mlps for weight in mlp.stds(residual))

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return self.norm(x)
