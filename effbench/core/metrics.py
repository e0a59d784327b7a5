"""All metrics by name, derived from the fields of `cell.Trial` and `cell.Summary`.

The columns of the database, summaries, table headers and docs follow these tables.

To add a metric, change in this order:

1. `Trial` in `core/cell.py`: a field with `metric(...)`, or with `fact(...)` if it describes single
   trials only; `Summary` there: the field of results, unless it is a fact;
2. where it is measured. NVML: `GpuState` and `Gpu.state` in `measure/gpu.py`, then
   `GpuWatch.record` in `measure/watch.py`; timers: `StepTimes.record` in `worker/step_times.py`;
   everything else: `worker/trial.py`;
3. `REVISIONS` in `store/schema.py`: a new number, so that `effbench db upgrade` adds the columns,
   and the digest in `tests/store/test_store_upkeep.py`;
4. run `python docs/tables.py`.

A unit that is new needs a line in `UNITS` of docs/tables.py, and a figure with an interval its
bounds in `Summary`. docs/reference/extending.md says what else is possible.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import get_args, get_type_hints

from effbench.core.cell import Summary, Trial
from effbench.core.quantities import (
    Better,
    Metric,
    change_text,
    format_bytes,
    interval_text,
    is_missing,
    percent,
    ratio_text,
    significant,
)

__all__ = [
    "ESTIMATED",
    "INTERVALS",
    "METRICS",
    "RESULT_FIGURES",
    "RESULT_METRICS",
    "SPEEDUPS",
    "TRIAL_METRICS",
    "Better",
    "Metric",
    "bounds_of",
    "change_text",
    "format_bytes",
    "interval_text",
    "is_missing",
    "percent",
    "ratio_text",
    "significant",
    "why_marked",
]


def declared_metrics(declaring: type[Trial] | type[Summary]) -> dict[str, Metric]:
    """Return name -> metric of the fields that declare one, in their order."""
    types = get_type_hints(declaring)
    metrics = {}
    for field in dataclasses.fields(declaring):
        if "metric" in field.metadata:
            kind = get_args(types[field.name])[0]  # of `kind | None`
            metrics[field.name] = replace(field.metadata["metric"], name=field.name, kind=kind)
    return metrics


def metrics_of_results() -> tuple[Metric, ...]:
    """Return the metrics of a result in the order of its fields: its own ones, and those of trials
    that it has under the same name."""
    declared = declared_metrics(Summary)
    known = {metric.name: metric for metric in TRIAL_METRICS if metric.title} | declared
    names = [field.name for field in dataclasses.fields(Summary)]
    return tuple(known[name] for name in names if name in known)


def bounds_of(summary: Summary, name: str) -> tuple[float | None, float | None]:
    """Return the bounds of a metric's 95 % interval; None if it has none."""
    if name not in INTERVALS:
        return None, None
    low, high = INTERVALS[name]
    return summary.value(low), summary.value(high)


def why_marked(summary: Summary, name: str) -> str | None:
    """Return why a metric of a result is marked; None if it is not.

    Speedups have marks of their own: both sides of a pair meet the same host, which its times do
    not.
    """
    if summary.value(name) is None or not METRICS[name].is_timed:
        return None
    if name in SPEEDUPS:
        return summary.speedup_disturbance
    return summary.disturbance


def figures_of_results() -> dict[str, type]:
    """Return column -> type of the metrics of results and the bounds of their intervals."""
    figures: dict[str, type] = {}
    for metric in RESULT_METRICS:
        for column in (metric.name, *(metric.interval or ())):
            figures[column] = metric.kind
    return figures


#: quantities that a trial records
TRIAL_METRICS = tuple(declared_metrics(Trial).values())
#: quantities of a result: metrics, and what explains them
RESULT_METRICS = metrics_of_results()
#: metrics of results, by name: what `show`, `compare` and reports offer
METRICS = {metric.name: metric for metric in RESULT_METRICS if metric.title}
#: column of a result, in order -> type: these quantities and the intervals of metrics
RESULT_FIGURES = figures_of_results()
#: metrics of trials whose results have an interval over the trials
ESTIMATED = tuple(metric.name for metric in TRIAL_METRICS if metric.interval)
#: metric -> the columns of its 95 % confidence interval
INTERVALS = {metric.name: metric.interval for metric in METRICS.values() if metric.interval}
#: speedup -> the time that it compares; the first one is the headline. `pair_speedup` of a trial is
#: its speedup from pairs; `separate_speedup` of a result is that of separate processes, and
#: `busy_speedup` that of pairs on a busy host.
SPEEDUPS = {metric.name: metric.speedup_of for metric in METRICS.values() if metric.speedup_of}
