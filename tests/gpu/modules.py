"""Modules whose kernels and memory are known, and modules that misbehave; imported by cells, not by
the tests."""

import torch
from torch import nn


class TwoSteps(nn.Module):
    """Two kernels; holds two tensors like its input at its peak."""

    def forward(self, x):
        return (x + 1) * 2


class Products(nn.Module):
    """Large enough for a GPU to be busy all the time: four products of 4096."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4096, 4096) / 64)

    def forward(self, x):
        for _ in range(4):
            x = x @ self.weight
        return x


# --- modules that misbehave ---


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
    """An operator on the CPU between two on the GPU: Inductor cuts the graph, and other backends
    capture none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x).relu() + x.cpu().sin().to(x.device)
