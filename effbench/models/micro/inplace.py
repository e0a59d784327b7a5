"""A chain of elementwise operations that write over their operand, or each into a new tensor.

B batch, N elements.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from effbench.errors import UnsupportedError
from effbench.models.micro.settings import one_of, whole

VARIANTS = ("in-place", "out-of-place")


class InPlace(nn.Module):
    """`length` operations, ReLU and a clamp to at most 1 by turns.

    Doing these again changes nothing, so that `in-place` may be called over and over on the same input: its values
    stay. `cold=true` empties CUDA's caching allocator before the chain, in both variants: what is allocated then is
    asked of the driver, as in a process's first call.
    """

    def __init__(self, variant: str = "out-of-place", elements: int = 2**24, length: int = 2, cold: bool = False):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.elements = whole("elements", elements)
        self.length = whole("length", length)
        self.cold = one_of("cold", cold, (False, True))

    def forward(self, x: Tensor) -> Tensor:
        # x [B, N] -> [B, N]
        if self.cold:
            if x.device.type != "cuda":
                raise UnsupportedError(
                    f"cold=true needs CUDA's caching allocator, and this cell runs on {x.device.type}"
                )
            torch.cuda.empty_cache()
        for i in range(self.length):
            if self.variant == "in-place":
                x = x.clamp_(max=1.0) if i % 2 else x.relu_()
            else:
                x = x.clamp(max=1.0) if i % 2 else x.relu()
        return x
