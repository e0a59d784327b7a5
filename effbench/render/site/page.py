"""Pages: their declaration, their data files, and what their scripts need of tables and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.core.cell import Result
from effbench.core.metrics import METRICS
from effbench.core.table import Shown, Table
from effbench.render.data import DeviceSweep, ReportData
from effbench.render.marks import Estimate
from effbench.render.site.writer import Json, Writer

#: Scripts of pages with tables, and of pages with figures.
GRIDS = ("grid.js",)
CHARTS = ("plotly.min.js", "charts.js")
#: The values of a template.
Context = Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """A page with the template `templates/NAME.html.j2`. `of_device_sweep`: write the page into the
    folder of each device sweep, instead of once."""

    name: str
    title: str
    of_device_sweep: bool = True
    scripts: tuple[str, ...] = GRIDS


@dataclass
class PageFolder:
    """The subject of a page and the folder for its data. Paths are relative to the page. `held`:
    the device sweeps whose pages are complete (see `build.choice_of`); all if the page has no
    device sweep."""

    page: str
    report: ReportData
    writer: Writer
    device_sweep: DeviceSweep | None = None
    held: Sequence[Json] = ()

    @property
    def subject(self) -> DeviceSweep:
        """The device sweep of a page that is not of the whole site."""
        assert self.device_sweep is not None
        return self.device_sweep

    @property
    def folder(self) -> str:
        if self.device_sweep:
            return f"{self.device_sweep.slug}/"
        return ""

    def data(self, name: str, value: Any) -> str:
        """Write `value` for the page's scripts and return its path."""
        path = f"data/{self.page}-{name}.js"
        self.writer.data(self.folder + path, value)
        return path

    def grid(self, name: str, table: Table) -> str:
        return self.data(name, grid_data(table))


def grid_data(table: Table) -> Json:
    """Return a table in the form of `static/grid.js`; cells are texts, numbers or objects of
    `_cell`. Only numbers sort a numeric column."""
    columns = [vars(column) | {"title": column.heading} for column in table.columns]
    rows = []
    for row in table.rows:
        rows.append([_cell(row.get(column.key)) for column in table.columns])
    return {"caption": table.caption, "columns": columns, "rows": rows}


def _cell(value: Any) -> Any:
    """Return a plain value, or an object with the fields of a `Shown` that are not empty; its
    `value`, to sort by and to copy, only if it is not the text."""
    if not isinstance(value, Shown):
        return value
    fields = value._asdict()
    if value.value == value.text:
        del fields["value"]
    return without_empty(fields)


def estimates_of(result: Result, metrics: Iterable[str] = METRICS) -> dict[str, Json]:
    """Return the metrics that a result has, by name, each with its `value`, its `text` and, if it
    has them, the `interval` (a text), its bounds `low` and `high`, and the `mark` (why it is
    marked)."""
    estimates = {}
    for name in metrics:
        estimate = Estimate.of(result, name)
        if estimate.value is not None:
            facts = {
                "value": estimate.value,
                "text": estimate.text,
                "interval": estimate.interval,
                "low": estimate.low,
                "high": estimate.high,
                "mark": estimate.disturbance,
            }
            estimates[name] = without_empty(facts)
    return estimates


def without_empty(facts: Json) -> Json:
    """Return the facts that are neither None nor an empty text."""
    return {name: fact for name, fact in facts.items() if fact is not None and fact != ""}
