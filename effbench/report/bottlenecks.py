"""Each cell's times and its bottleneck, for `effbench show --why` and the site."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from effbench.cell import Result
from effbench.labels import (
    ABSENT,
    LabelledRow,
    LabelledRows,
)
from effbench.metrics import METRICS, SPEEDUPS
from effbench.report import marks
from effbench.report.marks import why_marked
from effbench.report.tables import (
    NO_REASON,
    TIMES,
    figure_of,
    figure_texts,
    time_text,
)
from effbench.store.bottleneck import why
from effbench.table import Column, Shown, Table

NOT_PROFILED = "not profiled"
#: Explains NOT_PROFILED once, below a table.
WHY_NOT_PROFILED = (
    "not profiled: no CUDA, stream=arrivals, protocol.profile=false, "
    "or profiling failed (profile_failed in trial.extra)"
)
#: Stands for the table of bottlenecks if all cells ran on a CPU.
NEEDS_GPU = "bottlenecks need a GPU"
#: Columns with times.
TIMED = (*TIMES, "gpu_busy_ms")
#: Columns of CSV and JSON between those that name the cell and the reason.
FIGURES = (
    *TIMES,
    *SPEEDUPS,
    "gpu_busy_ms",
    "enqueue_ms",
    "kernels",
    "gpu_idle_fraction",
    "roofline_fraction",
)


def time_columns(rows: Iterable[LabelledRow]) -> list[Column]:
    """Return columns for latency, period and GPU busy time, omitting those that no row has."""
    rows = list(rows)
    columns = []
    for name in TIMED:
        if any(row.result.value(name) is not None for row in rows):
            title = METRICS[name].title
            if name in TIMES:
                title += " (speedup)"
            columns.append(Column(name, title, numeric=True))
    return columns


def time_cells(row: LabelledRow) -> dict[str, Shown]:
    """Return the values of `time_columns`, with speedups as second lines. Failed results have
    none."""
    cells = {}
    for name in TIMED:
        if not row.status.is_measured or row.result.value(name) is None:
            cells[name] = Shown(None, ABSENT)
            continue
        text = time_text(row.result, name)
        speedup = _speedup_text(row.result, TIMES.get(name))
        reason = marks.reason(row.result, name)
        if reason is None:
            cells[name] = Shown(None, text, sub=speedup)
        else:
            cells[name] = Shown(None, text, "unsure", speedup, hint=reason)
    return cells


def _speedup_text(result: Result, metric: str | None) -> str:
    """Return a speedup without its interval: `1.30×`, `1.02× n.s.`, `unclear`; nothing without
    one."""
    if metric is None or result.value(metric) is None:
        return ""
    is_unsure = marks.reason(result, metric) is not None
    text, _ = figure_texts(metric, *figure_of(result, metric), is_unsure)
    return text


def no_bottlenecks(rows: LabelledRows) -> str | None:
    """Return the line that stands for a table of bottlenecks without any; None if a result has
    one."""
    if any(why(row.result) is not None for row in rows):
        return None
    if all(row.result.device == "cpu" for row in rows):
        return NEEDS_GPU
    return WHY_NOT_PROFILED


def reason_of(row: LabelledRow) -> str:
    """Return what bounds a result, or why that is unknown."""
    if not row.is_ok:
        return f"{row.status}: {row.reason or NO_REASON}"
    return why(row.result) or (NEEDS_GPU if row.result.device == "cpu" else NOT_PROFILED)


def bottleneck_table(rows: LabelledRows) -> Table:
    """Return each cell's bottleneck and the figures behind it."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    columns = [
        Column(
            name,
            numeric=name == "bs",
            filter=name == "model",
        )
        for name in names
    ]
    columns += [Column("mode", filter=True), *time_columns(rows)]
    columns += [Column("bound", filter=True), Column("why", wide=True)]
    shown, data = [], []
    for row in rows:
        record: dict[str, Any] = {name: str(row.labels.get(name, "")) for name in names}
        record |= {"mode": row.mode, "status": row.status}
        record |= {name: row.result.value(name) for name in FIGURES}
        record |= {
            "bound": row.result.bound,
            "why": reason_of(row),
            "marked": bool(row.result.marked),
            "disturbance": why_marked(row.result),
        }
        bound = None
        if row.is_ok:
            bound = row.result.bound
        cells = {**time_cells(row), "bound": Shown(None, bound or ABSENT)}
        shown.append(record | cells)
        data.append(record)
    return Table(columns, shown, data)
