"""The overview: for each machine's newest sweep the answer first, then what failed and what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.metrics import METRICS
from effbench.report import comparison, summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.site.page import Page, PageFolder
from effbench.report.site.pages.cell import address
from effbench.report.tables import Row, speedup_table
from effbench.stats.intervals import CLEAR

#: Rows of the table of the fastest modes that a reader takes in; the rest is on the speedups page.
MOST_CASES = 40
MOST_FAILURES = 8


def context(folder: PageFolder) -> Mapping[str, Any]:
    answers = [answer(device_sweep) for device_sweep in folder.report.device_sweeps]
    return {"answers": answers, "most_cases": MOST_CASES, "clear": CLEAR}


def answer(device_sweep: DeviceSweep) -> dict[str, Any]:
    """Return what the overview shows of one device sweep."""
    rows = device_sweep.labelled
    table = speedup_table(rows, "speedup", device_sweep.baseline_mode)
    modes = summary.by_mode(rows)
    fastest: dict[str, dict[int, Row]] = {}
    for row in table.rows:
        fastest.setdefault(row.case, {})[row.labels["bs"]] = row
    failures = summary.worst_first(rows)
    return {
        "device_sweep": device_sweep,
        "counts": summary.count_statuses(rows),
        "results": len(rows),
        "headline": summary.headline(table, modes),
        "modes": summary.modes_table(modes),
        "fastest": dict(list(fastest.items())[:MOST_CASES]),
        "cases": len(fastest),
        "sizes": sorted({row.labels["bs"] for row in table.rows}),
        "waiting": len(device_sweep.unmeasured),
        "failures": [(row, address(device_sweep, row.source)) for row in failures[:MOST_FAILURES]],
        "more_failures": len(failures) - MOST_FAILURES,
        "environment": summary.environment_line(device_sweep),
        "changes": changed(device_sweep.changes, f"{device_sweep.slug}/cell.html"),
    }


def changed(changes: Changes, cell_page: str) -> dict[str, Any]:
    """Return the values of templates/changed.html.j2: what changed since the sweep before."""
    found: dict[str, Any] = {"previous": changes.previous, "why": changes.why, "command": changes.command}
    compared = changes.compared
    if compared is None:
        return found | {"differences": []}
    sure = summary.sure_changes(changes)
    return found | {
        "counts": {str(verdict): number for verdict, number in compared.counts.items()},
        "rows": comparison.table_of(sure[: summary.MOST_CHANGES], cell_page) if sure else None,
        "more": len(sure) - summary.MOST_CHANGES,
        "lines": comparison.summary_lines(compared),
        "differences": list(compared.differences),
        "only": [METRICS[name].title for name in changes.only],
    }


PAGE = Page("index", "Overview", 10, context, of_device_sweep=False, scripts=())
