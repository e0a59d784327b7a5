"""Speedups: a table of model × bs × mode for any metric, coloured by speedup."""

from __future__ import annotations

import dataclasses
import math

from effbench.metrics import METRICS, SPEEDUPS
from effbench.printable import count
from effbench.report.data import DeviceSweep
from effbench.report.site.page import GRIDS, Context, Page, PageFolder
from effbench.report.site.pages.cell import link
from effbench.report.summary import by_mode, headline
from effbench.report.tables import (
    NO_REASON,
    Entry,
    SpeedupTable,
    speedup_table,
)
from effbench.table import Shown, Table

#: Metrics to choose from, in this order; metrics without a result are omitted.
METRIC_NAMES = (
    "speedup",
    "latency_ms",
    "period_ms",
    "ttft_ms",
    "tpot_ms",
    "tpot_p99_ms",
    "tokens_per_s",
    "throughput_per_s",
    "latency_p95_ms",
    "relative_memory",
    "compile_cold_s",
    "energy_mj",
    "compile_warm_s",
    "break_even_calls",
    "peak_reserved_bytes",
    "peak_reserved_cold_bytes",
    "graph_pool_bytes",
    "gpu_busy_ms",
    "kernels",
    "rel_error",
    "quantization_error",
)
#: Speedups beyond SCALE, or below its inverse, have its colour and an arrow.
SCALE = 8


def context(folder: PageFolder) -> Context:
    device_sweep = folder.subject
    rows, speedups = device_sweep.labelled, device_sweep.speedups
    ok = [row.result for row in rows if row.is_ok]
    tables = {"speedup": speedups}
    for name in METRIC_NAMES:
        if name != "speedup" and any(result.value(name) is not None for result in ok):
            tables[name] = speedup_table(rows, name, device_sweep.baseline_mode)
    metrics, sources = {}, {}
    for name, table in tables.items():
        metrics[name] = [METRICS[metric] for metric in table.metrics]
        sources[name] = folder.grid(name, grid_of(table, device_sweep))
    lead = headline(speedups, by_mode(rows))
    return {
        "lead": lead,
        "metrics": metrics,
        "sources": sources,
        "table": speedups,
        "legend": speedups.legend(above=lead),
        "scale": SCALE,
    }


def grid_of(table: SpeedupTable, device_sweep: DeviceSweep) -> Table:
    """Return one row per model, other swept parameters, bs and metric, and one column per mode,
    linked to the cells."""
    titles = " and ".join(METRICS[metric].title for metric in table.metrics)
    wide = table.wide(
        lambda entry, row: shown(entry, row.metric, device_sweep),
        caption=f"{titles} of every mode at every model and batch size",
    )
    columns = []
    for column in wide.columns:
        if column.mode is not None and _has_times(table, column.mode):
            column = dataclasses.replace(column, title=f"{column.mode} (ms)")
        columns.append(column)
    return dataclasses.replace(wide, columns=columns)


def _has_times(table: SpeedupTable, mode: str) -> bool:
    """Return whether a column shows the baseline's times instead of speedups."""
    of_speedups = [row.cells[mode] for row in table.rows if row.metric in SPEEDUPS]
    return any(entry.baseline for entry in of_speedups)


def shown(
    entry: Entry, metric: str, device_sweep: DeviceSweep, folder: str = "", brief: bool = False
) -> Shown:
    """Return an entry for the site, with a link to its cell. `folder`: of the device sweep, as seen
    from the page. `brief`: show the interval on hover only."""
    if entry.result is None:
        return Shown(None, entry.text, "absent")
    url = f"{folder}{link(device_sweep, entry.result)}"
    if not entry.is_ok:
        return Shown(None, entry.text, "status hatched", link=url, hint=entry.reason or NO_REASON)
    value, text, tone = entry.value, entry.text, entry.tone
    if metric in SPEEDUPS:
        tone = shade(entry)
        text += _arrow(entry)
        if entry.baseline:
            # the baseline shows its time instead of its speedup of 1, and is sorted by it
            value = entry.result.value(SPEEDUPS[metric])
    if entry.best:
        text = f"★ {text}"
    elif entry.marked:
        tone += " marked"
    details = ""
    if entry.marked or not brief:
        details = entry.details
    return Shown(value, text, tone, details, url, ", ".join(_hints(entry, brief)))


def _hints(entry: Entry, brief: bool) -> list[str]:
    """Return what a reader sees on hover over an ok entry."""
    hints = []
    if entry.is_unclear:
        interval = f"{entry.low:.4g}–{entry.high:.4g}"
        hints.append(f"measured {entry.value:.4g}, 95 % interval {interval}")
    if brief and entry.interval and not entry.marked:
        hints.append(f"95 % interval {entry.interval}")
    if entry.time:
        hints.append(entry.time)
    if entry.trials is not None:
        hints.append(count(entry.trials, "trial"))
    if entry.baseline:
        hints.append("the baseline")
    if entry.marked:
        hints.append(f"marked: {entry.disturbance}")
    if entry.reason:
        hints.append(entry.reason)
    return hints


def shade(entry: Entry) -> str:
    """Return the classes that colour a speedup, full from SCALE on and pale unless it is
    significant."""
    if entry.is_unclear or entry.baseline or not entry.value:
        if entry.marked or entry.is_unclear:
            return "pale"
        return ""
    power = math.log2(entry.value)
    level = round(9 * min(1.0, abs(power) / math.log2(SCALE)))
    tone = f"heat v{level} {'slower' if power < 0 else 'faster'}"
    if entry.significant is not True:
        tone += " pale"
    if entry.best:
        return f"{tone} strong"
    return tone


def _arrow(entry: Entry) -> str:
    """Return an arrow after a speedup beyond SCALE."""
    if entry.is_unclear or entry.baseline or not entry.value:
        return ""
    if 1 / SCALE <= entry.value <= SCALE:
        return ""
    if entry.value > 1:
        return " ↑"
    return " ↓"


PAGE = Page("speedups", "Speedups", context, scripts=(*GRIDS, "speedups.js"))
