"""One tiny matrix product: how much of an operator's time is the call itself?

D size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from effbench.models.micro.settings import whole


class SmallMatmul(nn.Module):
    """A product of two D × D matrices, one operator. The batch size plays no part in it."""

    def __init__(self, size: int = 32):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(whole("size", size), size) / size**0.5)

    def forward(self, x: Tensor) -> Tensor:
        # x [D, D] -> [D, D]
        return torch.mm(x, self.weight)
