"""Convolutional and other networks from torchvision, with random weights.

B batch, C channels, H height, W width, K classes. All map [B, 3, H, W] to [B, K].
"""

from __future__ import annotations

from typing import Any

from torch import nn

from effbench.models import libraries
from effbench.models.weights import settle_batch_norms, wake

torchvision = libraries.load("torchvision")


def torchvision_model(arch: str, settled: bool = False, **kwargs: Any) -> nn.Module:
    """Return the architecture `arch` of `torchvision.models`; `kwargs` are passed to its
    constructor.

    `settled`: give batch norms the statistics of their inputs, as training would.
    """
    model = torchvision.models.get_model(arch, weights=None, **kwargs)
    wake(model)
    if settled:
        settle_batch_norms(model)
    return model
