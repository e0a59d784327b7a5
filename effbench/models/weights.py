"""Weights of large models, built in seconds on a host's CPU."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

#: The most normal values that are drawn; all weights are made of them. A prime: see `fill_normal`.
DRAWN = 16_777_259


def linear(in_features: int, out_features: int) -> nn.Linear:
    """Return a linear layer without bias whose weight is not initialised yet."""
    return nn.utils.skip_init(nn.Linear, in_features, out_features, bias=False)


def embedding(rows: int, width: int) -> nn.Embedding:
    """Return a table that is not initialised yet."""
    return nn.utils.skip_init(nn.Embedding, rows, width)


def fan_in_std(weight: Tensor, gain: float = 1.0) -> float:
    """Return the standard deviation of a weight [..., out, in] whose outputs are `gain` times the size of its
    inputs."""
    return gain / math.sqrt(weight.shape[-1])


@torch.no_grad()
def fill_normal(weights: Iterable[tuple[Tensor, float]]) -> None:
    """Fill contiguous tensors with normal values, each of its own standard deviation.

    Billions of random numbers take minutes on a CPU, copies of them seconds. So at most `DRAWN` are drawn and reused
    cyclically, each tensor starting where the one before stopped. Since their number is a prime, larger than every
    width and number of layers, no two rows of a matrix and no two layers of one shape start at the same place: all
    differ, and are practically independent. Below `DRAWN` weights each has its own random number.
    """
    weights = list(weights)
    drawn = torch.randn(min(DRAWN, sum(weight.numel() for weight, _ in weights)))
    place = 0
    for weight, std in weights:
        flat, done = weight.view(-1), 0
        while done < len(flat):
            count = min(len(flat) - done, len(drawn) - place)
            torch.mul(drawn[place : place + count], std, out=flat[done : done + count])
            done += count
            place = (place + count) % len(drawn)
