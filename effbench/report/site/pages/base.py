"""What a page is: a module with a `PAGE`, and a template of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from effbench.analysis.swept import plain
from effbench.metrics import METRICS
from effbench.report.figures import Figure
from effbench.report.site.grid import Column, Grid, cell
from effbench.report.site.material import Material, Subject
from effbench.report.site.writer import Writer

#: Scripts of pages with tables, and of those with figures.
GRIDS = ("datatables.js", "grid.js")
CHARTS = ("plotly.min.js", "charts.js")
MODELS = ("models.js",)
#: Digits of a figure's number in the table behind it; samples are stored with seven.
KEPT = 9
#: Models whose small figures a page shows at a time: their figures are some 40 KiB each.
MODELS_A_PAGE = 24


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
    """A figure that the page loads from `src` when it comes into view; `at`: the place of its model among all, None
    where it is of no single one."""

    title: str
    src: str
    height: int
    at: int | None = None


@dataclass
class Section:
    """A figure of the page with its small multiples; `grids`: where its numbers are, none with no panel; several where
    models are shown a page at a time: those of each page."""

    figure: Figure
    panels: list[Panel] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
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
        parts: list[tuple[str, int | None, Any]] = [("", None, data)]
        if figure.small_multiples:
            places = {case: at for at, case in enumerate(models(frame))}
            parts = [(str(case), places[case], part) for case, part in data.groupby("case", sort=False)]
        for number, (title, at, part) in enumerate(parts):
            drawn = figure.draw(part)
            path = f"data/{self.page}-{figure.name}-{number}.js"
            self.writer.json(self.folder + path, drawn.to_json())
            section.panels.append(Panel(title, path, int(drawn.layout["height"]), at))
        ranks = dict(zip(data["series"], data["series_rank"], strict=True))
        section.modes = sorted(ranks, key=lambda name: ranks[name]) if figure.small_multiples or figure.modes else []
        section.rows = len(data)
        if figure.small_multiples and len(places) > MODELS_A_PAGE:
            page = data["case"].map(places) // MODELS_A_PAGE
            section.grids = [
                self.grid(f"{figure.name}-numbers-{number}", numbers(figure, data[page == number]))
                for number in range(-(-len(places) // MODELS_A_PAGE))
            ]
        else:
            section.grids = [self.grid(f"{figure.name}-numbers", numbers(figure, data))]
        return section


def models(frame: Any) -> list[str]:
    """What small multiples are of, in reading order."""
    return list(dict.fromkeys(frame["case"]))


def numbers(figure: Figure, data: Any) -> Grid:
    """The figure's data as a table: every figure also as numbers."""
    from pandas.api.types import is_float_dtype, is_numeric_dtype

    names = list(figure.numbers)
    columns = [
        Column(
            figure.numbers[name],
            numeric=is_numeric_dtype(data[name]),
            filter=name in ("case", "series", "status"),
            digits=4 if is_float_dtype(data[name]) and not _is_bytes(name) else None,
        )
        for name in names
    ]
    values = [_numbers(name, column, data[name].tolist()) for name, column in zip(names, columns, strict=True)]
    return Grid(figure.title, columns, list(zip(*values, strict=True)))


def _is_bytes(name: str) -> bool:
    return name in METRICS and METRICS[name].unit == "bytes"


def _numbers(name: str, column: Column, values: list[Any]) -> list[Any]:
    if column.digits:
        return [float(f"{value:.{KEPT}g}") if math.isfinite(value) else None for value in values]
    return [_number(name, plain(value)) for value in values]


def _number(name: str, value: Any) -> Any:
    if value is None:
        return cell("—")
    if _is_bytes(name):
        return cell(METRICS[name].format(value), value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int | str) else json.dumps(value)
