"""Modules, a loss and modes to be trained, some wrongly; imported by cells, not by the tests."""

import torch
from torch import nn

from effbench.modes.base import Prepared


class Normed(nn.Module):
    """Batch norm and dropout: buffers that change, masks that are drawn."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)
        )

    def forward(self, x):
        return self.layers(x)


class Explodes(nn.Module):
    """Learns nothing but to grow: finite for the steps that are checked, infinite soon after."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.weight**2 * 1e3 + x[:, :4] * 0


class NotANumber(Normed):
    def forward(self, x):
        return super().forward(x) / 0


def to_label(output, inputs):
    """Squared distance of the outputs' sums from those of the input called x."""
    return (output.sum(-1) - inputs["x"].sum(-1)).square().mean()


class PerturbsGradients:
    """A mode whose outputs are right and whose gradients are not."""

    compiles = False
    settling_calls = 1
    phases = ("inference", "training")

    def missing(self, device):
        return None

    def prepare(self, module, args, kwargs):
        def forward(x):
            out = module(x)
            return out + 0.1 * (out - out.detach())

        return Prepared(forward)


class Itself(PerturbsGradients):
    """A mode with a training step of its own."""

    def prepare_training(self, module, step_over, args, kwargs):
        return Prepared(step_over(module), facts={"own": True})
