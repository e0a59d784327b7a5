"""Overview: the conclusions of each machine's newest sweep, its failures and its changes."""

from __future__ import annotations

import dataclasses

from effbench.analysis.coldstart import cold_starts_of
from effbench.core.table import Column, Shown, Table
from effbench.render import comparison, reasons, summary
from effbench.render.coldstart import sentences as cold_sentences
from effbench.render.data import MOST_CHANGES, DeviceSweep
from effbench.render.explain import PairReport
from effbench.render.site.explained import best_reports, point_of
from effbench.render.site.page import Context, Page, PageFolder
from effbench.render.site.pages import failures
from effbench.render.site.pages.cell import link, name_in_url
from effbench.render.site.pages.speedups import linked
from effbench.render.tables import SpeedupRow

#: Most rows of the heatmap; the page of speedups has the others.
MOST_ROWS = 60


def context(folder: PageFolder) -> Context:
    report = folder.report
    conclusions = list(map(conclusion, report.device_sweeps))
    return {"conclusions": conclusions, "omitted": report.omitted}


def conclusion(device_sweep: DeviceSweep) -> Context:
    """Return what the overview says about one device sweep."""
    rows, speedups = device_sweep.rows, device_sweep.speedups
    folder = f"{device_sweep.slug}/"
    modes = summary.by_mode(rows)
    cold = cold_sentences(cold_starts_of(rows))
    changes = device_sweep.changes.significant[:MOST_CHANGES]
    return {
        "device_sweep": device_sweep,
        "headline": " ".join(cold) or summary.headline(speedups, modes),
        "heatmap": heatmap(device_sweep),
        # the number of rows that the heatmap does not have
        "more_rows": len(speedups.rows) - MOST_ROWS,
        "modes_table": summary.modes_table(modes),
        "counts": summary.count_statuses(rows),
        "failures": failures.failures_table(device_sweep, folder),
        "changes_table": comparison.table_of(changes, f"{folder}cell.html"),
    }


def heatmap(device_sweep: DeviceSweep) -> Table:
    """Return the first rows: speedups of all modes, and why the best mode wins."""
    speedups = device_sweep.speedups
    first = dataclasses.replace(speedups, rows=speedups.rows[:MOST_ROWS])
    wide = linked(first, device_sweep, f"{device_sweep.slug}/", brief=True)
    reports = best_reports(device_sweep, len(set(map(point_of, first.rows))))
    rows = []
    for row, record in zip(first.rows, wide.rows, strict=True):
        why: Shown | str = ""
        if row.metric == "speedup":  # not again in the row of the period
            why = why_of(row, reports.get(point_of(row)), device_sweep)
        rows.append({**record, "why": why})
    columns = [*wide.columns, Column("why", optional=True, wide=True)]
    return Table(columns, rows, caption="Speedups")


def why_of(row: SpeedupRow, report: PairReport | None, device_sweep: DeviceSweep) -> Shown | str:
    """Return why the best mode wins: the cause that traces tell, linked to what explains it, or
    what counters tell."""
    if report is None or report.explanation is None or report.explanation.cause is None:
        return reasons.reason(row)
    first, second = report.pair.first, report.pair.second
    cause = report.signed(report.explanation.cause)
    return Shown(
        cause,
        cause,
        details=f"{second.mode_label} against {first.mode_label}",
        href=f"{device_sweep.slug}/{link(device_sweep, second)}&with={name_in_url(first)}",
        hint=report.signed(report.explanation.sentence),
    )


PAGE = Page("index", "Overview", of_device_sweep=False, scripts=())
