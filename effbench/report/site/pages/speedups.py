"""Speedup tables: model × bs × mode under any metric, and the same as a heatmap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.analysis.swept import SweptRow
from effbench.metrics import METRICS
from effbench.report.figures.speedup_heatmap import FIGURE
from effbench.report.site.cells import address
from effbench.report.site.grid import Column, Grid, cell
from effbench.report.site.pages.base import CHARTS, GRIDS, Page, PageFolder
from effbench.report.speedup_table import NO_INTERVAL, NOT_SIGNIFICANT, UNKNOWN, Entry, SpeedupTable, table_of

#: In the order of the choice; those that no result has are left out.
METRIC_NAMES = (
    "speedup", "latency_ms", "period_ms", "throughput_per_s", "latency_p95_ms", "memory_ratio", "compile_cold_s",
    "energy_mj", "compile_warm_s", "peak_reserved_bytes", "graph_pool_bytes", "gpu_busy_ms", "kernels", "rel_error",
)  # fmt: skip


def context(folder: PageFolder) -> Mapping[str, Any]:
    subject = folder.subject
    labelled = subject.labelled
    tables = {name: table_of(labelled, name, subject.baseline_mode) for name in METRIC_NAMES}
    present = [name for name, table in tables.items() if name == "speedup" or _has_value(table)]
    several = len(subject.environments) > 1
    links = {
        (*row.labels.values(), row.mode): (f"cell.html{address(row.source, several)}", row.source.get("latency_ms"))
        for row in labelled
    }
    return {
        "metrics": [METRICS[name] for name in present],
        "sources": {name: folder.grid(name, grid_of(tables[name], links)) for name in present},
        "modes": tables["speedup"].modes,
        "statuses": statuses(labelled),
        "unknown": UNKNOWN,
        "heatmap": folder.section(FIGURE, subject.tidy),
    }


def grid_of(table: SpeedupTable, links: Mapping[tuple, tuple[str, float | None]]) -> Grid:
    """A row for each model, further swept parameters and bs; a column for each mode, linked to its cell. `links`:
    (labels, mode) -> link and latency, which the baseline shows in place of its speedup of 1."""
    metric = METRICS[table.metric]
    labels = [Column(name, numeric=name == "bs", filter=True) for name in table.label_names]
    baselines = {mode for row in table.rows for mode, entry in row.cells.items() if entry.baseline}
    in_ms = baselines if table.metric == "speedup" else set()
    titles = {name: f"{name} (ms)" if name in in_ms else name for name in table.modes}
    columns = [*labels, *(Column(titles[name], numeric=True, mode=name) for name in table.modes)]
    rows = []
    for row in table.rows:
        values = tuple(row.labels.values())
        entries = [
            _cell(entry, table.metric, *links.get((*values, mode), (None, None)), mode in in_ms)
            for mode, entry in row.cells.items()
        ]
        rows.append([*row.labels.values(), *entries])
    return Grid(f"{metric.title} of every mode at every model and batch size", columns, rows)


def _cell(entry: Entry, metric: str, link: str | None, latency_ms: float | None, in_ms: bool) -> dict[str, Any]:
    if entry.status is None:
        return cell(entry.text, tone="absent")
    trials = "" if entry.trials is None else f"{entry.trials} trial{'' if entry.trials == 1 else 's'}"
    if entry.status != "ok":
        return cell(entry.text, tone="status hatched", link=link, title=entry.reason or "no reason recorded")
    text, _, rest = entry.text.partition(" (")
    interval = rest.partition(")")[0]
    words = [f"95 % interval {interval}" if interval else "", trials]
    if entry.unclear:
        words = [f"unclear: measured {entry.value:.4g}, 95 % interval {entry.low:.4g}–{entry.high:.4g}", trials]
    elif entry.significant is False:
        words.append("not significant: the interval includes 1")
        text = f"{text} {NOT_SIGNIFICANT}"
    elif metric == "speedup" and entry.low is None and entry.value is not None and not entry.baseline:
        words.append(NO_INTERVAL)
    if entry.baseline:
        words.append("the baseline")
    return cell(
        f"★ {text}" if entry.best else text,
        latency_ms if in_ms else entry.value,
        sub=interval or None,
        tone=entry.tone,
        link=link,
        title=", ".join(filter(None, words)) or entry.reason,
    )


def _has_value(table: SpeedupTable) -> bool:
    return any(entry.value is not None for row in table.rows for entry in row.cells.values())


def statuses(labelled: list[SweptRow]) -> list[str]:
    return list(dict.fromkeys(str(row.source["status"]) for row in labelled))


PAGE = Page("speedups", "Speedups", 20, context, scripts=(*GRIDS, "speedups.js", *CHARTS))
