"""Stacks of linear layers: bound by launches at small batches and by matrix products at large ones.

B batch, D width, F features of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from effbench.models import build


def linear(in_features: int, out_features: int) -> nn.Linear:
    """Return a linear layer that preserves the variance of the output of a ReLU.

    PyTorch's default reduces it to a sixth per layer. After eight layers the output depends almost
    only on the biases, and comparing outputs would not test the dependence on inputs.
    """
    layer = nn.Linear(in_features, out_features)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return layer


class LinearStack(nn.Module):
    """Linear layers from each of `sizes` to the next, each followed by ReLU."""

    def __init__(self, sizes: Sequence[int] = (1000, 5000, 10000, 10000)):
        super().__init__()
        layers: list[nn.Module] = []
        # on the CPU, drawing 400 million weights takes 4 s
        with torch.device(build.DEVICE.get()):
            for in_features, out_features in pairwise(sizes):
                layers += [linear(in_features, out_features), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def tensor_parallel_plan(self) -> dict[str, str]:
        """Split the outputs of every other layer, and the inputs of the layer after it."""
        names = [name for name, layer in self.named_modules() if isinstance(layer, nn.Linear)]
        plan = {}
        for number, name in enumerate(names):
            plan[name] = "rowwise" if number % 2 else "colwise"
        if len(names) % 2:  # no layer takes the parts of the last one
            plan[names[-1]] = "colwise_gather_output"
        return plan

    def forward(self, x: Tensor) -> Tensor:
        # x [B, F_first] -> [B, F_last]
        return self.layers(x)


class MLP(LinearStack):
    """`depth` linear layers of the same width with ReLU between them."""

    def __init__(self, width: int = 1024, depth: int = 8):
        super().__init__([width] * (depth + 1))
        self.layers = self.layers[:-1]
