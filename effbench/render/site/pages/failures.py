"""What the overview says about failures: results that are not ok by reason, and planned cells
without a result."""

from __future__ import annotations

from urllib.parse import urlencode

from effbench.core.cell import SEVERITY
from effbench.core.labels import LabelledResult, LabelledResults, grouped
from effbench.core.table import Column, Shown, Table
from effbench.render.data import DeviceSweep
from effbench.render.site.pages.cell import link
from effbench.render.summary import worst_first
from effbench.render.tables import NO_REASON
from effbench.run.resume import resume_command
from effbench.store.secrets import masked_url
from effbench.store.sweeps import SweepInfo


def findings(rows: LabelledResults) -> list[list[LabelledResult]]:
    """Return the results that are not ok, grouped by status and reason: the worst status and the
    most frequent reason first."""
    groups = grouped(worst_first(rows), lambda row: (row.status, row.reason)).values()
    return sorted(groups, key=lambda alike: (SEVERITY.index(alike[0].status), -len(alike)))


def failures_table(device_sweep: DeviceSweep, folder: str) -> Table:
    """Return a row per status and reason, with the number of cells and the first one. `folder`: of
    the device sweep, as seen from the page."""

    def status(alike: LabelledResults) -> Shown:
        name = alike[0].status
        return Shown(name, name, "status", link=f"{folder}cell.html#{urlencode({'status': name})}")

    def example(alike: LabelledResults) -> Shown:
        row = alike[0]
        url = f"{folder}{link(device_sweep, row)}"
        return Shown(row.name, row.name, "name linked", link=url)

    columns = [
        Column("status", value=status),
        Column("cells", numeric=True, value=len),
        Column("reason", wide=True, value=lambda alike: alike[0].reason or NO_REASON),
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
