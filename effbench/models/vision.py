"""Convolutional and other networks of torchvision, with random weights.

B batch, C channels, H height, W width, K classes. Every one maps [B, 3, H, W] to [B, K].
"""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn

#: Random images that running statistics are taken from: how many, and their height and width.
IMAGES, SIZE = 8, 128


def torchvision_model(arch: str, channels_last: bool = False, settled: bool = False, **kwargs: Any) -> nn.Module:
    """The architecture of that name in `torchvision.models`; `kwargs` go to its constructor.

    `channels_last` lays the weights out as [K, H, W, C] in memory; convolutions then work in that layout, and an input
    in the usual one is converted by the first of them, within the call. `settled` gives batch norms the statistics of
    their inputs, as training would.
    """
    model = torchvision.models.get_model(arch, weights=None, **kwargs)
    wake_heads(model)
    if settled:
        settle_batch_norms(model)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def wake_heads(model: nn.Module) -> None:
    """Initialise linear layers that torchvision leaves at zero, such as the head of a ViT: with an output of zero any
    execution would be correct."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            module.reset_parameters()


@torch.no_grad()
def settle_batch_norms(model: nn.Module) -> None:
    """Set running means and variances to those of random images, in one pass in training mode.

    Untrained, a batch norm scales nothing in eval mode. In a network of depthwise convolutions the signal then shrinks
    with every layer (to 1e-10 in MobileNetV3): activations are linear around zero, and what a branch adds is lost in
    the rounding of what it is added to. A comparison of outputs would not see an error there.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # the average over all passes, of which there is one
    model.train()
    model(torch.randn(IMAGES, 3, SIZE, SIZE))
    model.eval()
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
