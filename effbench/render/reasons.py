"""Reasons why a mode wins: the baseline's bottleneck, and what the mode changes."""

from __future__ import annotations

from collections.abc import Sequence

from effbench.core.cell import Result
from effbench.core.labels import grouped
from effbench.core.metrics import SPEEDUPS
from effbench.core.quantities import change_text, percent
from effbench.render.tables import SpeedupRow
from effbench.store.bottleneck import LAUNCH_IDLE

#: Relative decreases of GPU time or kernel count below this fraction are no reason.
LITTLE = 0.05


def reason(row: SpeedupRow) -> str:
    """Return why the winners of a row win (see `reason_of`)."""
    base = None
    for figure in row.cells.values():
        if figure.result.is_baseline and figure.result.is_ok:
            base = figure.result
    return reason_of(base, [row.cells[mode].result for mode in row.winners], row.metric)


def reason_of(base: Result | None, winners: Sequence[Result], metric: str) -> str:
    """Return why the first of these modes wins: `launch-bound: 15 launches become CUDA graphs`. If
    the baseline is among the winners, or there are none, return its bottleneck; empty if it is not
    ok, was not profiled, or is marked without a winner."""
    if base is None or (base.marked and not winners):
        return ""
    busy_ms = base.gpu_busy_ms
    call_ms = base.value(SPEEDUPS.get(metric, "latency_ms"))
    if not busy_ms or not call_ms or not base.bound:
        return ""
    idle = max(0.0, 1 - busy_ms / call_ms)
    bottleneck = "GPU-bound"
    if base.bound == "launch":
        bottleneck = "launch-bound"
    elif idle >= LAUNCH_IDLE:
        bottleneck = f"the GPU is idle for {percent(idle)} of each call"
    if not winners or base in winners:
        return bottleneck
    changes = effects(base, winners[0])
    if changes:
        return f"{bottleneck}: {', '.join(changes)}"
    return bottleneck


def effects(before: Result, after: Result) -> list[str]:
    """Return how a mode changes launches, kernels and GPU time."""
    changes = []
    kernels, left = before.kernels or 0, after.kernels or 0
    if kernels > 1 and after.graph_pool_bytes is not None:
        changes.append(f"{kernels:,} launches become CUDA graphs")
    if is_less(left, kernels):
        changes.append(f"{kernels:,} kernels become {left:,}")
    busy_ms, left_ms = before.gpu_busy_ms or 0.0, after.gpu_busy_ms or 0.0
    if is_less(left_ms, busy_ms):
        changes.append(f"GPU time {change_text(left_ms / busy_ms)}")
    return changes


def is_less(after: float, before: float) -> bool:
    """Return whether a figure decreases by more than a little; 0 is unknown."""
    return 0 < after < (1 - LITTLE) * before


def sentence(rows: Sequence[SpeedupRow]) -> str:
    """Return which modes are best at which batch sizes of a model, and why: `latency at bs 1, 64:
    cuda-graph; latency at bs 8: tie of eager, default. At bs 1, launch-bound: 15 launches become
    CUDA graphs.` `rows`: with a winner or a tie."""
    clauses = []
    for same in grouped(rows, lambda row: (row.best_text, row.quantity)).values():
        sizes = ", ".join(str(row.labels["bs"]) for row in same)
        best = same[0].best_text.replace("tie: ", "tie of ")
        clauses.append(f"{same[0].quantity} at bs {sizes}: {best}")
    text = f"{'; '.join(clauses)}."
    clearest = max(rows, key=lambda row: row.cells[row.winners[0]].value or 0)
    why = reason(clearest)
    if not why:
        return text
    return f"{text} At bs {clearest.labels['bs']}, {why}."
