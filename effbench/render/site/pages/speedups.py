"""Speedups: a table of model × bs × mode for any metric."""

from __future__ import annotations

from dataclasses import replace

from effbench.core.metrics import METRICS, SPEEDUPS
from effbench.core.printable import count
from effbench.core.table import Shown, Table
from effbench.render.data import DeviceSweep
from effbench.render.site.page import GRIDS, Context, Page, PageFolder
from effbench.render.site.pages.cell import link
from effbench.render.summary import by_mode, headline
from effbench.render.tables import (
    NO_REASON,
    ModeFigure,
    SpeedupTable,
    speedup_table,
)

#: Metrics to choose from, in this order; metrics without a result are omitted.
METRIC_NAMES = (
    "latency_ms",
    "period_ms",
    "cold_s",
    "ttft_ms",
    "tpot_ms",
    "tpot_p99_ms",
    "tokens_per_s",
    "throughput_per_s",
    "scaling_efficiency",
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


def context(folder: PageFolder) -> Context:
    device_sweep = folder.subject
    rows, speedups = device_sweep.rows, device_sweep.speedups
    ok = [row for row in rows if row.is_ok]
    tables = {"speedup": speedups}
    for name in METRIC_NAMES:
        if any(result.value(name) is not None for result in ok):
            tables[name] = speedup_table(rows, name, device_sweep.sweep.baseline_mode)
    metrics, sources = {}, {}
    for name, table in tables.items():
        metrics[name] = [METRICS[metric] for metric in table.metrics]
        sources[name] = folder.grid(name, grid_of(table, device_sweep))
    return {
        "lead": headline(speedups, by_mode(rows)),
        "metrics": metrics,
        "sources": sources,
        "table": speedups,
    }


def grid_of(table: SpeedupTable, device_sweep: DeviceSweep) -> Table:
    """Return one row per model, other swept parameters, bs and metric, and one column per mode,
    linked to the cells."""
    wide = linked(table, device_sweep)
    # the baseline's column shows its times instead of speedups
    times = {figure.result.mode_label for figure in table.figures if figure.result.is_baseline}
    columns = []
    for column in wide.columns:
        if column.mode in times and table.metrics[0] in SPEEDUPS:
            column = replace(column, title=f"{column.mode} (ms)")
        columns.append(column)
    titles = " and ".join(METRICS[metric].title for metric in table.metrics)
    caption = f"{titles} of every mode at every model and batch size"
    return Table(columns, wide.rows, caption=caption)


def linked(
    table: SpeedupTable, device_sweep: DeviceSweep, folder: str = "", brief: bool = False
) -> Table:
    """Return one column per mode, with figures for the site that are linked to their cells.
    `folder`: of the device sweep, as seen from the page. `brief`: show times next to speedups on
    hover only, and no column with the winner."""
    wide = table.wide(best=not brief)
    rows = []
    for row, record in zip(table.rows, wide.rows, strict=True):
        cells = dict(record)
        for mode, figure in row.cells.items():
            url = f"{folder}{link(device_sweep, figure.result)}"
            cells[f"mode {mode}"] = shown(figure, url, brief)
        rows.append(cells)
    return replace(wide, rows=rows)


def shown(figure: ModeFigure, url: str, brief: bool) -> Shown:
    """Return a figure of a mode; see `linked`."""
    if not figure.result.is_ok:
        return Shown(None, figure.text, "status hatched", href=url, hint=figure.reason or NO_REASON)
    cell = figure.shown()._replace(href=url, hint=hint(figure))
    if figure.result.is_baseline:  # sorted by its time
        cell = cell._replace(value=figure.estimate.value)
    if figure.wins:
        cell = cell._replace(text=f"★ {cell.text}")
    elif figure.value and figure.is_ratio and figure.significant:
        cell = cell._replace(tone="faster" if figure.value > 1 else "slower")
    if brief:
        cell = cell._replace(details=figure.interval)
    return cell


def hint(figure: ModeFigure) -> str:
    """Return what a reader sees on hover over an ok figure."""
    texts = [figure.time, count(figure.result.trials, "trial"), figure.reason]
    if figure.interval:
        texts.insert(0, f"95 % interval {figure.interval}")
    if figure.estimate.is_marked:
        texts.append(f"marked: {figure.estimate.disturbance}")
    return ", ".join(filter(None, texts))


PAGE = Page("speedups", "Speedups", scripts=(*GRIDS, "speedups.js"))
