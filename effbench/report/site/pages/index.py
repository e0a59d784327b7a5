"""Overview: the conclusions of each machine's newest sweep, its failures and its changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from effbench.comparison.compare import Compared
from effbench.comparison.verdicts import Change, Verdict, counts
from effbench.report import comparison, reasons, summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.site.page import Context, Page, PageFolder
from effbench.report.site.pages import failures
from effbench.report.site.pages.speedups import SCALE, shown
from effbench.report.summary import ModeSummary
from effbench.report.tables import Entry, Row, SpeedupTable
from effbench.table import Column, Shown, Table

#: Most rows of the heatmap; the page of speedups has the others.
MOST_ROWS = 60


def context(folder: PageFolder) -> Context:
    report = folder.report
    answers = [Answer(device_sweep, report.database) for device_sweep in report.device_sweeps]
    return {"answers": answers, "scale": SCALE, "omitted": report.omitted()}


@dataclass
class Answer:
    """What the overview says about one device sweep."""

    device_sweep: DeviceSweep
    database: str

    @property
    def table(self) -> SpeedupTable:
        return self.device_sweep.speedups

    @cached_property
    def modes(self) -> list[ModeSummary]:
        return summary.by_mode(self.device_sweep.labelled)

    @cached_property
    def headline(self) -> str:
        return summary.headline(self.table, self.modes)

    @property
    def legend(self) -> list[str]:
        return self.table.legend(above=self.headline)

    @property
    def mean_notes(self) -> list[str]:
        return summary.notes_on_means(self.modes)

    @property
    def counts(self) -> dict[str, int]:
        return summary.count_statuses(self.device_sweep.labelled)

    @property
    def more_rows(self) -> int:
        return len(self.table.rows) - MOST_ROWS

    @property
    def heatmap(self) -> Table | None:
        if len(self.table.modes) > 1:
            return heatmap(self.device_sweep)
        return None

    @property
    def modes_table(self) -> Table:
        return summary.modes_table(self.modes)

    @property
    def failures(self) -> Table:
        return failures.failures_table(self.device_sweep, f"{self.device_sweep.slug}/")

    @property
    def how_to_resume(self) -> str:
        return failures.how_to_resume(self.device_sweep.sweep, self.database)

    @property
    def changes(self) -> ShownChanges | None:
        return ShownChanges.of(self.device_sweep.changes, f"{self.device_sweep.slug}/cell.html")


def heatmap(device_sweep: DeviceSweep) -> Table:
    """Return the first rows: coloured speedups of all modes, and why the best mode wins."""
    folder = f"{device_sweep.slug}/"

    def cell(entry: Entry, row: Row) -> Shown:
        return shown(entry, row.metric, device_sweep, folder, brief=True)

    speedups = device_sweep.speedups
    first = dataclasses.replace(speedups, rows=speedups.rows[:MOST_ROWS])
    wide = first.wide(cell, best=False)
    rows, before = [], None
    for row, values in zip(first.rows, wide.rows, strict=True):
        why = row.labels, reasons.reason(row)
        # not again in the row of the period
        text = "" if why == before else why[1]
        rows.append({**values, "why": Shown(None, text)})
        before = why
    columns = [*wide.columns, Column("why", optional=True, wide=True)]
    return Table(columns, rows, caption="Speedups")


@dataclass
class ShownChanges:
    """A comparison with an earlier sweep, for templates/changed.html.j2. `sure`: the significant
    changes; `cell_page`: page that cells link to."""

    compared: Compared
    sure: Sequence[Change]
    cell_page: str

    @classmethod
    def of(cls, changes: Changes, cell_page: str) -> ShownChanges | None:
        if changes.compared is None:
            return None
        return cls(changes.compared, summary.sure_changes(changes), cell_page)

    @property
    def counts(self) -> dict[Verdict, int]:
        return counts(self.compared.changes)

    @property
    def rows(self) -> Table:
        return comparison.table_of(self.sure[: summary.MOST_CHANGES], self.cell_page)

    @property
    def more(self) -> int:
        return len(self.sure) - summary.MOST_CHANGES

    @property
    def lines(self) -> list[str]:
        return comparison.summary_lines(self.compared)


PAGE = Page("index", "Overview", context, of_device_sweep=False, scripts=())
