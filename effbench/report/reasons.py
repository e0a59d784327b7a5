"""Reasons why a mode wins: the baseline's bottleneck, and what the mode changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effbench.labels import grouped
from effbench.metrics import METRICS, change_text, percent
from effbench.printable import count
from effbench.report.marks import signed
from effbench.report.tables import NO_INTERVAL, SPEEDUPS, UNCLEAR, Row
from effbench.store.bottleneck import LAUNCH_IDLE

#: Relative changes of GPU time or kernel count below this fraction are no reason.
LITTLE = 0.05


def reason(row: Row) -> str:
    """Return why the best mode of a row wins: `launch-bound: 15 launches become one graph`. If no
    mode beats the baseline, return the baseline's bottleneck; empty if the baseline was not
    profiled."""
    base = next(
        (entry.source for entry in row.cells.values() if entry.baseline and entry.status == "ok"),
        {},
    )
    busy_ms, bound = base.get("gpu_busy_ms"), base.get("bound")
    call_ms = base.get(SPEEDUPS.get(row.metric, "latency_ms"))
    if not busy_ms or not call_ms or not bound or row.leader is None:
        return ""
    bound = f"{bound}-bound"
    waits = max(0.0, 1 - busy_ms / call_ms)
    if base["bound"] != "launch" and waits >= LAUNCH_IDLE:
        bound = f"the GPU is idle for {percent(waits)} of each call"
    best = row.cells[row.leader]
    if best.baseline or any(row.cells[mode].baseline for mode in row.tied):
        return (
            f"{bound}: the GPU is busy for {percent(1 - waits)} of each call"
            if waits < LAUNCH_IDLE
            else bound
        )
    return f"{bound}: {', '.join(effects(base, best.source))}".removesuffix(": ")


def effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return how a mode changes launches, kernels and GPU time."""
    changes = []
    kernels, fewer = before.get("kernels"), after.get("kernels")
    fused = kernels and fewer and fewer < (1 - LITTLE) * kernels
    if after.get("graph_pool_bytes") is not None and kernels and kernels > 1:
        single = after.get("phase") == "inference" and not after.get("graph_breaks")
        graphs = "one graph" if single else "graphs"
        changes.append(
            f"{kernels:,} launches become "
            + (f"{graphs} of {count(fewer, 'kernel')}" if fused else graphs)
        )
    elif fused:
        changes.append(f"{kernels:,} kernels become {fewer:,}")
    if after.get("gpu_busy_ms") and after["gpu_busy_ms"] < (1 - LITTLE) * before["gpu_busy_ms"]:
        changes.append(f"GPU time {change_text(after['gpu_busy_ms'] / before['gpu_busy_ms'])}")
    return changes


def sentence(rows: Sequence[Row]) -> str:
    """Return one sentence about all batch sizes of a model: `at bs 1 and 64 compile+graph wins
    latency and period (4.44–4.46× / 5.20×); at bs 8 default and cuda-graph tie in latency (2.00×),
    default wins period (2.40×). At bs 1, launch-bound: 15 launches become one graph.`"""
    points = grouped((row for row in rows if row.best), lambda row: str(row.labels["bs"]))
    if not points:
        return undecided(rows)
    groups = grouped(
        points, lambda bs: tuple((outcome_of(row), row.quantity) for row in points[bs])
    )
    texts = []
    for key, sizes in groups.items():
        clauses = []
        for outcome in dict.fromkeys(outcome for outcome, _ in key):
            at = [number for number, (other, _) in enumerate(key) if other == outcome]
            gains = " / ".join(
                filter(None, (_range([points[bs][number] for bs in sizes]) for number in at))
            )
            clauses.append(
                f"{outcome} {_and([key[number][1] for number in at])}"
                + (f" ({gains})" if gains else "")
            )
        where = "" if len(groups) == 1 else f"at bs {_and(sizes)} "
        texts.append(where + ", ".join(clauses))
    clearest = max(
        (row for row in rows if row.best), key=lambda row: row.cells[row.leader].value or 0
    )
    why = reason(clearest)
    if why and len(points) > 1:
        why = f"at bs {clearest.labels['bs']}, {why}"
    return f"{'; '.join(texts)}." + (f" {why[0].upper()}{why[1:]}." if why else "")


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
    return f"{row.winner} wins" if row.winner else f"{_and(row.best)} tie in"


def _range(rows: Sequence[Row]) -> str:
    """Return the range of the best figures; empty where the baseline is among the best modes, or
    nothing is known."""
    best = [row for row in rows if not any(row.cells[mode].baseline for mode in row.best)]
    cells = {str(row.labels["bs"]): row.cells[row.leader] for row in best}
    known = {
        bs: cell.value
        for bs, cell in cells.items()
        if cell.value is not None and cell.text != UNCLEAR
    }
    if not known:
        return ""
    metric = METRICS[rows[0].metric]
    low, high = map(metric.format, (min(known.values()), max(known.values())))
    where = "" if len(known) == len(cells) else f" at bs {_and([*known])}"
    text = low if low == high else f"{low.removesuffix(metric.unit).rstrip()}–{high}"
    return signed(text, any(cells[bs].marked for bs in known)) + where


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
