"""What a page is, how it keeps data next to it, and its tables as `static/grid.js` shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pandas.api.types import is_float_dtype, is_numeric_dtype

from effbench.labels import ABSENT
from effbench.metrics import METRICS
from effbench.report.data import DeviceSweep, ReportData
from effbench.report.figures.base import KEY_HEADINGS, Figure
from effbench.report.site.writer import Writer
from effbench.table import Column, Shown, Table

#: Scripts of pages with tables, and of those with figures.
GRIDS = ("grid.js",)
CHARTS = ("plotly.min.js", "charts.js")
#: Digits of a figure's number in the table behind it; samples are stored with seven.
KEPT = 9
#: Models whose small figures a page shows at a time: their figures are some 40 KiB each.
MODELS_A_PAGE = 24
#: A text column whose texts repeat this often holds each text once.
MANY = 4


@dataclass(frozen=True)
class Page:
    """`context`: what its template (`templates/NAME.html.j2`) is given. A page of a device sweep is written once for
    each, into its folder; the others once."""

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

    title: str
    src: str
    height: int
    at: int | None = None


@dataclass
class Section:
    """A figure of the page with its small multiples; `grids`: where its numbers are, none without a panel; several if
    models are shown a page at a time: those of each page."""

    figure: Figure
    panels: list[Panel] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
    rows: int = 0


@dataclass
class PageFolder:
    """Where a page is, what it is about, and how it keeps data next to it. Paths are relative to the page. `chunks`:
    returns the files of a device sweep's cells."""

    page: str
    report: ReportData
    writer: Writer
    device_sweep: DeviceSweep | None = None
    chunks: Callable[[DeviceSweep], list[list[str]]] | None = None

    @property
    def folder(self) -> str:
        return f"{self.device_sweep.slug}/" if self.device_sweep else ""

    def data(self, name: str, value: Any) -> str:
        """Keep `value` for the page's scripts; returns what they load it by."""
        path = f"data/{self.page}-{name}.js"
        self.writer.data(self.folder + path, value)
        return path

    def grid(self, name: str, table: Table) -> str:
        return self.data(name, grid_data(table))

    def section(self, figure: Figure) -> Section:
        """Draw the figure of this device sweep; without data the section has no panel."""
        data = figure.data(self.device_sweep.frame)
        section = Section(figure)
        if data.empty:
            return section
        parts: list[tuple[str, int | None, Any]] = [("", None, data)]
        places = {case: at for at, case in enumerate(models(self.device_sweep))} if figure.small_multiples else {}
        if places:
            parts = [(str(case), places[case], part) for case, part in data.groupby("case", sort=False)]
        for number, (title, at, part) in enumerate(parts):
            drawn = figure.draw(part)
            path = f"data/{self.page}-{figure.name}-{number}.js"
            self.writer.json(self.folder + path, drawn.to_json())
            section.panels.append(Panel(title, path, int(drawn.layout["height"]), at))
        ranks = dict(zip(data["series"], data["series_rank"], strict=True))
        section.modes = sorted(ranks, key=lambda name: ranks[name]) if figure.small_multiples or figure.modes else []
        section.rows = len(data)
        if len(places) > MODELS_A_PAGE:
            page = data["case"].map(places) // MODELS_A_PAGE
            section.grids = [
                self.grid(f"{figure.name}-numbers-{number}", numbers(figure, data[page == number]))
                for number in range(-(-len(places) // MODELS_A_PAGE))
            ]
        else:
            section.grids = [self.grid(f"{figure.name}-numbers", numbers(figure, data))]
        return section


def models(device_sweep: DeviceSweep) -> list[str]:
    """Return what small multiples are about, in reading order."""
    return list(dict.fromkeys(device_sweep.frame["case"]))


def numbers(figure: Figure, data: Any) -> Table:
    """Return the figure's data as a table: every figure also as numbers."""
    columns, values = [], []
    for name, heading in (KEY_HEADINGS | figure.numbers).items():
        is_bytes = name in METRICS and METRICS[name].unit == "bytes"
        digits = 4 if is_float_dtype(data[name]) and not is_bytes else None
        is_choice = name in ("case", "series", "status")
        columns.append(Column(name, heading, numeric=is_numeric_dtype(data[name]), filter=is_choice, digits=digits))
        values.append([_number(name, value, is_bytes, digits) for value in data[name].tolist()])
    return Table.of(columns, list(zip(*values, strict=True)), figure.title)


def _number(name: str, value: Any, is_bytes: bool, digits: int | None) -> Any:
    if digits:
        return float(f"{value:.{KEPT}g}") if math.isfinite(value) else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return Shown(None, ABSENT)
    if is_bytes:
        return Shown(value, METRICS[name].format(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int | str) else json.dumps(value)


def grid_data(table: Table) -> dict[str, Any]:
    """Return a table as `static/grid.js` reads it: cells are texts, numbers or objects, see `_cell`. A column of few
    texts holds their numbers; `of` are the texts."""
    columns, values = [], []
    for column in table.columns:
        facts = {"title": column.heading} | {name: getattr(column, name) for name in _COLUMN_FACTS}
        own = [_cell(row[column.key]) for row in table.rows]
        if own and set(map(type, own)) == {str}:
            texts = {value: number for number, value in enumerate(dict.fromkeys(own))}
            if MANY * len(texts) <= len(own):
                facts["of"] = list(texts)
                own = [texts[value] for value in own]
        columns.append({name: value for name, value in facts.items() if value})
        values.append(own)
    rows = list(zip(*values, strict=True)) if table.rows else []
    return {"caption": table.caption, "columns": columns, "rows": rows, "order": list(table.order)}


_COLUMN_FACTS = ("numeric", "filter", "mode", "wide", "help", "digits")


def _cell(value: Any) -> Any:
    """A plain value, or an object: `t` text, `v` what it is sorted by and copied as (if not the text), `s` second line,
    `c` classes, `h` link, `d` hint, `g` glyph."""
    if not isinstance(value, Shown):
        return value
    exact = None if value.value == value.text else value.value
    cell = {"t": value.text, "v": exact, "s": value.sub, "c": value.tone, "h": value.link, "d": value.hint,
            "g": value.glyph}  # fmt: skip
    return {name: item for name, item in cell.items() if item is not None and item != ""}
