"""One step of Adam over many small parameters: a loop over them, or all at once.

B batch, D width, P parameter tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from effbench.errors import UnsupportedError
from effbench.models.micro.settings import one_of, whole
from effbench.models.mlp import MLP

#: variant -> arguments of torch.optim.Adam
VARIANTS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"foreach": True, "capturable": True},
}


class AdamStep(nn.Module):
    """`optimizer.step()` on `layers` linear layers of one width, and nothing else: the gradients are those of the first
    batch that comes, made in the first call and kept.

    The default `lr` is 0: the same kernels over the same bytes, and the parameters stay, so that a call can be repeated
    and compared. With it the check against eager holds parameters that must not have moved; any other `lr` moves them
    from call to call, and the cell is `incorrect`. Only `capturable` (foreach, with its step counts on the device;
    needs CUDA) can be captured in a CUDA graph.
    """

    def __init__(self, variant: str = "foreach", layers: int = 20, width: int = 200, lr: float = 0.0):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.lr = lr
        self.mlp = MLP(whole("width", width), whole("layers", layers))
        self.moved: list[nn.Parameter] = []
        self.optimizer: torch.optim.Adam | None = None

    def forward(self, x: Tensor) -> list[Tensor]:
        # x [B, D] -> P tensors: weights [D, D] and biases [D] by turns
        with torch.inference_mode(False):
            if self.optimizer is None:
                self.optimizer = self.prepare(x)
            self.optimizer.step()
        return self.moved

    def prepare(self, x: Tensor) -> torch.optim.Adam:
        """Gradients of a mean square, and the optimizer of this variant (made once the module is on its device: some
        variants look where the parameters are)."""
        if self.variant == "capturable" and x.device.type != "cuda":
            raise UnsupportedError(f"variant=capturable needs CUDA, and this cell runs on {x.device.type}")
        with torch.enable_grad():
            self.mlp(x.clone()).square().mean().backward()
        self.moved = list(self.mlp.parameters())
        return torch.optim.Adam(self.moved, lr=self.lr, **VARIANTS[self.variant])
