"""Measure memory of this process: peaks of torch's allocator per phase, and private (graph)
pools."""

from __future__ import annotations

import gc

import torch


def reset_peaks(device: torch.device) -> None:
    """Release unused memory and reset the peaks, at the start of a phase."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> tuple[int | None, int | None]:
    """Return peak allocated and peak reserved bytes since the last reset; None without CUDA."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def graph_pool_bytes(device: torch.device) -> int | None:
    """Return the bytes of all private pools, which belong to CUDA graphs; None without such a pool.
    The allocator regards a captured graph's pool as free, so memory_allocated() does not include
    it."""
    if device.type != "cuda":
        return None
    total: int = sum(
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
    )
    return total or None
