"""Failures: results that are not ok, cells without a result, and ok results that are worth a
look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effbench.cell import Status
from effbench.labels import LabelledRow, grouped, label_rows
from effbench.report.data import DeviceSweep
from effbench.report.site.page import Page, PageFolder
from effbench.report.site.pages.cell import CELL, TRIALS, cell_of
from effbench.report.summary import count_statuses, severity, worst_first
from effbench.report.tables import NO_REASON
from effbench.store.secrets import masked_url
from effbench.sweeping.resume import resume_command
from effbench.table import Column, Shown, Table

#: Column with a count that makes an ok result worth a look -> its name.
ODD = {
    "unsteady_trials": "unsteady trials",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
    "cudagraph_skips": "CUDA graph skips",
}
ODD_CAPTION = "Ok results with unsteady warm-ups, graph breaks, recompiles or skipped CUDA graphs."


def context(folder: PageFolder) -> Mapping[str, Any]:
    device_sweep = folder.device_sweep
    measured, waiting = named(device_sweep)
    bad = worst_first(measured)
    sections = []
    if bad:
        sections += [
            folder.table("not-ok", bad_table(device_sweep, bad), linked=True),
            folder.table("reasons", reasons_table(device_sweep, bad)),
        ]
    if waiting:
        cells = Table(CELL, list(map(cell_of, waiting)), caption="Planned cells without a result")
        sections.append(
            folder.table(
                "waiting", cells, how_to_resume(device_sweep.sweep, folder.report.database)
            )
        )
    odd = odd_table(device_sweep, measured)
    if odd.rows:
        sections.append(folder.table("odd", odd, ODD_CAPTION))
    return {"lead": lead(measured, bad), "sections": sections}


def lead(rows: Sequence[LabelledRow], bad: Sequence[LabelledRow]) -> str:
    if not rows:
        return "There is no result yet."
    if not bad:
        return "The only result is ok." if len(rows) == 1 else f"All {len(rows)} results are ok."
    counts = ", ".join(f"{number} {status}" for status, number in count_statuses(bad).items())
    return f"{len(bad)} of {len(rows)} results {'is' if len(bad) == 1 else 'are'} not ok: {counts}."


def named(device_sweep: DeviceSweep) -> tuple[list[LabelledRow], list[LabelledRow]]:
    """Return the results and the planned cells without a result, labelled together so that names
    are unique."""
    if not device_sweep.unmeasured:
        return device_sweep.labelled, []
    rows = label_rows([*(row.source for row in device_sweep.labelled), *device_sweep.unmeasured])
    return [row for row in rows if "status" in row.source], [
        row for row in rows if "status" not in row.source
    ]


def how_to_resume(sweep: Mapping[str, Any], database: str) -> str:
    """Return the state of a sweep, and the command that resumes it unless it is running or
    imported."""
    if sweep["state"] == "running" or sweep.get("imported_at"):
        return f"The sweep is {'still running' if sweep['state'] == 'running' else sweep['state']}."
    unfinished = [
        name for name, state in (sweep["host"].get("shards") or {}).items() if state != "completed"
    ]
    commands = [
        resume_command(sweep["id"], database, masked_url(database), shard=it)
        for it in unfinished or [None]
    ]
    return f"The sweep is {sweep['state']}. To run these cells: {'; '.join(commands)}"


def outcome(row: LabelledRow) -> tuple[Shown, str]:
    status = str(row.source["status"])
    return Shown(severity(status), status, "status"), row.source.get("reason") or NO_REASON


def bad_table(device_sweep: DeviceSweep, rows: Sequence[LabelledRow]) -> Table:
    columns = [Column("status", filter=True), *CELL, TRIALS, Column("reason", wide=True)]
    cells = [
        cell_of(row, device_sweep) | dict(zip(("status", "reason"), outcome(row), strict=True))
        for row in rows
    ]
    return Table(columns, cells, caption="Results that are not ok")


def reasons_table(device_sweep: DeviceSweep, rows: Sequence[LabelledRow]) -> Table:
    """Return a row per status and reason with its number of cells; the worst status and most
    frequent reason first."""
    ordered = sorted(
        grouped(rows, outcome).items(), key=lambda group: (group[0][0].value, -len(group[1]))
    )
    columns = [
        Column("status", filter=True),
        Column("cells", numeric=True),
        Column("reason", wide=True),
        Column("one of them", "example"),
    ]
    rows_shown = [
        [status, len(cells), reason, cell_of(cells[0], device_sweep)["cell"]]
        for (status, reason), cells in ordered
    ]
    return Table.of(columns, rows_shown, "By reason")


def odd_table(device_sweep: DeviceSweep, rows: Sequence[LabelledRow]) -> Table:
    """Return the ok results with a count that is worth a look."""
    columns = [Column("what", "finding", filter=True), Column("count", numeric=True), *CELL, TRIALS]
    rows_shown = [
        cell_of(row, device_sweep) | {"what": title, "count": int(row.source[column])}
        for column, title in ODD.items()
        for row in rows
        if row.source["status"] == Status.OK and row.source.get(column)
    ]
    return Table(columns, rows_shown, caption="Ok, but worth a look")


PAGE = Page("failures", "Failures", context)
