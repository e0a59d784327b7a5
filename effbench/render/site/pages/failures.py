"""What the overview says about failures: results that are not ok by reason, and planned cells
without a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from urllib.parse import urlencode

from effbench.core.cell import SEVERITY, Status
from effbench.core.labels import LabelledRow, LabelledRows, grouped
from effbench.core.table import Column, Shown, Table
from effbench.render.data import DeviceSweep
from effbench.render.site.pages.cell import link
from effbench.render.summary import worst_first
from effbench.render.tables import NO_REASON
from effbench.run.resume import resume_command
from effbench.store.secrets import masked_url
from effbench.store.sweeps import SweepInfo


@dataclass(frozen=True)
class Finding:
    """Results with one status and reason."""

    status: Status
    reason: str
    rows: Sequence[LabelledRow]


def findings(rows: LabelledRows) -> list[Finding]:
    """Return the worst status and most frequent reason first."""
    bad = grouped(worst_first(rows), lambda row: (row.status, row.reason or NO_REASON))
    found = [Finding(*key, alike) for key, alike in bad.items()]
    return sorted(found, key=lambda one: (SEVERITY.index(one.status), -len(one.rows)))


def failures_table(device_sweep: DeviceSweep, folder: str) -> Table:
    """Return a row per finding with its number of cells and the first one. `folder`: of the device
    sweep, as seen from the page."""

    def status(finding: Finding) -> Shown:
        url = f"{folder}cell.html#{urlencode({'status': finding.status})}"
        return Shown(finding.status, finding.status, "status", link=url)

    def example(finding: Finding) -> Shown:
        row = finding.rows[0]
        url = f"{folder}{link(device_sweep, row.result)}"
        return Shown(row.name, row.name, "name linked", link=url)

    columns = [
        Column("status", value=status),
        Column("cells", numeric=True, value=lambda finding: len(finding.rows)),
        Column("reason", wide=True, value=attrgetter("reason")),
        Column("example", "one of them", value=example),
    ]
    rows = findings(device_sweep.labelled)
    return Table(columns, rows, caption="Results that are not ok")


def how_to_resume(sweep: SweepInfo, database: str) -> str:
    """Return the state of a sweep, and the command that resumes it unless it was imported."""
    text = f"The sweep is {sweep.state}."
    if sweep.imported_at is not None:
        return text
    return f"{text} To run these cells: {resume_command(sweep.id, database, masked_url(database))}"
