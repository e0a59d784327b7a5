"""The static key-value cache of decoders.

B batch, T new tokens, S slots, G key-value heads, K width of a head; that of values may be another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class CacheSize:
    """The largest batch, the number of slots, and how many of them are filled. Raises ValueError if
    there is no slot for a new token."""

    batch: int
    slots: int
    filled: int

    def __post_init__(self) -> None:
        if not 0 <= self.filled < self.slots:
            raise ValueError(
                f"context {self.filled} leaves no slot for the new token; allowed: 0 to"
                f" {self.slots - 1}"
            )


class KeyValueCache(nn.Module):
    """Keys and values [B, G, S, K] of a layer, in two buffers, so that Dynamo and CUDA graphs have
    static addresses. Unlike writes to an input, in-place writes to buffers do not prevent
    `reduce-overhead` from capturing.

    The filled slots hold normal values, the others zeros. The rows of the batch are windows into
    one random tensor, each shifted by one slot. Thus all rows differ, and a large batch takes only
    copies instead of more random numbers.
    """

    def __init__(self, size: CacheSize, heads: int, key_width: int, value_width: int):
        super().__init__()
        for name, width in (("keys", key_width), ("values", value_width)):
            noise = torch.randn(heads, size.filled + size.batch, width)
            cache = torch.zeros(size.batch, heads, size.slots, width)
            for row in range(size.batch):
                cache[row, :, : size.filled] = noise[:, row : row + size.filled]
            self.register_buffer(name, cache, persistent=False)

    def update(self, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values [B, G, T, K] of new tokens to the slots at `position` [T], and
        return those of all slots [B, G, S, K]."""
        batch = len(keys)
        return (
            self.keys[:batch].index_copy_(2, position, keys),
            self.values[:batch].index_copy_(2, position, values),
        )
