"""What the overview says about failures: results that are not ok by reason, ok results that are
worth a look, and planned cells without a result."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from effbench.labels import (
    LabelledRow,
    LabelledRows,
    grouped,
)
from effbench.report.data import DeviceSweep
from effbench.report.site.pages.cell import link
from effbench.report.summary import severity, worst_first
from effbench.report.tables import NO_REASON
from effbench.store.secrets import masked_url
from effbench.store.sweeps import SweepInfo
from effbench.sweeping.resume import resume_command
from effbench.table import Column, Shown, Table

#: Column with a count that makes an ok result worth a look -> its name.
ODD = {
    "unsteady_trials": "unsteady trials",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
    "cudagraph_skips": "CUDA graph skips",
}


@dataclass(frozen=True)
class Finding:
    """A status with its reason, or what is remarkable about ok results."""

    status: str
    reason: str


def findings(rows: LabelledRows) -> dict[Finding, list[LabelledRow]]:
    """Return finding -> its results; the worst status and most frequent reason first."""
    bad = grouped(worst_first(rows), lambda row: Finding(row.status, row.reason or NO_REASON))
    ranked = sorted(bad, key=lambda finding: (severity(finding.status), -len(bad[finding])))
    results = {finding: bad[finding] for finding in ranked}
    for column, title in ODD.items():
        odd = [row for row in rows if row.is_ok and row.result.value(column)]
        if odd:
            results[Finding("ok", title)] = odd
    return results


def failures_table(device_sweep: DeviceSweep, folder: str) -> Table:
    """Return a row per finding with its number of cells and the first one. `folder`: of the device
    sweep, as seen from the page."""
    columns = [
        Column("status"),
        Column("cells", numeric=True),
        Column("reason", wide=True),
        Column("example", "one of them"),
    ]
    rows = []
    for finding, cells in findings(device_sweep.labelled).items():
        example, status = cells[0], finding.status
        tone = "status"
        if example.is_ok:
            tone = ""
        all_of_status = f"{folder}cell.html#{urlencode({'status': status})}"
        rows.append(
            {
                "status": Shown(status, status, tone, link=all_of_status),
                "cells": len(cells),
                "reason": finding.reason,
                "example": Shown(
                    example.name,
                    example.name,
                    "name linked",
                    link=f"{folder}{link(device_sweep, example.result)}",
                ),
            }
        )
    return Table(columns, rows, caption="Results that are not ok, or worth a look")


def how_to_resume(sweep: SweepInfo, database: str) -> str:
    """Return the state of a sweep, and the command that resumes it unless it is running or
    imported."""
    if sweep.state == "running":
        return "The sweep is still running."
    if sweep.imported_at is not None:
        return f"The sweep is {sweep.state}."
    shards = (sweep.host.get("shards") or {}).items()
    unfinished = [name for name, state in shards if state != "completed"]
    commands = [
        resume_command(sweep.id, database, masked_url(database), shard=shard)
        for shard in unfinished or [None]
    ]
    return f"The sweep is {sweep.state}. To run these cells: {'; '.join(commands)}"
