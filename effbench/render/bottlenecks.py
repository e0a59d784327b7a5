"""Each cell's times and its bottleneck, for `effbench show --why` and the site."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any

from effbench.core.labels import ABSENT, LabelledResult, LabelledResults
from effbench.core.metrics import METRICS, SPEEDUPS
from effbench.core.table import Column, Shown, Table
from effbench.render.marks import Estimate
from effbench.render.tables import NO_REASON, TIMES, label_columns
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
)


def no_bottlenecks(rows: LabelledResults) -> str | None:
    """Return the line that stands for a table of bottlenecks without any; None if a result has
    one."""
    if any(why(row) is not None for row in rows):
        return None
    if all(row.device == "cpu" for row in rows):
        return NEEDS_GPU
    return WHY_NOT_PROFILED


def bottleneck_columns(rows: LabelledResults) -> list[Column]:
    """Return the columns with each cell's times, its bottleneck and the reason; on a CPU, where
    nothing is profiled, why cells failed. Times that no row has are omitted."""
    columns = []
    for name in TIMED:
        if any(row.value(name) is not None for row in rows):
            value = partial(shown_time, name=name)
            columns.append(Column(name, METRICS[name].title, numeric=True, value=value))
    if no_bottlenecks(rows) == NEEDS_GPU:
        return [*columns, Column("why", wide=True, optional=True, value=failure_of)]
    return [
        *columns,
        Column("bound", filter=True, format=lambda bound: bound or ABSENT, value=bound_of),
        Column("why", wide=True, value=reason_of),
    ]


def shown_time(row: LabelledResult, name: str) -> Shown:
    """Return a time of a result. Failed results have none."""
    time = Estimate.of(row, name)
    if not row.status.is_measured or time.value is None:
        return Shown(None, ABSENT)
    return Shown(time.value, time.text, time.tone, hint=time.disturbance or "")


def bound_of(row: LabelledResult) -> str | None:
    if not row.is_ok:
        return None
    return row.bound


def failure_of(row: LabelledResult) -> str:
    """Return why a result is not ok; an empty text if it is."""
    if row.is_ok:
        return ""
    return f"{row.status}: {row.reason or NO_REASON}"


def reason_of(row: LabelledResult) -> str:
    """Return what bounds a result, or why that is unknown."""
    return failure_of(row) or why(row) or NOT_PROFILED


def bottleneck_table(rows: LabelledResults) -> Table:
    """Return each cell's bottleneck and the figures behind it."""
    columns = [
        *label_columns(rows),
        Column("mode", value=attrgetter("mode_label")),
        *bottleneck_columns(rows),
    ]
    return Table(columns, rows, [record(row) for row in rows])


def record(row: LabelledResult) -> dict[str, Any]:
    """Return a result for CSV and JSON."""
    return {
        **{name: str(value) for name, value in row.labels.items()},
        "mode": row.mode_label,
        "status": row.status,
        **{name: row.value(name) for name in FIGURES},
        "bound": row.bound,
        "why": reason_of(row),
        "marked": bool(row.marked),
        "disturbance": row.disturbance,
    }
