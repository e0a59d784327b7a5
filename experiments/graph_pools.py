"""Does one memory pool for the CUDA graphs of all batch sizes reduce fragmentation?

B batch, T sequence, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from effbench.claims import Answer, Claim
from effbench.claims.checks import CUDA, Facts, check
from effbench.measure.memory import reset_peaks
from effbench.measure.timing import no_garbage_collection
from effbench.models.attention import AttentionBlock
from effbench.modes.graphs import GraphCapture

GPU_SECONDS = 10

ORDERS = ("largest-first", "smallest-first")
OUTPUTS = ("held", "dropped")


@check(needs=(CUDA,))
def pools(
    device: torch.device,
    sizes: Sequence[int] = (1, 2, 4, 8, 12, 16, 24, 32),
    seq: int = 256,
    width: int = 1024,
) -> Facts:
    """Capture a graph for each batch size, in a shared or in private pools, in both orders, with
    outputs held or dropped, and measure the pools with the allocator's snapshot."""
    module = (
        AttentionBlock(seq, width, mlp_ratio=4)
        .to(device, torch.bfloat16)
        .eval()
        .requires_grad_(False)
    )
    inputs = {
        size: torch.randn(size, seq, width, device=device, dtype=torch.bfloat16) for size in sizes
    }
    facts: Facts = {"sizes": list(sizes)}
    for order, outputs in product(ORDERS, OUTPUTS):
        kinds = {
            kind: captured(module, inputs, kind == "shared", order, outputs, device)
            for kind in ("shared", "private")
        }
        facts[f"{order}, outputs {outputs}"] = kinds
    return facts


def captured(
    module: torch.nn.Module,
    inputs: dict[int, torch.Tensor],
    shared: bool,
    order: str,
    outputs: str,
    device: torch.device,
) -> Facts:
    """Capture the graphs and return the bytes of their pools.

    `needed_bytes`: what the captures had allocated at once: in a shared pool the largest peak, in
    private pools the sum of the peaks. `fragmentation_bytes`: what the pools reserved beyond that.
    """
    reset_peaks(device)
    before = torch.cuda.memory_stats(device)["inactive_split_bytes.all.current"]
    capture = GraphCapture(warmups=1, share_pool=shared)
    kept: list[Any] = []
    base, peaks = torch.cuda.memory_allocated(device), []
    with torch.no_grad(), no_garbage_collection():
        for size in sorted(inputs, reverse=order == "largest-first"):
            capture.warmups = 0
            with torch.cuda.stream(capture.stream):
                module(inputs[size])  # the warm-up allocates outside the pool
            torch.cuda.synchronize()
            started = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            graph = capture(module, (inputs[size],), {})
            peaks.append(torch.cuda.max_memory_allocated(device) - (base if shared else started))
            kept.append((graph.replay, graph.outputs if outputs == "held" else None))
            del graph
    segments = [
        segment
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
    ]
    reserved = sum(segment["total_size"] for segment in segments)
    needed = max(peaks) if shared else sum(peaks)
    facts = {
        "reserved_bytes": reserved,
        "needed_bytes": needed,
        "fragmentation_bytes": reserved - needed,
        "allocated_bytes": sum(segment["active_size"] for segment in segments),
        "inactive_split_bytes": (
            torch.cuda.memory_stats(device)["inactive_split_bytes.all.current"] - before
        ),
        "segments": len(segments),
    }
    kept.clear()
    return facts


@Claim("P6", "One pool shared by all captured sizes reduces fragmentation.", unit="×")
def p6(pools):
    cases = [name for name in pools if name != "sizes"]
    holds = {
        name: pools[name].shared.fragmentation_bytes < pools[name].private.fragmentation_bytes
        for name in cases
    }
    also = {}
    for name, kind in product(cases, ("shared", "private")):
        facts = pools[name][kind]
        also[f"{name}, {kind}: reserved (MiB)"] = facts.reserved_bytes / 2**20
        also[f"{name}, {kind}: fragmentation (MiB)"] = facts.fragmentation_bytes / 2**20
        also[f"{name}, {kind}: fragmentation, fraction of reserved"] = (
            facts.fragmentation_bytes / facts.reserved_bytes
        )
    usual = pools["largest-first, outputs held"]
    return Answer(holds, usual.private.reserved_bytes / usual.shared.reserved_bytes, also)
