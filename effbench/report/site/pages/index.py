"""Overview: the conclusions of each machine's newest sweep, and its changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from effbench.comparison.verdicts import counts
from effbench.report import comparison, reasons, summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.marks import note
from effbench.report.site.page import Page, PageFolder
from effbench.report.site.pages.speedups import SCALE, is_beyond, shown
from effbench.report.tables import IS_UNCLEAR, SpeedupTable
from effbench.table import Column, Shown, Table

#: Most rows of the heatmap; the page of speedups has the others.
MOST_ROWS = 60


def context(folder: PageFolder) -> Mapping[str, Any]:
    answers = [answer(device_sweep) for device_sweep in folder.report.device_sweeps]
    return {"answers": answers, "scale": SCALE, "omitted": folder.report.omitted()}


def answer(device_sweep: DeviceSweep) -> dict[str, Any]:
    """Return the overview's values of one device sweep."""
    rows = device_sweep.labelled
    table = device_sweep.speedups
    modes = summary.by_mode(rows)
    headline = summary.headline(table, modes)
    notes = [text for text in table.notes() if text.lower() not in headline.lower()]
    if table.is_unclear:
        notes.insert(0, IS_UNCLEAR)
    return {
        "device_sweep": device_sweep,
        "counts": summary.count_statuses(rows),
        "results": len(rows),
        "headline": headline,
        "notes": notes,
        "marks": note(rows),
        "table": table,
        "has_speedup": table.has_figures,
        "on_gpu": any(row.source.get("device") != "cpu" for row in rows),
        "heatmap": heatmap(table, device_sweep) if len(table.modes) > 1 else None,
        "more_rows": len(table.rows) - MOST_ROWS,
        "profiled": any(row.source.get("gpu_busy_ms") for row in rows),
        "modes": summary.modes_table(modes),
        "beyond": is_beyond(table),
        "has_memory": any(mode.memory[0] is not None for mode in modes),
        "has_compiled": any(mode.compiled[0] is not None for mode in modes),
        "mean_notes": summary.notes_on_means(modes),
        "waiting": len(device_sweep.unmeasured),
        "environment": summary.environment_line(device_sweep),
        "changes": changed(device_sweep.changes, f"{device_sweep.slug}/cell.html"),
    }


def heatmap(table: SpeedupTable, device_sweep: DeviceSweep) -> Table:
    """Return the first rows: coloured speedups of all modes, and why the best mode wins."""
    first = dataclasses.replace(table, rows=table.rows[:MOST_ROWS])
    wide = first.wide(
        lambda entry, row: shown(entry, row.metric, device_sweep, f"{device_sweep.slug}/", True),
        False,
    )
    whys = [(row.labels, reasons.reason(row)) for row in first.rows]
    texts = [
        "" if why == before else why[1] for why, before in zip(whys, [None, *whys], strict=False)
    ]
    rows = [
        values | {"why": Shown(None, text)} for values, text in zip(wide.rows, texts, strict=True)
    ]
    return Table([*wide.columns, Column("why", optional=True, wide=True)], rows, caption="Speedups")


def changed(changes: Changes, cell_page: str) -> dict[str, Any]:
    """Return the values of templates/changed.html.j2: changes since an earlier sweep."""
    values: dict[str, Any] = {
        "previous": changes.previous,
        "why": changes.why,
        "command": changes.command,
    }
    compared = changes.compared
    if compared is None:
        return values | {"differences": []}
    sure = summary.sure_changes(changes)
    return values | {
        "counts": counts(compared.changes),
        "faults": ["broken", "slower", *["missing"] * changes.is_baseline],
        "rows": comparison.table_of(sure[: summary.MOST_CHANGES], cell_page) if sure else None,
        "more": len(sure) - summary.MOST_CHANGES,
        "lines": comparison.summary_lines(compared),
        "differences": list(compared.differences),
    }


PAGE = Page("index", "Overview", context, of_device_sweep=False, scripts=())
