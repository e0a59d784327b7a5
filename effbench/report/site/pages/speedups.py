"""Speedups: a table of model × bs × mode for any metric, coloured by speedup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from effbench.metrics import METRICS
from effbench.report.data import DeviceSweep
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.report.site.pages.cell import address
from effbench.report.tables import NO_REASON, UNCLEAR, UNKNOWN, Entry, SpeedupTable, speedup_table
from effbench.table import Column, Shown, Table

#: Metrics to choose from, in this order; metrics without a result are omitted.
METRIC_NAMES = (
    "speedup", "latency_ms", "period_ms", "throughput_per_s", "latency_p95_ms", "relative_memory", "compile_cold_s",
    "energy_mj", "compile_warm_s", "peak_reserved_bytes", "graph_pool_bytes", "gpu_busy_ms", "kernels", "rel_error",
)  # fmt: skip
#: Speedups beyond SCALE, or below its inverse, have its colour and an arrow.
SCALE = 8


def context(folder: PageFolder) -> Mapping[str, Any]:
    device_sweep = folder.device_sweep
    tables = [speedup_table(device_sweep.labelled, name, device_sweep.baseline_mode) for name in METRIC_NAMES]
    shown = [it for it in tables if it.metric == "speedup" or any(entry.value is not None for entry in it.entries)]
    return {
        "metrics": [METRICS[table.metric] for table in shown],
        "sources": {table.metric: folder.grid(table.metric, grid_of(table, device_sweep)) for table in shown},
        "modes": tables[0].modes,
        "statuses": list(dict.fromkeys(str(row.source["status"]) for row in device_sweep.labelled)),
        "unknown": UNKNOWN,
        "scale": SCALE,
    }


def grid_of(table: SpeedupTable, device_sweep: DeviceSweep) -> Table:
    """Return one row per model, other swept parameters and bs, and one column per mode, linked to the cells."""
    in_ms = {mode for row in table.rows for mode, entry in row.cells.items() if entry.baseline}
    columns = table.labels
    for mode in table.modes:
        title = f"{mode} (ms)" if table.metric == "speedup" and mode in in_ms else mode
        columns.append(Column(f"mode {mode}", title, numeric=True, mode=mode))
    rows = [
        row.labels | {f"mode {mode}": shown(entry, table.metric, device_sweep) for mode, entry in row.cells.items()}
        for row in table.rows
    ]
    return Table(columns, rows, caption=f"{METRICS[table.metric].title} of every mode at every model and batch size")


def shown(entry: Entry, metric: str, device_sweep: DeviceSweep, folder: str = "") -> Shown:
    """Return an entry for the site, with a link to its cell. `folder`: of the device sweep, as seen from the page."""
    if entry.status is None:
        return Shown(None, entry.text, "absent")
    link = f"{folder}cell.html{address(device_sweep, entry.source)}"
    if entry.status != "ok":
        return Shown(None, entry.text, "status hatched", link=link, hint=entry.reason or NO_REASON)
    words = []
    if entry.text == UNCLEAR:
        words = [f"measured {entry.value:.4g}, 95 % interval {entry.low:.4g}–{entry.high:.4g}"]
    words += [] if entry.trials is None else [f"{entry.trials} trial{'s' * (entry.trials != 1)}"]
    words += ["the baseline"] if entry.baseline else []
    # the baseline shows its latency instead of its speedup of 1, and is sorted by it
    value = entry.source.get("latency_ms") if entry.baseline and metric == "speedup" else entry.value
    tone, beyond = shade(entry) if metric == "speedup" else (entry.tone, "")
    text = f"{'★ ' * entry.best}{entry.short}{beyond}"
    return Shown(value, text, tone, entry.interval, link, ", ".join(words) or entry.reason)


def shade(entry: Entry) -> tuple[str, str]:
    """Return the classes that colour a speedup, full from SCALE on and pale unless it is significant, and an arrow
    beyond SCALE."""
    if entry.baseline or not entry.value or entry.text == UNCLEAR:
        return "pale" if entry.text == UNCLEAR else "", ""
    power = math.log2(entry.value)
    level = round(9 * min(1.0, abs(power) / math.log2(SCALE)))
    pale, strong = " pale" * (entry.significant is not True), " strong" * entry.best
    tone = f"heat v{level} {'slower' if power < 0 else 'faster'}{pale}{strong}"
    return tone, "" if abs(power) <= math.log2(SCALE) else " ↑" if power > 0 else " ↓"


PAGE = Page("speedups", "Speedups", 20, context, scripts=(*GRIDS, "speedups.js"))
