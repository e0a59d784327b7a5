"""Pages: their declaration, their sections and data files, and tables in the form of
`static/grid.js`."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.labels import grouped
from effbench.report.columns import heading, title_and_unit, value_text
from effbench.report.data import DeviceSweep, ReportData
from effbench.report.figures.base import Figure, Row, is_marked_figure, x_title
from effbench.report.marks import SIGN
from effbench.report.site.writer import Writer
from effbench.table import Column, Shown, Table

#: Scripts of pages with tables, and of pages with figures.
GRIDS = ("grid.js",)
CHARTS = ("plotly.min.js", "charts.js")
#: Models that a page shows at a time: each figure has about 40 KiB.
MODELS_A_PAGE = 8


@dataclass(frozen=True)
class Page:
    """`context`: returns the values of the template `templates/NAME.html.j2`, or if that does not
    exist of `page.html.j2`: `lead` (a sentence) and `sections`. `of_device_sweep`: write the page
    into the folder of each device sweep, instead of once."""

    name: str
    title: str
    context: Callable[[PageFolder], Mapping[str, Any]]
    of_device_sweep: bool = True
    scripts: tuple[str, ...] = GRIDS


@dataclass
class Panel:
    """A figure that the page loads from `src` when it comes into view. `height`: in pixels. `at`:
    index of its model, None if it shows several models."""

    model: str
    src: str
    height: int
    at: int | None = None


@dataclass
class Section:
    """A part of a page: a table, a figure with tables of its numbers, or only a caption.

    `tables`: data files, one per range of models. `linked`: the URL holds the table's filters.
    `page`: rows per page of the table.
    """

    name: str
    title: str
    caption: str = ""
    tables: list[str] = field(default_factory=list)
    linked: bool = False
    panels: list[Panel] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    page: int = 100


@dataclass(frozen=True)
class HeldSweep:
    """A device sweep whose pages the site has, in the folder `slug`. `several`: whether it has
    several environments."""

    sweep_id: str
    name: str
    label: str
    started_at: dt.datetime
    hardware: str
    slug: str
    several: bool

    @classmethod
    def of(cls, device_sweep: DeviceSweep) -> HeldSweep:
        sweep = device_sweep.sweep
        label = str(sweep["label"] or "")
        several = len(device_sweep.environments) > 1
        return cls(
            sweep["id"],
            device_sweep.name,
            "" if label == device_sweep.name else label,
            sweep["started_at"],
            device_sweep.hardware,
            device_sweep.slug,
            several,
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"started_at": self.started_at.isoformat()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HeldSweep:
        return cls(**{**data, "started_at": dt.datetime.fromisoformat(data["started_at"])})

    def facts(self) -> list[str]:
        """Return what the picker of the pages needs: folder, name, label, date and hardware."""
        return [
            self.slug,
            self.name,
            self.label,
            f"{self.started_at:%Y-%m-%d %H:%M}",
            self.hardware,
        ]


def newest_first(held: Sequence[HeldSweep]) -> list[HeldSweep]:
    return sorted(held, key=lambda sweep: sweep.started_at, reverse=True)


@dataclass
class PageFolder:
    """The subject of a page and the folder for its data. Paths are relative to the page. `held`:
    the device sweeps whose pages are complete; pages without a device sweep are written when all
    are."""

    page: str
    report: ReportData
    writer: Writer
    device_sweep: DeviceSweep | None = None
    held: Sequence[HeldSweep] = ()

    @property
    def folder(self) -> str:
        return f"{self.device_sweep.slug}/" if self.device_sweep else ""

    def data(self, name: str, value: Any) -> str:
        """Write `value` for the page's scripts and return its path."""
        path = f"data/{self.page}-{name}.js"
        self.writer.data(self.folder + path, value)
        return path

    def grid(self, name: str, table: Table) -> str:
        return self.data(name, grid_data(table))

    def table(self, name: str, table: Table, caption: str = "", **more: Any) -> Section:
        """Return a section with a table, or with only the caption if the table has no rows."""
        tables = [self.grid(name, table)] if table.rows else []
        return Section(name, table.caption, caption, tables, **more)

    def section(self, figure: Figure) -> Section:
        """Return a section with the figure of this device sweep; write its drawings and numbers."""
        rows = figure.data(self.device_sweep.drawn)
        title = figure.title.format(axis=x_title(self.device_sweep.drawn))
        if not rows:
            return Section(figure.name, title, figure.absent)
        section = Section(figure.name, title, figure.caption)
        places = {model: at for at, model in enumerate(models(self.device_sweep))}
        drawings = grouped(rows, lambda row: row["case"]) if figure.small_multiples else {"": rows}
        for number, (model, part) in enumerate(drawings.items()):
            drawn = figure.draw(part)
            source = self.data(f"{figure.name}-{number}", vars(drawn))
            section.panels.append(Panel(model, source, drawn.layout["height"], places.get(model)))
        section.modes = list(
            dict.fromkeys(row["series"] for row in sorted(rows, key=lambda row: row["series_rank"]))
        )
        parts: dict[int, list[Row]] = {
            number: [] for number in range(len(model_ranges(list(places))))
        }
        for row in rows:
            parts[places[row["case"]] // MODELS_A_PAGE].append(row)
        for number, part in parts.items() if figure.small_multiples else [(0, rows)]:
            section.tables.append(
                self.grid(f"{figure.name}-numbers-{number}", numbers(title, part, list(rows[0])))
            )
        return section


def models(device_sweep: DeviceSweep) -> list[str]:
    """Return the models (with other swept parameters) of small multiples, in reading order."""
    return list(dict.fromkeys(row["case"] for row in device_sweep.drawn))


def model_ranges(names: list[str]) -> list[tuple[int, int]]:
    """Return the ranges of models that a page shows at a time, as (first, last + 1)."""
    starts = range(0, len(names), MODELS_A_PAGE)
    return [(start, min(start + MODELS_A_PAGE, len(names))) for start in starts]


def numbers(caption: str, rows: Sequence[Row], names: Sequence[str]) -> Table:
    """Return the rows of a figure as a table of numbers. `names`: of their columns."""
    columns, values = [], []
    is_marked = any(row["mark"] is not None for row in rows)
    for name in names:
        if name in ("axis", "series_rank") or (name == "mark" and not is_marked):
            continue
        of_column = [row[name] for row in rows]
        is_text = any(isinstance(value, str) for value in of_column)
        title = x_title(rows) if name == "x" else heading(name)
        if name == "mark":
            title = "marked"
        columns.append(
            Column(name, title, numeric=not is_text, filter=name in ("case", "series", "status"))
        )
        is_bytes = title_and_unit(name)[1] == "bytes"
        cells = []
        for row, value in zip(rows, of_column, strict=True):
            number = _number(name, value, is_bytes)
            if value is not None and is_marked_figure(row, name):
                number = Shown(number, f"{SIGN}{value:.4g}", "marked", hint=row["mark"])
            cells.append(number)
        values.append(cells)
    return Table.of(columns, zip(*values, strict=True), caption)


def _number(name: str, value: Any, is_bytes: bool) -> Any:
    if is_bytes:
        return Shown(value, value_text(name, value))
    return float(f"{value:.9g}") if isinstance(value, float) else value


def grid_data(table: Table) -> dict[str, Any]:
    """Return a table in the form of `static/grid.js`; cells are texts, numbers or objects of
    `_cell`."""
    facts = ("numeric", "filter", "mode", "wide", "help")
    columns = [
        {"title": column.heading}
        | {name: getattr(column, name) for name in facts if getattr(column, name)}
        for column in table.columns
    ]
    rows = [[_cell(row[column.key]) for column in table.columns] for row in table.rows]
    return {"caption": table.caption, "columns": columns, "rows": rows}


def _cell(value: Any) -> Any:
    """Return a plain value, or an object: `t` text, `v` value to sort by and copy (if not the
    text), `s` second line, `c` classes, `h` link, `d` hint, `g` glyph."""
    if not isinstance(value, Shown):
        return value
    exact = None if value.value == value.text else value.value
    cell = {
        "t": value.text,
        "v": exact,
        "s": value.brackets,
        "c": value.tone,
        "h": value.link,
        "d": value.hint,
        "g": value.glyph,
    }
    return {name: item for name, item in cell.items() if item is not None and item != ""}
