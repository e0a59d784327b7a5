"""Measure memory of this process: peaks of torch's allocator per phase, and private (graph)
pools."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch


def reset_peaks(device: torch.device) -> None:
    """Release unused memory and reset the peaks, at the start of a phase."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@dataclass(frozen=True)
class MemoryPeaks:
    """The most bytes of torch's allocator at a time; None without CUDA."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


def peaks(device: torch.device) -> MemoryPeaks:
    """Return the peaks since the last reset."""
    if device.type != "cuda":
        return MemoryPeaks()
    return MemoryPeaks(
        allocated_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
    )


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
