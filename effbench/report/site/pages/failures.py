"""Failures: everything that is not ok, the worst first; cells still to run; and what is ok but worth a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import Status
from effbench.labels import LabelledRow, label_rows
from effbench.report.colors import glyph_of
from effbench.report.data import DeviceSweep
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.report.site.pages.cell import address
from effbench.report.summary import count_statuses, severity, worst_first
from effbench.report.tables import NO_REASON
from effbench.table import Column, Shown, Table

#: Groups, and cells of one, that are listed above the table, which holds all.
MOST_GROUPS = 25
MOST_CELLS = 24
#: Columns of counts that are no failure but worth a look -> what to call one of them.
ODD = {
    "unsteady_trials": "unsteady trials",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
    "cudagraph_skips": "CUDA graph skips",
}


@dataclass
class Group:
    """Cells that failed for the same reason: `cells` as (link, name)."""

    status: str
    reason: str
    cells: list[tuple[str, str]] = field(default_factory=list)


def context(folder: PageFolder) -> Mapping[str, Any]:
    own = folder.device_sweep
    measured, waiting = named(own)
    bad = worst_first(measured)
    groups = groups_of(own, bad)
    odd = odd_rows(measured)
    return {
        "results": len(measured),
        "bad": len(bad),
        "statuses": count_statuses(bad),
        "groups": groups[:MOST_GROUPS],
        "more_groups": len(groups) - MOST_GROUPS,
        "most_cells": MOST_CELLS,
        "grid": folder.grid("not-ok", bad_table(own, bad)) if bad else None,
        "resume": resume_command(own.sweep, folder.report.db_override),
        "waiting": len(waiting),
        "waiting_grid": folder.grid("waiting", waiting_table(waiting)) if waiting else None,
        "odd": len({id(row) for row, *_ in odd}),
        "odd_grid": folder.grid("odd", odd_table(own, odd)) if odd else None,
    }


def resume_command(sweep: Mapping[str, Any], db_override: str) -> str | None:
    """Return the command that resumes this sweep, None while it runs and for an imported one: that runs elsewhere."""
    if sweep["state"] == "running" or sweep.get("imported_at"):
        return None
    return f"effbench -m resume={sweep['id']}{db_override}"


def named(own: DeviceSweep) -> tuple[list[LabelledRow], list[LabelledRow]]:
    """Return the results and the planned cells without one, labelled so that names differ among all of both."""
    if not own.unmeasured:
        return own.labelled, []
    rows = label_rows([*(row.source for row in own.labelled), *own.unmeasured])
    return [row for row in rows if "status" in row.source], [row for row in rows if "status" not in row.source]


def groups_of(own: DeviceSweep, rows: Sequence[LabelledRow]) -> list[Group]:
    """Group by status and equal reason: the worst status first, within one the most frequent reason."""
    found: dict[tuple[str, str], Group] = {}
    for row in rows:
        status, reason = str(row.source["status"]), row.source.get("reason") or NO_REASON
        group = found.setdefault((status, reason), Group(status, reason))
        group.cells.append((f"cell.html{address(own, row.source)}", row.name))
    return sorted(found.values(), key=lambda group: (severity(group.status), -len(group.cells)))


#: Columns of all three tables that name a cell.
CELL = [Column("cell"), Column("model", filter=True), Column("mode", filter=True)]
BS = Column("bs", numeric=True, filter=True)
TRIALS = Column("trials", numeric=True)


def cell_of(row: LabelledRow, own: DeviceSweep | None = None) -> dict[str, Any]:
    """Values of CELL, bs and trials; the name is a link if the cell has a result (`own`: in which device sweep)."""
    link = f"cell.html{address(own, row.source)}" if own else ""
    return {
        "cell": Shown(row.name, row.name, "name" if own else "", link=link),
        "model": row.case,
        "bs": row.labels["bs"],
        "mode": Shown(row.mode, row.mode, glyph=glyph_of(row.base_mode)),
        "trials": row.source.get("trials"),
    }


def bad_table(own: DeviceSweep, rows: Sequence[LabelledRow]) -> Table:
    cell, model, mode = CELL
    columns = [Column("status", filter=True), cell, model, BS, mode, TRIALS, Column("reason", wide=True)]
    found = []
    for row in rows:
        status = str(row.source["status"])
        reason = row.source.get("reason") or NO_REASON
        found.append(cell_of(row, own) | {"status": Shown(severity(status), status, "status"), "reason": reason})
    return Table(columns, found, caption="Results that are not ok")


def waiting_table(rows: Sequence[LabelledRow]) -> Table:
    cell, model, mode = CELL
    return Table([cell, model, BS, mode], [cell_of(row) for row in rows], caption="Planned cells without a trial")


def odd_rows(rows: Sequence[LabelledRow]) -> list[tuple[LabelledRow, str, int]]:
    """Return results that are ok and have a count worth a look: the row, which count, and how many."""
    ok = [row for row in rows if row.source["status"] == Status.OK]
    return [
        (row, title, int(row.source[column])) for column, title in ODD.items() for row in ok if row.source.get(column)
    ]


def odd_table(own: DeviceSweep, rows: Sequence[tuple[LabelledRow, str, int]]) -> Table:
    columns = [Column("what", filter=True), Column("count", numeric=True), *CELL, TRIALS]
    found = [cell_of(row, own) | {"what": title, "count": number} for row, title, number in rows]
    return Table(columns, found, caption="Results that are ok but worth a look")


PAGE = Page("failures", "Failures", 80, context, scripts=(*GRIDS, "linked.js"))
