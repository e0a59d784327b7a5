"""A batch of images from the host to the device: as bytes or as floats, from pageable or pinned memory.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from effbench.errors import UnsupportedError
from effbench.models.micro.settings import one_of, whole

VARIANTS = ("uint8", "float32")


class Transfer(nn.Module):
    """Images that lie on the host, copied and made floats in [0, 1) of the dtype of `like`.

    `uint8` copies bytes and scales them on the device; `float32` copies values that were scaled on the host before, and
    rounds them to the dtype there. Scaled by 1/256, which every float type holds exactly, so that both give the same
    values. `pinned` puts the host's tensor into page-locked memory, from where the copy need not be waited for.
    `batch` is the cell's batch size. On the CPU nothing is copied.
    """

    def __init__(
        self, variant: str = "uint8", pinned: bool = False, batch: int = 1, shape: Sequence[int] = (3, 224, 224)
    ):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.pinned = one_of("pinned", pinned, (False, True))
        if pinned and not torch.cuda.is_available():
            raise UnsupportedError("pinned=true needs CUDA, and torch sees no CUDA device here")
        sizes = (whole("batch", batch), *(whole("shape", size) for size in shape))
        # a plain attribute, no buffer: it stays on the host
        self.images = torch.randint(0, 256, sizes, dtype=torch.uint8)
        if variant == "float32":
            self.images = self.images.float() / 256
        if pinned:
            self.images = self.images.pin_memory()
        self.bytes = math.prod(sizes) * self.images.element_size()

    def forward(self, like: Tensor) -> Tensor:
        # like [B] -> [B, C, H, W]
        if self.pinned and like.device.type != "cuda":
            raise UnsupportedError(f"pinned=true needs CUDA, and this cell runs on {like.device.type}")
        images = self.images.to(like.device, non_blocking=self.pinned).to(like.dtype)
        return images * (1 / 256) if self.variant == "uint8" else images
