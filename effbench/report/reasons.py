"""Reasons why a mode wins: the baseline's bottleneck, and what the mode changes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from effbench.cell import Result
from effbench.labels import grouped
from effbench.metrics import (
    METRICS,
    SPEEDUPS,
    change_text,
    percent,
)
from effbench.printable import count
from effbench.report.marks import signed
from effbench.report.tables import NO_INTERVAL, Row
from effbench.store.bottleneck import LAUNCH_IDLE

#: Relative changes of GPU time or kernel count below this fraction are no reason.
LITTLE = 0.05


def reason(row: Row) -> str:
    """Return why the best mode of a row wins: `launch-bound: 15 launches become one graph`. If no
    mode beats the baseline, return the baseline's bottleneck; empty if the baseline was not
    profiled."""
    base = _baseline_of(row)
    if base is None or row.leader is None:
        return ""
    busy_ms, bound = base.gpu_busy_ms, base.bound
    call_ms = base.value(SPEEDUPS.get(row.metric, "latency_ms"))
    if not busy_ms or not call_ms or not bound:
        return ""
    idle = max(0.0, 1 - busy_ms / call_ms)
    bottleneck = f"{bound}-bound"
    if bound != "launch" and idle >= LAUNCH_IDLE:
        bottleneck = f"the GPU is idle for {percent(idle)} of each call"
    best = row.cells[row.leader]
    if best.baseline or any(row.cells[mode].baseline for mode in row.tied):
        if idle >= LAUNCH_IDLE:
            return bottleneck
        return f"{bottleneck}: the GPU is busy for {percent(1 - idle)} of each call"
    changes = effects(base, best.result) if best.result else []
    if changes:
        return f"{bottleneck}: {', '.join(changes)}"
    return bottleneck


def _baseline_of(row: Row) -> Result | None:
    """Return the baseline's result in a row; None if it is not ok."""
    for entry in row.cells.values():
        if entry.baseline and entry.is_ok:
            return entry.result
    return None


def effects(before: Result, after: Result) -> list[str]:
    """Return how a mode changes launches, kernels and GPU time."""
    changes = []
    kernels, left = before.kernels or 0, after.kernels or 0
    is_fused = _decrease(kernels, left) is not None
    if kernels > 1 and after.graph_pool_bytes is not None:
        is_single = after.phase == "inference" and not after.graph_breaks
        graphs = "graphs"
        if is_single:
            graphs = "one graph"
        if is_fused:
            graphs += f" of {count(left, 'kernel')}"
        changes.append(f"{kernels:,} launches become {graphs}")
    elif is_fused:
        changes.append(f"{kernels:,} kernels become {left:,}")
    gpu_time = _decrease(before.gpu_busy_ms, after.gpu_busy_ms)
    if gpu_time is not None:
        changes.append(f"GPU time {change_text(gpu_time)}")
    return changes


def _decrease(before: float | None, after: float | None) -> float | None:
    """Return after ÷ before; None unless the figure is less, and not only a little."""
    if not before or not after or after >= (1 - LITTLE) * before:
        return None
    return after / before


def sentence(rows: Sequence[Row]) -> str:
    """Return one sentence about all batch sizes of a model: `at bs 1 and 64 compile+graph wins
    latency and period (4.44–4.46× / 5.20×); at bs 8 default and cuda-graph tie in latency (2.00×),
    default wins period (2.40×). At bs 1, launch-bound: 15 launches become one graph.`"""
    decided = [row for row in rows if row.best]
    if not decided:
        return undecided(rows)
    points = grouped(decided, attrgetter("size"))
    # sizes with the same outcomes share a part of the sentence
    alike = grouped(points.values(), _outcomes)
    parts = []
    for same in alike.values():
        part = ", ".join(_clauses(same))
        if len(alike) > 1:
            sizes = [point[0].size for point in same]
            part = f"at bs {_and(sizes)} {part}"
        parts.append(part)
    text = f"{'; '.join(parts)}."
    clearest = max(decided, key=lambda row: row.best_entry.value or 0)
    why = reason(clearest)
    if not why:
        return text
    if len(points) > 1:
        why = f"at bs {clearest.size}, {why}"
    return f"{text} {why[0].upper()}{why[1:]}."


def _outcomes(point: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Return the outcome of each quantity at one size."""
    return tuple((outcome_of(row), row.quantity) for row in point)


def _clauses(points: Sequence[Sequence[Row]]) -> list[str]:
    """Return one clause per outcome of these points, whose rows are of the same quantities and have
    the same outcomes."""
    by_quantity = zip(*points, strict=True)
    clauses = []
    for outcome, of_outcome in grouped(by_quantity, lambda rows: outcome_of(rows[0])).items():
        quantities = [rows[0].quantity for rows in of_outcome]
        ranges = [_range(rows) for rows in of_outcome]
        gains = " / ".join(text for text in ranges if text)
        clause = f"{outcome} {_and(quantities)}"
        clauses.append(f"{clause} ({gains})" if gains else clause)
    return clauses


def undecided(rows: Sequence[Row]) -> str:
    """Return why the rows have neither winners nor ties."""
    compared = [row for row in rows if row.compares]
    why = "fewer than two modes are ok at each point"
    if compared:
        why = NO_INTERVAL
    if any(row.leader is None and _has_marks(row) for row in compared):
        why = "all figures are marked (~)"
    return f"{why}, so no mode wins."


def _has_marks(row: Row) -> bool:
    return any(entry.marked for entry in row.cells.values())


def outcome_of(row: Row) -> str:
    """Return `compile+graph wins` or `default and eager tie in`, to be followed by the quantity."""
    if row.winner:
        return f"{row.winner} wins"
    return f"{_and(row.best)} tie in"


def _range(rows: Sequence[Row]) -> str:
    """Return the range of the best figures; empty where the baseline is among the best modes, or
    nothing is known."""
    cells = {}
    for row in rows:
        if not row.ties_with_baseline:
            cells[row.size] = row.best_entry
    known = {}
    for bs, cell in cells.items():
        if cell.value is not None and not cell.is_unclear:
            known[bs] = cell.value
    if not known:
        return ""
    metric = METRICS[rows[0].metric]
    low = metric.format(min(known.values()))
    high = metric.format(max(known.values()))
    text = high
    if low != high:
        text = f"{low.removesuffix(metric.unit).rstrip()}–{high}"
    text = signed(text, any(cells[bs].marked for bs in known))
    if len(known) == len(cells):
        return text
    return f"{text} at bs {_and([*known])}"


def _and(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
