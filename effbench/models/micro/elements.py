"""Many operations on one element each, or one operation on all of them.

N elements, B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from effbench.models.micro.settings import one_of, whole

VARIANTS = ("loop", "whole")


class Elements(nn.Module):
    """Triples N elements: `loop` indexes them one by one from Python (with a batch, one row of B numbers at a time),
    `whole` is a single operation on the tensor."""

    def __init__(self, variant: str = "whole", count: int = 64):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.count = whole("count", count)

    def forward(self, x: Tensor) -> Tensor:
        # x [N, B] -> [N, B]
        if self.variant == "whole":
            return x * 3.0
        y = torch.empty_like(x)
        for i in range(self.count):
            y[i] = x[i] * 3.0
        return y
