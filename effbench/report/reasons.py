"""Reasons why a mode wins: the baseline's bottleneck, and what the mode changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effbench.metrics import METRICS, change_text, percent
from effbench.report.tables import UNCLEAR, Row
from effbench.store.bottleneck import LAUNCH_IDLE

#: Bottleneck of a result -> text for readers.
BOUND = {
    "launch": "launch-bound",
    "memory": "memory-bound",
    "compute": "compute-bound",
    "latency": "inefficient kernels",
}
#: Relative changes of GPU time or kernel count below this fraction are no reason.
LITTLE = 0.05


def reason(row: Row) -> str:
    """Return why the best mode of a row wins: `launch-bound: 15 launches become one graph`. If no mode beats the
    baseline, return the baseline's bottleneck; empty if the baseline was not profiled."""
    base = next((entry.source for entry in row.cells.values() if entry.baseline and entry.status == "ok"), {})
    busy_ms, latency_ms, bound = base.get("gpu_busy_ms"), base.get("latency_ms"), BOUND.get(base.get("bound") or "")
    if not busy_ms or not latency_ms or bound is None or row.leader is None:
        return ""
    waits = max(0.0, 1 - busy_ms / latency_ms)
    if base["bound"] != "launch" and waits >= LAUNCH_IDLE:
        bound = f"the GPU is idle for {percent(waits)} of each call"
    best = row.cells[row.leader]
    if best.baseline or any(row.cells[mode].baseline for mode in row.tied):
        return f"{bound}: the GPU is busy for {percent(1 - waits)} of each call" if waits < LAUNCH_IDLE else bound
    return f"{bound}: {', '.join(effects(base, best.source))}".removesuffix(": ")


def effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return how a mode changes launches, kernels and GPU time."""
    changes = []
    kernels, fewer = before.get("kernels"), after.get("kernels")
    fused = kernels and fewer and fewer < (1 - LITTLE) * kernels
    if after.get("graph_pool_bytes") is not None and kernels and kernels > 1:
        single = after.get("phase") == "inference" and not after.get("graph_breaks")
        graphs = "one graph" if single else "graphs"
        changes.append(f"{kernels:,} launches become " + (f"{graphs} of {fewer:,} kernels" if fused else graphs))
    elif fused:
        changes.append(f"{kernels:,} kernels become {fewer:,}")
    if after.get("gpu_busy_ms") and after["gpu_busy_ms"] < (1 - LITTLE) * before["gpu_busy_ms"]:
        changes.append(f"GPU time {change_text(after['gpu_busy_ms'] / before['gpu_busy_ms'])}")
    return changes


def sentence(rows: Sequence[Row]) -> str:
    """Return one sentence about all batch sizes of a model: `compile+graph is the fastest at bs 1 and 64
    (4.44–4.46×); compile+graph and cuda-graph tie at bs 8 (3.89×). Launch-bound: 15 launches become one graph.`"""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.compares and row.leader is not None:
            best = [row.leader, *row.tied]
            is_open = row.winner is None and any(row.cells[mode].baseline for mode in best)
            groups.setdefault(() if is_open else tuple(best), []).append(row)
    if not groups:
        return "fewer than two modes are ok, so there is nothing to compare."
    texts = []
    for modes, won in sorted(groups.items(), key=lambda pair: (len(pair[0]) != 1, not pair[0], -len(pair[1]))):
        where = "" if len(won) == len(rows) else f" at bs {_and([str(row.labels['bs']) for row in won])}"
        if not modes:
            texts.append(f"no mode is significantly faster than the baseline{where}")
            continue
        best = [row.cells[row.leader] for row in won]
        gains = "" if best[0].baseline else _range([entry.value for entry in best if entry.text != UNCLEAR])
        texts.append(f"{_and(modes)} {'tie' if len(modes) > 1 else 'is the fastest'}{where}{gains}")
    clearest = max((row for won in groups.values() for row in won), key=lambda row: row.cells[row.leader].value or 0)
    why = reason(clearest)
    return f"{'; '.join(texts)}." + (f" {why[0].upper()}{why[1:]}." if why else "")


def _range(values: Sequence[float | None]) -> str:
    form = METRICS["speedup"].format
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = form(known[0]), form(known[-1])
    return f" ({low})" if low == high else f" ({low.removesuffix('×')}–{high})"


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
