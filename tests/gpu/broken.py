"""Modules that misbehave on a GPU; imported by cells, not by the tests."""

import torch
from torch import nn


class Whole(nn.Module):
    """Right, and simple."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x).relu()


class TooMuch(nn.Module):
    """Asks for more memory than any GPU has."""

    def forward(self, x):
        return torch.empty(2**42, dtype=torch.uint8, device=x.device)[: x.shape[0]] + x


class OutOfRange(nn.Module):
    """A device-side assert: the CUDA context is of no use afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 32)

    def forward(self, x):
        return self.table(torch.full((x.shape[0],), 100, device=x.device))


class ChangesItsInput(nn.Module):
    """Writes to its input (the same values again): Inductor does not put that in a CUDA graph."""

    def forward(self, x):
        return x.clamp_(-1, 1).sin()


class CallsTheHost(nn.Module):
    """An operator on the CPU between two on the GPU: Inductor cuts the graph into parts and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x).relu() + x.cpu().sin().to(x.device)
