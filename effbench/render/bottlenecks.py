"""Each cell's times and its bottleneck, for `effbench show --why` and the site."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from effbench.analysis.explain import Breakdown, NotTracedError, Part
from effbench.core.labels import ABSENT, LabelledResult, LabelledResults
from effbench.core.metrics import METRICS, SPEEDUPS
from effbench.core.quantities import percent
from effbench.core.table import Column, Record, Shown, Table
from effbench.render.marks import Estimate
from effbench.render.tables import NO_REASON, label_columns
from effbench.store.bottleneck import why
from effbench.store.store import Store
from effbench.store.values import ResultKey

NOT_PROFILED = "not profiled"
#: Explains NOT_PROFILED once, below a table.
WHY_NOT_PROFILED = (
    "not profiled: no CUDA, stream=arrivals, protocol.profile=false, "
    "or profiling failed (profile_failed in trial.extra)"
)
#: Stands for the table of bottlenecks if all cells ran on a CPU.
NEEDS_GPU = "bottlenecks need a GPU"
#: A part of the latency is named from this fraction of it on.
LEAST_PART = 0.05
#: Columns with times.
TIMED = (*SPEEDUPS.values(), "gpu_busy_ms")
#: Columns of CSV and JSON between those that name the cell and the reason.
RECORDED = (
    *SPEEDUPS.values(),
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
            columns.append(Column(name, METRICS[name].title, numeric=True))
    if no_bottlenecks(rows) == NEEDS_GPU:
        return [*columns, Column("failure", "why", wide=True, optional=True)]
    return [*columns, Column("bound", filter=True), Column("why", wide=True)]


def bottleneck_of(row: LabelledResult) -> Record:
    """Return what `bottleneck_columns` show of a result. Failed ones have no times."""
    bound = row.bound if row.is_ok else None
    return {
        **{name: shown_time(row, name) for name in TIMED},
        "failure": failure_of(row),
        "bound": Shown(bound, bound or ABSENT),
        "why": reason_of(row),
    }


def shown_time(row: LabelledResult, name: str) -> Shown:
    time = Estimate.of(row, name)
    if not row.status.is_measured or time.value is None:
        return Shown(None, ABSENT)
    return Shown(time.value, time.text, time.tone, hint=time.disturbance or "")


def failure_of(row: LabelledResult) -> str:
    """Return why a result is not ok; an empty text if it is."""
    if row.is_ok:
        return ""
    return f"{row.status}: {row.reason or NO_REASON}"


def reason_of(row: LabelledResult) -> str:
    """Return what bounds a result, or why that is unknown."""
    return failure_of(row) or why(row) or NOT_PROFILED


def largest_parts(store: Store, sweep_id: str) -> dict[ResultKey, str]:
    """Return the largest parts of the latency of each traced result: `matrix products 61 %, idle
    between kernels 20 %`."""
    parts = {}
    for traced in store.sweep_traces(sweep_id):
        with suppress(NotTracedError):
            terms = {
                term.name: term.second_ms
                for term in Breakdown.of(traced).terms
                if term.name != Part.REST
            }
            whole_ms = sum(terms.values()) or 1.0
            texts = []
            for name, ms in sorted(terms.items(), key=lambda term: -term[1]):
                if ms > LEAST_PART * whole_ms:
                    texts.append(f"{name} {percent(ms / whole_ms)}")
            trial = traced[0].trial
            parts[ResultKey(trial.cell_key, trial.environment_id)] = ", ".join(texts)
    return parts


def bottleneck_table(rows: LabelledResults, parts: Mapping[ResultKey, str]) -> Table:
    """Return each cell's bottleneck and the figures behind it. `parts`: what `largest_parts`
    returns."""
    columns = [*label_columns(rows[0].labels), Column("mode"), *bottleneck_columns(rows)]
    columns.append(Column("parts", "largest parts of the latency", optional=True))
    shown = []
    records = []
    for row in rows:
        of_row = {"parts": parts.get(ResultKey(row.cell_key, row.environment_id))}
        shown.append({**row.labels, "mode": row.mode_label, **bottleneck_of(row), **of_row})
        records.append(record(row) | of_row)
    return Table(columns, shown, records)


def record(row: LabelledResult) -> dict[str, Any]:
    """Return a result for CSV and JSON."""
    return {
        **{name: str(value) for name, value in row.labels.items()},
        "mode": row.mode_label,
        "status": row.status,
        **{name: row.value(name) for name in RECORDED},
        "bound": row.bound,
        "why": reason_of(row),
        "marked": bool(row.marked),
        "disturbance": row.disturbance,
    }
