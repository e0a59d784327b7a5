"""Speedups: a table of model × bs × mode for any metric, coloured by speedup."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from effbench.metrics import METRICS
from effbench.printable import count
from effbench.report.data import DeviceSweep
from effbench.report.marks import note
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.report.site.pages.cell import link
from effbench.report.summary import by_mode, headline
from effbench.report.tables import (
    NO_REASON,
    SPEEDUPS,
    UNCLEAR,
    UNKNOWN,
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


def context(folder: PageFolder) -> Mapping[str, Any]:
    device_sweep = folder.device_sweep
    rows, speedups = device_sweep.labelled, device_sweep.speedups
    ok = [row.source for row in rows if row.source["status"] == "ok"]
    names = [name for name in METRIC_NAMES if any(source.get(name) is not None for source in ok)]
    tables = {"speedup": speedups}
    for name in names:
        if name != "speedup":
            tables[name] = speedup_table(rows, name, device_sweep.baseline_mode)
    lead = headline(speedups, by_mode(rows))
    return {
        "lead": lead,
        "metrics": {
            name: [METRICS[metric] for metric in table.metrics] for name, table in tables.items()
        },
        "sources": {
            name: folder.grid(name, grid_of(table, device_sweep)) for name, table in tables.items()
        },
        "table": speedups,
        "notes": [text for text in speedups.notes() if text.lower() not in lead.lower()],
        "marks": note(rows),
        "beyond": is_beyond(speedups),
        "failed": any(row.source["status"] != "ok" for row in rows),
        "unknown": UNKNOWN,
        "scale": SCALE,
    }


def is_beyond(table: SpeedupTable) -> bool:
    """Return whether a speedup is beyond the colour scale."""
    gains = [entry.value for entry in table.entries if entry.value]
    return any(not 1 / SCALE <= gain <= SCALE for gain in gains)


def grid_of(table: SpeedupTable, device_sweep: DeviceSweep) -> Table:
    """Return one row per model, other swept parameters, bs and metric, and one column per mode,
    linked to the cells."""
    times = {
        mode
        for row in table.rows
        for mode, it in row.cells.items()
        if it.baseline and row.metric in SPEEDUPS
    }
    caption = (
        f"{' and '.join(METRICS[it].title for it in table.metrics)} of every mode at every model"
        " and batch size"
    )
    wide = table.wide(lambda entry, row: shown(entry, row.metric, device_sweep), caption=caption)
    columns = [
        dataclasses.replace(it, title=f"{it.mode} (ms)") if it.mode in times else it
        for it in wide.columns
    ]
    return dataclasses.replace(wide, columns=columns)


def shown(
    entry: Entry, metric: str, device_sweep: DeviceSweep, folder: str = "", brief: bool = False
) -> Shown:
    """Return an entry for the site, with a link to its cell. `folder`: of the device sweep, as seen
    from the page. `brief`: show the interval on hover only."""
    if entry.status is None:
        return Shown(None, entry.text, "absent")
    url = f"{folder}{link(device_sweep, entry.source)}"
    if entry.status != "ok":
        return Shown(None, entry.text, "status hatched", link=url, hint=entry.reason or NO_REASON)
    words = []
    if entry.text == UNCLEAR:
        words = [f"measured {entry.value:.4g}, 95 % interval {entry.low:.4g}–{entry.high:.4g}"]
    words += (
        [f"95 % interval {entry.interval}"] if brief and entry.interval and not entry.marked else []
    )
    words += [entry.time] if entry.time else []
    words += [] if entry.trials is None else [count(entry.trials, "trial")]
    words += ["the baseline"] if entry.baseline else []
    words += [f"marked: {entry.disturbance}"] if entry.marked else []
    words += [entry.reason] if entry.reason else []
    # the baseline shows its time instead of its speedup of 1, and is sorted by it
    value = (
        entry.source.get(SPEEDUPS[metric]) if entry.baseline and metric in SPEEDUPS else entry.value
    )
    tone, beyond = shade(entry) if metric in SPEEDUPS else (entry.tone, "")
    if entry.marked and not entry.best:
        tone += " marked"
    text = f"{'★ ' * entry.best}{entry.text}{beyond}"
    details = entry.details if entry.marked or not brief else ""
    return Shown(value, text, tone, details, url, ", ".join(words))


def shade(entry: Entry) -> tuple[str, str]:
    """Return the classes that colour a speedup, full from SCALE on and pale unless it is
    significant, and an arrow beyond SCALE."""
    if entry.baseline or not entry.value or entry.text == UNCLEAR:
        return "pale" if entry.marked or entry.text == UNCLEAR else "", ""
    power = math.log2(entry.value)
    level = round(9 * min(1.0, abs(power) / math.log2(SCALE)))
    pale, strong = " pale" * (entry.significant is not True), " strong" * entry.best
    tone = f"heat v{level} {'slower' if power < 0 else 'faster'}{pale}{strong}"
    return tone, "" if abs(power) <= math.log2(SCALE) else " ↑" if power > 0 else " ↓"


PAGE = Page("speedups", "Speedups", context, scripts=(*GRIDS, "speedups.js"))
