"""What a page is, how it keeps data next to it, and its tables as `static/grid.js` shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from effbench.report.columns import heading, is_missing, title_and_unit, value_text
from effbench.report.data import DeviceSweep, ReportData
from effbench.report.figures.base import Figure
from effbench.report.site.writer import Writer
from effbench.table import Column, Shown, Table

#: Scripts of pages with tables, and of those with figures.
GRIDS = ("grid.js",)
CHARTS = ("plotly.min.js", "charts.js")
#: Models whose small figures a page shows at a time: their figures are some 40 KiB each.
MODELS_A_PAGE = 8


@dataclass(frozen=True)
class Page:
    """`context`: the values of its template, which is `templates/NAME.html.j2` if there is one, else `page.html.j2`
    with `lead` (a sentence) and `sections`. A page of a device sweep is written once for each, into its folder; the
    others once."""

    name: str
    title: str
    order: int
    context: Callable[[PageFolder], Mapping[str, Any]]
    of_device_sweep: bool = True
    scripts: tuple[str, ...] = GRIDS


@dataclass
class Panel:
    """A figure that the page loads from `src` when it comes into view; `at`: the place of its model among all, None
    if it is not about a single one."""

    model: str
    src: str
    height: int
    at: int | None = None


@dataclass
class Section:
    """A part of a page: a table, or a figure with the tables of its numbers; without either the caption is all.

    `tables`: data files; several if models are shown a page at a time. `linked`: the table's filters are in the URL;
    `page`: rows of a page of it.
    """

    name: str
    title: str
    caption: str = ""
    tables: list[str] = field(default_factory=list)
    linked: bool = False
    panels: list[Panel] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    matrix: bool = False
    page: int = 100


@dataclass
class PageFolder:
    """Where a page is, what it is about, and how it keeps data next to it. Paths are relative to the page. `cells`
    returns the files of all cells by the slug of their device sweep, as soon as they are written."""

    page: str
    report: ReportData
    writer: Writer
    device_sweep: DeviceSweep | None = None
    cells: Callable[[], Mapping[str, list[list[str]]]] | None = None

    @property
    def folder(self) -> str:
        return f"{self.device_sweep.slug}/" if self.device_sweep else ""

    def data(self, name: str, value: Any) -> str:
        """Keep `value` for the page's scripts; return the path that they load it by."""
        path = f"data/{self.page}-{name}.js"
        self.writer.data(self.folder + path, value)
        return path

    def grid(self, name: str, table: Table) -> str:
        return self.data(name, grid_data(table))

    def table(self, name: str, table: Table, caption: str = "", **more: Any) -> Section:
        """Return a section with a table, or with the caption alone if the table has no rows."""
        tables = [self.grid(name, table)] if table.rows else []
        return Section(name, table.caption, caption, tables, **more)

    def section(self, figure: Figure) -> Section:
        """Draw the figure of this device sweep, and keep its numbers."""
        data = figure.data(self.device_sweep.frame)
        if data.empty:
            return Section(figure.name, figure.title, figure.absent)
        section = Section(figure.name, figure.title, figure.caption, matrix=figure.matrix)
        places = {model: at for at, model in enumerate(models(self.device_sweep))}
        for number, (model, part) in enumerate(figure.parts(data)):
            drawn = figure.draw(part)
            source = self.data(f"{figure.name}-{number}", vars(drawn))
            section.panels.append(Panel(model, source, drawn.layout["height"], places.get(model)))
        if not figure.matrix:
            section.modes = list(data.sort_values("series_rank")["series"].unique())
        rank = data["case"].map(places) // MODELS_A_PAGE
        for number in range(len(model_ranges(list(places))) if figure.small_multiples else 1):
            part = data[rank == number] if figure.small_multiples else data
            section.tables.append(self.grid(f"{figure.name}-numbers-{number}", numbers(figure.title, part)))
        return section


def models(device_sweep: DeviceSweep) -> list[str]:
    """Return what small multiples are about, in reading order."""
    return list(dict.fromkeys(device_sweep.frame["case"]))


def model_ranges(names: list[str]) -> list[tuple[int, int]]:
    """Return the models that a page shows at a time, as (first, last + 1)."""
    starts = range(0, len(names), MODELS_A_PAGE)
    return [(start, min(start + MODELS_A_PAGE, len(names))) for start in starts]


def numbers(title: str, data: pd.DataFrame) -> Table:
    """Return a figure's data as a table: every figure also as numbers."""
    columns, values = [], []
    for name in (name for name in data.columns if name != "series_rank"):
        numeric = is_numeric_dtype(data[name]) and not is_bool_dtype(data[name])
        columns.append(Column(name, heading(name), numeric=numeric, filter=name in ("case", "series", "status")))
        values.append([_number(name, value) for value in data[name].tolist()])
    return Table.of(columns, list(zip(*values, strict=True)), title)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or title_and_unit(name)[1] == "bytes":
        return Shown(None if is_missing(value) else value, value_text(name, value))
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


def grid_data(table: Table) -> dict[str, Any]:
    """Return a table as `static/grid.js` reads it; cells are texts, numbers or objects, see `_cell`."""
    facts = ("numeric", "filter", "mode", "wide", "help")
    columns = [
        {"title": column.heading} | {name: getattr(column, name) for name in facts if getattr(column, name)}
        for column in table.columns
    ]
    rows = [[_cell(row[column.key]) for column in table.columns] for row in table.rows]
    return {"caption": table.caption, "columns": columns, "rows": rows, "order": list(table.order)}


def _cell(value: Any) -> Any:
    """A plain value, or an object: `t` text, `v` what it is sorted by and copied as (if not the text), `s` second line,
    `c` classes, `h` link, `d` hint, `g` glyph."""
    if not isinstance(value, Shown):
        return value
    exact = None if value.value == value.text else value.value
    cell = {"t": value.text, "v": exact, "s": value.sub, "c": value.tone, "h": value.link, "d": value.hint,
            "g": value.glyph}  # fmt: skip
    return {name: item for name, item in cell.items() if item is not None and item != ""}
