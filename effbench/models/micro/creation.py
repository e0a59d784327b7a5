"""A new tensor: made on the device, or made on the host and copied there.

B batch, N elements.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from effbench.errors import UnsupportedError
from effbench.models.micro.settings import one_of, whole

VARIANTS = ("device", "host", "host-pinned")
FILLS = ("normal", "zeros")


class Creation(nn.Module):
    """A tensor of normal numbers or zeros on the device of `like`: made there (`device`), or on the host in pageable
    (`host`) or pinned memory (`host-pinned`) and copied.

    Zeros are the same everywhere. Normal numbers come from a generator of this module's own that is seeded anew in each
    call (a microsecond or two, part of what is measured): a variant repeats its own values, so that modes can be held
    against eager, but another device draws other numbers from the same seed, so that `device` and the `host` variants
    agree in distribution only. A CUDA graph cannot hold that seeding: it is for eager.
    """

    def __init__(self, variant: str = "device", fill: str = "normal", elements: int = 2**20, seed: int = 1234):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.fill = one_of("fill", fill, FILLS)
        self.elements = whole("elements", elements)
        self.seed = whole("seed", seed, low=0)
        self.generator: torch.Generator | None = None

    def forward(self, like: Tensor) -> Tensor:
        # like [B] -> [B, N]
        pinned = self.variant == "host-pinned"
        if pinned and like.device.type != "cuda":
            raise UnsupportedError(f"variant=host-pinned needs CUDA, and this cell runs on {like.device.type}")
        where = like.device if self.variant == "device" else torch.device("cpu")
        shape = (like.shape[0], self.elements)
        if self.fill == "zeros":
            made = torch.zeros(shape, dtype=like.dtype, device=where, pin_memory=pinned)
        else:
            if self.generator is None:
                self.generator = torch.Generator(where)
            self.generator.manual_seed(self.seed)
            made = torch.randn(shape, generator=self.generator, dtype=like.dtype, device=where, pin_memory=pinned)
        return made.to(like.device, non_blocking=pinned)
