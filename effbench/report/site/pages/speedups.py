"""Speedup tables: model × bs × mode under any metric, and the same as a heatmap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.metrics import METRICS
from effbench.report.figures.speedup_heatmap import FIGURE
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.report.site.pages.cell import address
from effbench.report.tables import NO_INTERVAL, NO_REASON, UNKNOWN, Entry, SpeedupTable, speedup_table
from effbench.table import Column, Shown, Table

#: In the order of the choice; those that no result has are left out.
METRIC_NAMES = (
    "speedup", "latency_ms", "period_ms", "throughput_per_s", "latency_p95_ms", "memory_ratio", "compile_cold_s",
    "energy_mj", "compile_warm_s", "peak_reserved_bytes", "graph_pool_bytes", "gpu_busy_ms", "kernels", "rel_error",
)  # fmt: skip


def context(folder: PageFolder) -> Mapping[str, Any]:
    own = folder.device_sweep
    tables = {name: speedup_table(own.labelled, name, own.baseline_mode) for name in METRIC_NAMES}
    present = [
        name
        for name, table in tables.items()
        if name == "speedup" or any(entry.value is not None for entry in table.entries)
    ]
    # (labels, mode) -> link to the cell, and the latency that the baseline shows instead of its speedup of 1
    links = {
        (*row.labels.values(), row.mode): (f"cell.html{address(own, row.source)}", row.source.get("latency_ms"))
        for row in own.labelled
    }
    return {
        "metrics": [METRICS[name] for name in present],
        "sources": {name: folder.grid(name, grid_of(tables[name], links)) for name in present},
        "modes": tables["speedup"].modes,
        "statuses": list(dict.fromkeys(str(row.source["status"]) for row in own.labelled)),
        "unknown": UNKNOWN,
        "heatmap": folder.section(FIGURE),
    }


def grid_of(table: SpeedupTable, links: Mapping[tuple, tuple[str, float | None]]) -> Table:
    """A row for each model, further swept parameters and bs; a column for each mode, linked to its cell."""
    baselines = {mode for row in table.rows for mode, entry in row.cells.items() if entry.baseline}
    in_ms = baselines if table.metric == "speedup" else set()
    titles = {mode: f"{mode} (ms)" if mode in in_ms else mode for mode in table.modes}
    columns = [
        *(Column(name, numeric=name == "bs", filter=True) for name in table.label_names),
        *(Column(f"mode {mode}", titles[mode], numeric=True, mode=mode) for mode in table.modes),
    ]
    rows = []
    for row in table.rows:
        cells = {}
        for mode, entry in row.cells.items():
            link, latency_ms = links.get((*row.labels.values(), mode), ("", None))
            cells[f"mode {mode}"] = shown(entry, table.metric, link, latency_ms if mode in in_ms else entry.value)
        rows.append(row.labels | cells)
    caption = f"{METRICS[table.metric].title} of every mode at every model and batch size"
    return Table(columns, rows, caption=caption)


def shown(entry: Entry, metric: str, link: str, value: float | None) -> Shown:
    if entry.status is None:
        return Shown(None, entry.text, "absent")
    if entry.status != "ok":
        return Shown(None, entry.text, "status hatched", link=link, hint=entry.reason or NO_REASON)
    base = entry.shown
    words = [f"95 % interval {base.sub}" if base.sub else ""]
    if entry.unclear:
        words = [f"unclear: measured {entry.value:.4g}, 95 % interval {entry.low:.4g}–{entry.high:.4g}"]
    words.append("" if entry.trials is None else f"{entry.trials} trial{'' if entry.trials == 1 else 's'}")
    if entry.significant is False and not entry.unclear:
        words.append("not significant: the interval includes 1")
    elif metric == "speedup" and entry.low is None and entry.value is not None and not entry.baseline:
        words.append(NO_INTERVAL)
    if entry.baseline:
        words.append("the baseline")
    text = f"★ {base.text.removesuffix(' ★')}" if entry.best else base.text
    return Shown(value, text, base.tone, base.sub, link, ", ".join(filter(None, words)) or entry.reason)


PAGE = Page("speedups", "Speedups", 20, context, scripts=(*GRIDS, "speedups.js", *CHARTS))
