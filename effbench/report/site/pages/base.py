"""What a page is: a module with a `PAGE`, and a template of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from effbench.metrics import METRICS
from effbench.report.embed import figure_json
from effbench.report.figures import Figure
from effbench.report.site.grid import Column, Grid, cell
from effbench.report.site.material import Material, Subject
from effbench.report.site.writer import Writer

#: Scripts of pages with tables, and of those with figures.
GRIDS = ("datatables.js", "grid.js")
CHARTS = ("plotly.min.js", "charts.js")


@dataclass(frozen=True)
class Page:
    """`context`: what its template (`templates/NAME.html.j2`) is given. A page of a subject is written once for each,
    into the subject's folder; the others once. `ahead`: begins work on all its folders that goes on while other pages
    are written; it is left when all are."""

    name: str
    title: str
    order: int
    context: Callable[[PageFolder], Mapping[str, Any]]
    of_subject: bool = True
    scripts: tuple[str, ...] = ()
    ahead: Callable[[Sequence[PageFolder]], AbstractContextManager[Any]] | None = None


@dataclass
class Panel:
    """A figure that the page loads from `src` when it comes into view."""

    title: str
    src: str
    height: int
    model: str = ""


@dataclass
class Section:
    """A figure of the page with its small multiples; `grid`: where its numbers are, empty with no panel."""

    figure: Figure
    panels: list[Panel] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    grid: str = ""
    rows: int = 0


@dataclass
class PageFolder:
    """Where a page lies, what it is about, and how it keeps data beside it. Paths are relative to the page. `begun`:
    waits for what the page's `ahead` began for this folder, and gives it."""

    page: str
    material: Material
    writer: Writer
    subject: Subject | None = None
    begun: Callable[[], Any] | None = None

    @property
    def folder(self) -> str:
        return f"{self.subject.slug}/" if self.subject else ""

    def data(self, name: str, value: Any) -> str:
        """Keep `value` for the page's scripts; returns what they load it by."""
        path = f"data/{self.page}-{name}.js"
        self.writer.data(self.folder + path, value)
        return path

    def grid(self, name: str, grid: Grid) -> str:
        return self.data(name, grid.plain())

    def section(self, figure: Figure, frame: Any) -> Section:
        """The figure of `frame` (as `report.frame.prepare` gives it), drawn; without data the section has no panel."""
        data = figure.data(frame)
        section = Section(figure)
        if data.empty:
            return section
        parts = [("", data)]
        if figure.small_multiples:
            parts = [(str(case), part) for case, part in data.groupby("case", sort=False)]
        for number, (title, part) in enumerate(parts):
            drawn = figure.draw(part)
            path = f"data/{self.page}-{figure.name}-{number}.js"
            self.writer.json(self.folder + path, figure_json(drawn))
            section.panels.append(Panel(title, path, int(drawn.layout["height"])))
        ranks = dict(zip(data["series"], data["series_rank"], strict=True))
        section.modes = sorted(ranks, key=lambda name: ranks[name]) if figure.small_multiples or figure.modes else []
        section.grid = self.grid(f"{figure.name}-numbers", numbers(figure, data))
        section.rows = len(data)
        return section


def numbers(figure: Figure, data: Any) -> Grid:
    """The figure's data as a table: every figure also as numbers."""
    from pandas.api.types import is_numeric_dtype

    from effbench.analysis.swept import plain

    names = list(figure.numbers)
    columns = [
        Column(figure.numbers[name], numeric=is_numeric_dtype(data[name]), filter=name in ("case", "series", "status"))
        for name in names
    ]
    rows = [[_number(name, plain(value)) for name, value in zip(names, row, strict=True)]
            for row in data[names].itertuples(index=False, name=None)]  # fmt: skip
    return Grid(figure.title, columns, rows)


def _number(name: str, value: Any) -> Any:
    if value is None:
        return cell("—")
    if name in METRICS and METRICS[name].unit == "bytes":
        return cell(METRICS[name].format(value), value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return cell(f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}", value)
    return value if isinstance(value, int | str) else json.dumps(value)
