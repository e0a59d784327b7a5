"""Models that are slower by a known time: on the GPU, or on the host. For `injected.py`."""

from __future__ import annotations

import time

import torch

from effbench.models.attention import AttentionBlock
from effbench.models.mlp import MLP


class GpuDelayed(AttentionBlock):
    """An attention block after which the GPU spins for `us` microseconds at a clock of `mhz`."""

    def __init__(self, us: float = 0.0, mhz: float = 1980.0) -> None:
        super().__init__()
        self.cycles = int(us * mhz)

    def forward(self, x):
        out = super().forward(x)
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return out


class HostDelayed(MLP):
    """An MLP before which the host spins for `us` microseconds."""

    def __init__(self, us: float = 0.0) -> None:
        super().__init__()
        self.ns = int(us * 1000)

    def forward(self, x):
        if self.ns:
            end = time.perf_counter_ns() + self.ns
            while time.perf_counter_ns() < end:
                pass
        return super().forward(x)
