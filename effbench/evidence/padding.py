"""S3: padding up to a captured batch size.

B batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from effbench.evidence.base import CUDA, Facts, close, finite, listed, shows
from effbench.evidence.graphs import record

#: Captures function(x); the function that it returns replays, and answers the graph's output.
Capture = Callable[[Callable[..., Any], torch.Tensor], Callable[[], torch.Tensor]]


class MixesRows(nn.Module):
    """(B, D) -> (B, D); what a row comes to depends on the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


@shows("S3", needs=(CUDA,))
def padded_batches(device: torch.device, captured: Sequence[int] = (1, 2, 4, 8, 16), width: int = 32) -> Facts:
    """Every batch size through the smallest graph that holds it, its tail full of an earlier, larger batch; beside
    eager at that size. Also for a module that mixes rows, for which no padding can be right."""
    rows_apart = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
    rows_apart = rows_apart.to(device).requires_grad_(False)

    def capture(function: Callable[..., Any], x: torch.Tensor) -> Callable[[], torch.Tensor]:
        return record(function, x).replay

    return {
        "captured_sizes": sorted(captured),
        "rows_apart": observe(rows_apart, width, captured, device, capture),
        "rows_apart_tail_of_nan": observe(rows_apart, width, captured, device, capture, poison=float("nan")),
        "rows_mixed": observe(MixesRows(), width, captured, device, capture),
    }


def observe(
    module: nn.Module,
    width: int,
    captured: Sequence[int],
    device: torch.device,
    capture: Capture,
    poison: float = 1e4,
) -> Facts:
    """Input buffer (max B, D), which every graph reads the first rows of. Before each replay of interest all of it is
    filled with `poison` and the largest graph replayed, so that the tail holds what no batch wants."""
    largest = max(captured)
    buffer = torch.zeros(largest, width, device=device)
    wrong, unequal_bits = [], []
    worst, example = 0.0, {}
    with torch.no_grad():
        replays = {size: capture(module, buffer[:size]) for size in sorted(captured, reverse=True)}
        for raw in range(1, largest + 1):
            x = torch.randn(raw, width, device=device)
            buffer.fill_(poison)
            replays[largest]()
            buffer[:raw].copy_(x)
            found = replays[min(size for size in captured if size >= raw)]()[:raw].clone()
            expected = module(x)
            if not torch.equal(found, expected):
                unequal_bits.append(raw)
            if not close(found, expected):
                wrong.append(raw)
                example = example or {"raw_size": raw, "padded": listed(found), "eager": listed(expected)}
            worst = max(worst, (found - expected).abs().nan_to_num(nan=float("inf")).max().item())
    return {
        "rows_equal_eager": not wrong,
        "sizes_tried": largest,
        "wrong_sizes": wrong,
        "sizes_with_other_rounding": [size for size in unequal_bits if size not in wrong],
        "largest_difference": finite(worst),
        "tail_value": finite(poison),
        **({"first_wrong": example} if wrong else {}),
    }
