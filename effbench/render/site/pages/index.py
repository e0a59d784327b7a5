"""Overview: the conclusions of each machine's newest sweep, its failures and its changes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial

from effbench.core.table import Column, Table
from effbench.render import comparison, reasons, summary
from effbench.render.data import MOST_CHANGES, Changes, DeviceSweep
from effbench.render.site.page import Context, Page, PageFolder
from effbench.render.site.pages import failures
from effbench.render.site.pages.speedups import SCALE, shown
from effbench.render.tables import SpeedupRow

#: Most rows of the heatmap; the page of speedups has the others.
MOST_ROWS = 60


def context(folder: PageFolder) -> Context:
    report = folder.report
    conclusions = []
    for device_sweep in report.device_sweeps:
        conclusions.append(conclusion(device_sweep, report.database))
    return {"conclusions": conclusions, "scale": SCALE, "omitted": report.omitted}


@dataclass(frozen=True)
class Conclusion:
    """What the overview says about one device sweep. `more_rows`: number of rows that the heatmap
    does not have. `counts`: status -> number of results."""

    device_sweep: DeviceSweep
    headline: str
    heatmap: Table
    more_rows: int
    modes_table: Table
    counts: dict[str, int]
    failures: Table
    how_to_resume: str
    changes_table: Table


def conclusion(device_sweep: DeviceSweep, database: str) -> Conclusion:
    rows, speedups = device_sweep.labelled, device_sweep.speedups
    folder = f"{device_sweep.slug}/"
    modes = summary.by_mode(rows)
    return Conclusion(
        device_sweep,
        headline=summary.headline(speedups, modes),
        heatmap=heatmap(device_sweep),
        more_rows=len(speedups.rows) - MOST_ROWS,
        modes_table=summary.modes_table(modes),
        counts=summary.count_statuses(rows),
        failures=failures.failures_table(device_sweep, folder),
        how_to_resume=failures.how_to_resume(device_sweep.sweep, database),
        changes_table=changes_table(device_sweep.changes, f"{folder}cell.html"),
    )


def heatmap(device_sweep: DeviceSweep) -> Table:
    """Return the first rows: coloured speedups of all modes, and why the best mode wins."""
    speedups = device_sweep.speedups
    first = dataclasses.replace(speedups, rows=speedups.rows[:MOST_ROWS])
    cell = partial(shown, device_sweep=device_sweep, folder=f"{device_sweep.slug}/", brief=True)
    wide = first.wide(cell, best=False)
    why = Column("why", optional=True, wide=True, value=_reason)
    return dataclasses.replace(wide, columns=[*wide.columns, why], caption="Speedups")


def _reason(row: SpeedupRow) -> str:
    # not again in the row of the period
    if row.metric == "speedup":
        return reasons.reason(row)
    return ""


def changes_table(changes: Changes, cell_page: str) -> Table:
    """Return the first significant changes. `cell_page`: page that cells link to."""
    return comparison.table_of(changes.significant[:MOST_CHANGES], cell_page)


PAGE = Page("index", "Overview", context, of_device_sweep=False, scripts=())
