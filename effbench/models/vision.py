"""Convolutional and other networks of torchvision, with random weights.

B batch, C channels, H height, W width, K classes. Every one maps [B, 3, H, W] to [B, K].
"""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn


def torchvision_model(arch: str, channels_last: bool = False, **kwargs: Any) -> nn.Module:
    """The architecture of that name in `torchvision.models`; `kwargs` go to its constructor.

    `channels_last` lays the weights out as [K, H, W, C] in memory; convolutions then work in that layout, and an input
    in the usual one is converted by the first of them, within the call.
    """
    model = torchvision.models.get_model(arch, weights=None, **kwargs)
    return model.to(memory_format=torch.channels_last) if channels_last else model
