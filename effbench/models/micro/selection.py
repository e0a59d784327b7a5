"""Selecting what a tensor's values decide, after a long forward: who waits, for what, and what can be done meanwhile.

B batch, F features of a layer, M = B · F_last outputs, K of them positive, S slots.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from effbench.models.micro.settings import one_of, whole
from effbench.models.mlp import LinearStack

VARIANTS = ("nonzero", "nonzero-static", "mask", "nonzero-then-work", "work-then-nonzero")


class Selection(nn.Module):
    """The sum of the positive outputs of a stack of linear layers with ReLU, found in one of several ways.

    `nonzero` makes as many indices as there are positive outputs, so that the host waits for the device: for the
    forward before it, mostly. `nonzero-static` fills `slots` indices (null: one for each output, so that none is left
    out; fewer give another sum) and `mask` makes none; neither waits. `nonzero-then-work` does `work_us` microseconds
    of work of the host's own after the selection has waited, `work-then-nonzero` does it between the forward and the
    selection, while the device is busy. All five return the same sum; what they cost the host is in `enqueue_ms`.
    The work of the host is not part of a CUDA graph: those two variants are for eager.
    """

    def __init__(
        self,
        variant: str = "nonzero",
        sizes: Sequence[int] = (1000, 5000, 10000, 10000),
        slots: int | None = None,
        work_us: int = 500,
    ):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.slots = None if slots is None else whole("slots", slots)
        self.work_us = whole("work_us", work_us, low=0)
        self.stack = LinearStack(sizes)
        # on the device already: a number from Python might have to be sent there
        self.register_buffer("zero", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, F_first] -> []
        y = self.stack(x).flatten()  # [M]
        positive = y > 0
        if self.variant == "mask":
            return torch.where(positive, y, self.zero).sum()
        if self.variant == "nonzero-static":
            slots = y.shape[0] if self.slots is None else self.slots
            indices = torch.nonzero_static(positive, size=slots, fill_value=-1).squeeze(1)  # [S]
            return torch.where(indices >= 0, y[indices], self.zero).sum()  # -1 reads the last output, and drops it
        if self.variant == "work-then-nonzero":
            spin(self.work_us)
        indices = positive.nonzero().squeeze(1)  # [K]
        if self.variant == "nonzero-then-work":
            spin(self.work_us)
        return y[indices].sum()


def spin(microseconds: int) -> None:
    """Keep the host busy for so long."""
    end = time.perf_counter_ns() + 1000 * microseconds
    while time.perf_counter_ns() < end:
        pass
