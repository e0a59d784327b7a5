"""A forward with gradients on, off, or in inference mode.

B batch, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from effbench.errors import UnsupportedError
from effbench.models.micro.settings import one_of, whole
from effbench.models.mlp import MLP

#: variant -> (inference mode, gradients)
VARIANTS = {"grad": (False, True), "no_grad": (False, False), "inference_mode": (True, False)}


class GradMode(nn.Module):
    """A small MLP whose forward sets its own gradient mode, whatever holds around it.

    `grad` records a graph for a backward that never comes and keeps what it would need; `no_grad` records nothing;
    `inference_mode` also leaves out version counters and view tracking. Each enters the same two contexts, so that
    entering them costs each the same.
    """

    def __init__(self, variant: str = "inference_mode", width: int = 256, depth: int = 20):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.inference, self.grad = VARIANTS[variant]
        self.mlp = MLP(whole("width", width), whole("depth", depth))

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        if self.grad and not torch.compiler.is_compiling() and x.is_inference():
            raise UnsupportedError(
                "variant=grad needs an input made outside inference mode, and this mode copies it there"
            )
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad):
            return self.mlp(x)
