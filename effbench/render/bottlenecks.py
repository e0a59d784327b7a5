"""Each cell's times and its bottleneck, for `effbench show --why` and the site."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from effbench.core.labels import (
    ABSENT,
    LabelledRow,
    LabelledRows,
)
from effbench.core.metrics import METRICS, SPEEDUPS, why_marked
from effbench.core.table import Column, Shown, Table
from effbench.render.tables import (
    NO_REASON,
    TIMES,
    Estimate,
    time_text,
)
from effbench.store.bottleneck import why

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
            columns.append(Column(name, title, numeric=True, value=partial(shown_time, name=name)))
    return columns


def shown_time(row: LabelledRow, name: str) -> Shown:
    """Return a time of a result, with the speedup as second line. Failed results have none."""
    value = row.result.value(name)
    if not row.status.is_measured or value is None:
        return Shown(None, ABSENT)
    reason = why_marked(row.result, name)
    tone = ""
    if reason is not None:
        tone = "unsure"
    return Shown(
        value, time_text(row.result, name), tone, speedup_text(row, name), hint=reason or ""
    )


def speedup_text(row: LabelledRow, time: str) -> str:
    """Return the speedup in a time without its interval: `1.30×`, `1.02× n.s.`; nothing without
    one."""
    metric = TIMES.get(time)
    if metric is None or row.result.value(metric) is None:
        return ""
    is_unsure = why_marked(row.result, metric) is not None
    return Estimate.of(row.result, metric, is_unsure).text


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
        return failure_of(row)
    return why(row.result) or NOT_PROFILED


def failure_of(row: LabelledRow) -> str:
    """Return why a result is not ok; an empty text if it is."""
    if row.is_ok:
        return ""
    return f"{row.status}: {row.reason or NO_REASON}"


def shown_bound(row: LabelledRow) -> Shown:
    bound = None
    if row.is_ok:
        bound = row.result.bound
    return Shown(bound, bound or ABSENT)


def bottleneck_columns(rows: LabelledRows) -> list[Column]:
    """Return the columns with each cell's times, its bottleneck and the reason; on a CPU, where
    nothing is profiled, why cells failed."""
    times = time_columns(rows)
    if no_bottlenecks(rows) == NEEDS_GPU:
        return [*times, Column("why", wide=True, optional=True, value=failure_of)]
    return [
        *times,
        Column("bound", filter=True, value=shown_bound),
        Column("why", wide=True, value=reason_of),
    ]


def bottleneck_table(rows: LabelledRows) -> Table:
    """Return each cell's bottleneck and the figures behind it."""
    columns = []
    for name in dict.fromkeys(name for row in rows for name in row.labels):
        value = partial(label_text, name=name)
        columns.append(Column(name, numeric=name == "bs", filter=name == "model", value=value))
    columns.append(Column("mode", filter=True, value=attrgetter("mode")))
    columns += bottleneck_columns(rows)
    return Table(columns, rows, [record(row) for row in rows])


def label_text(row: LabelledRow, name: str) -> str:
    return str(row.labels.get(name, ""))


def record(row: LabelledRow) -> dict[str, Any]:
    """Return a result for CSV and JSON."""
    return {
        **{name: str(value) for name, value in row.labels.items()},
        "mode": row.mode,
        "status": row.status,
        **{name: row.result.value(name) for name in FIGURES},
        "bound": row.result.bound,
        "why": reason_of(row),
        "marked": bool(row.result.marked),
        "disturbance": row.result.disturbance,
    }
