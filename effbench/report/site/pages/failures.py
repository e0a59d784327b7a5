"""Failures: everything that is not ok, the worst first; cells still to run; and what is ok but worth a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.analysis.swept import plain_rows, swept_rows
from effbench.cell import SEVERITY, Status
from effbench.report.colors import style_of
from effbench.report.site.cells import address
from effbench.report.site.grid import Column, Grid, cell
from effbench.report.site.material import Subject
from effbench.report.site.pages.base import Page, PageFolder

#: Groups, and cells of one, that are listed above the table, which holds all.
MOST_GROUPS = 25
MOST_CELLS = 24
NO_REASON = "no reason recorded"
#: Columns of counts that are no failure but worth a look -> what to call one of them.
ODD = {
    "unsteady_trials": "unsteady trials",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
    "cudagraph_skips": "CUDA graph skips",
}
_RANK = {str(status): place for place, status in enumerate(SEVERITY)}


@dataclass
class Group:
    """Cells that failed for the same reason: `cells` as (key, name)."""

    status: str
    reason: str
    cells: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Named:
    """A row with what it is called among all of the sweep."""

    row: Mapping[str, Any]
    name: str
    case: str
    mode: str
    link: str = ""


def context(folder: PageFolder) -> Mapping[str, Any]:
    subject = folder.subject
    measured, waiting = named(subject)
    bad = worst_first(measured)
    groups = groups_of(bad)
    odd = odd_rows(measured)
    return {
        "results": len(measured),
        "bad": len(bad),
        "statuses": counts(bad),
        "groups": groups[:MOST_GROUPS],
        "more_groups": len(groups) - MOST_GROUPS,
        "most_cells": MOST_CELLS,
        "grid": folder.grid("not-ok", bad_grid(bad)) if bad else None,
        "resume": resume_command(subject.sweep, folder.material.db_override),
        "waiting": len(waiting),
        "waiting_grid": folder.grid("waiting", waiting_grid(waiting)) if waiting else None,
        "odd": len({id(row) for row, *_ in odd}),
        "odd_grid": folder.grid("odd", odd_grid(odd)) if odd else None,
    }


def resume_command(sweep: Mapping[str, Any], db_override: str) -> str | None:
    """Return the command that resumes this sweep, None while it runs and for an imported one: that runs elsewhere."""
    if sweep["state"] == "running" or sweep.get("imported_at"):
        return None
    return f"effbench -m resume={sweep['id']}{db_override}"


def named(subject: Subject) -> tuple[list[Named], list[Named]]:
    """The results and the cells without one; each with a name that tells it from all others of both."""
    waiting = plain_rows(subject.unmeasured)
    # what only a cell without a result has is a name of its own
    swept = swept_rows([*(row.source for row in subject.labelled), *waiting]) if waiting else subject.labelled
    several = len(subject.environments) > 1
    found = {
        id(row.source): Named(row.source, row.name, row.case, row.mode, f"cell.html{address(row.source, several)}")
        for row in swept
    }
    return [found[id(row.source)] for row in subject.labelled], [found[id(row)] for row in waiting]


def worst_first(rows: Sequence[Named]) -> list[Named]:
    bad = [one for one in rows if one.row["status"] != Status.OK]
    return sorted(bad, key=lambda one: _RANK.get(str(one.row["status"]), -1))


def counts(rows: Sequence[Named]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in rows:
        status = str(one.row["status"])
        found[status] = found.get(status, 0) + 1
    return found


def groups_of(rows: Sequence[Named]) -> list[Group]:
    """By status and equal reason: the worst status first, of one the most frequent reason."""
    found: dict[tuple[str, str], Group] = {}
    for one in rows:
        status, reason = str(one.row["status"]), one.row.get("reason") or NO_REASON
        group = found.setdefault((status, reason), Group(status, reason))
        group.cells.append((one.link, one.name))
    return sorted(found.values(), key=lambda group: (_RANK.get(group.status, -1), -len(group.cells)))


def mode_cell(one: Named) -> dict[str, Any]:
    look = style_of(str(one.row["mode"]))
    return cell(one.mode, glyph=(look.color, look.glyph))


def bad_grid(rows: Sequence[Named]) -> Grid:
    columns = [
        Column("status", filter=True), Column("cell"), Column("model", filter=True),
        Column("bs", numeric=True, filter=True), Column("mode", filter=True), Column("trials", numeric=True),
        Column("reason", wide=True),
    ]  # fmt: skip
    found = [
        [cell(str(one.row["status"]), _RANK.get(str(one.row["status"]), -1), tone="status"),
         cell(one.name, link=one.link, tone="name"), one.case, one.row["bs"], mode_cell(one),
         one.row["trials"],
         one.row.get("reason") or NO_REASON]
        for one in rows
    ]  # fmt: skip
    return Grid("Results that are not ok", columns, found)


def waiting_grid(rows: Sequence[Named]) -> Grid:
    columns = [Column("cell"), Column("model", filter=True), Column("bs", numeric=True, filter=True),
               Column("mode", filter=True)]  # fmt: skip
    return Grid(
        "Planned cells without a trial", columns,
        [[one.name, one.case, one.row["bs"], mode_cell(one)] for one in rows],
    )  # fmt: skip


def odd_rows(rows: Sequence[Named]) -> list[tuple[Named, str, int]]:
    """What is ok, and has a count that asks for a look: the row, which count, and how many."""
    found = []
    for column, title in ODD.items():
        for one in rows:
            number = one.row.get(column)
            if one.row["status"] == Status.OK and number:
                found.append((one, title, int(number)))
    return found


def odd_grid(rows: Sequence[tuple[Named, str, int]]) -> Grid:
    columns = [Column("what", filter=True), Column("count", numeric=True), Column("cell"), Column("model", filter=True),
               Column("mode", filter=True), Column("trials", numeric=True)]  # fmt: skip
    return Grid(
        "Results that are ok but worth a look", columns,
        [[title, number, cell(one.name, link=one.link, tone="name"), one.case, mode_cell(one),
          one.row["trials"]]
         for one, title, number in rows],
    )  # fmt: skip


PAGE = Page("failures", "Failures", 80, context, scripts=("datatables.js", "grid.js", "linked.js"))
