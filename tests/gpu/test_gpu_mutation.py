"""Modules that write to their inputs and buffers, through real CUDA graphs."""

from __future__ import annotations

import pytest

MODULES = """
import torch
from torch import nn


class Writes(nn.Module):
    def forward(self, x):
        return x.mul_(0.5).sin()


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return x * self.count
"""
WRITES = "the module writes to its input x, but this mode leaves the caller's tensor unchanged"


@pytest.mark.parametrize(
    ("name", "mode", "status", "reason"),
    [
        ("Writes", "cuda-graph", "degraded", WRITES),
        ("Counts", "cuda-graph", "ok", ""),
    ],
)
def test_mutation(swept, folder, name, mode, status, reason):
    (folder / "mutation.py").write_text(MODULES)
    trial = swept(
        "model=custom",
        f"model.module._target_=mutation.{name}",
        "model.inputs.x.shape=[64]",
        f"mode={mode}",
        "baseline_mode=eager",
        "dtype=float32",
        "on_failure=ignore",
        "protocol.budget_s=0.4",
    )[-1]
    assert trial["status"] == status, trial["reason"]
    assert reason in (trial["reason"] or "")
