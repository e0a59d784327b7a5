"""Convolutional and other networks from torchvision, with random weights.

B batch, C channels, H height, W width, K classes. All map [B, 3, H, W] to [B, K].
"""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn

#: Random images for running statistics: their number, and their height and width.
IMAGES, SIZE = 8, 128


def torchvision_model(arch: str, settled: bool = False, **kwargs: Any) -> nn.Module:
    """Return the architecture `arch` of `torchvision.models`; `kwargs` are passed to its constructor.

    `settled`: give batch norms the statistics of their inputs, as training would.
    """
    model = torchvision.models.get_model(arch, weights=None, **kwargs)
    wake_heads(model)
    if settled:
        settle_batch_norms(model)
    return model


def wake_heads(model: nn.Module) -> None:
    """Initialise linear layers that torchvision initialises to zero, such as the head of a ViT. Otherwise the output
    would be zero, and a comparison of outputs would test nothing."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            module.reset_parameters()


@torch.no_grad()
def settle_batch_norms(model: nn.Module) -> None:
    """Set running means and variances to those of random images, in one pass in training mode.

    In eval mode, an untrained batch norm does not scale its input. In a network of depthwise convolutions the signal
    then shrinks with each layer (to 1e-10 in MobileNetV3): activations are linear around zero, and the output of a
    branch is lost in rounding. A comparison of outputs would not detect errors there.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # average over all passes, here a single one
    model.train()
    model(torch.randn(IMAGES, 3, SIZE, SIZE))
    model.eval()
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
