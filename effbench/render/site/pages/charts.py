"""Charts: figures against batch size, memory and compile time, as small multiples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from effbench.core.labels import grouped
from effbench.core.table import Column, Shown, Table
from effbench.render.columns import heading, title_and_unit, value_text
from effbench.render.figures import all_figures
from effbench.render.figures.base import (
    Figure,
    Point,
    Points,
    is_marked_figure,
    x_title,
)
from effbench.render.marks import signed
from effbench.render.site.page import (
    CHARTS,
    GRIDS,
    Context,
    Page,
    PageFolder,
)

#: Models that a page shows at a time: each figure has about 40 KiB.
MODELS_A_PAGE = 8


@dataclass
class Panel:
    """A drawing that the page loads from `src` when it comes into view. `height`: in pixels. `at`:
    index of its model, None if it shows several models."""

    model: str
    src: str
    height: int
    at: int | None = None


@dataclass
class Section:
    """A figure with tables of its numbers: data files, one per range of models."""

    name: str
    title: str
    caption: str
    modes: list[str]
    panels: list[Panel] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)


def context(folder: PageFolder) -> Context:
    points = folder.subject.points
    models = list(dict.fromkeys(point.case for point in points))
    sections, absent = [], []
    for figure in all_figures():
        drawn = figure.data(points)
        if drawn:
            sections.append(section_of(folder, figure, drawn, models))
        elif figure.absent:
            absent.append(figure.absent)
    return {
        "lead": "" if sections else " ".join(absent),
        "sections": sections,
        "models": models if sections else [],
        "ranges": model_ranges(models),
    }


def section_of(
    folder: PageFolder, figure: Figure, points: Points, models: Sequence[str]
) -> Section:
    """Return the section of a figure; write its drawings and numbers. `models`: all, with other
    swept parameters, in reading order."""
    title = figure.title.format(axis=x_title(points))
    by_rank = sorted(points, key=lambda point: point.rank)
    modes = list(dict.fromkeys(point.series for point in by_rank))
    section = Section(figure.name, title, figure.caption, modes)

    def add_panel(points: Points, model: str = "", at: int | None = None) -> None:
        drawing = figure.draw(points)
        source = folder.data(f"{figure.name}-{len(section.panels)}", vars(drawing))
        section.panels.append(Panel(model, source, drawing.layout["height"], at))

    def add_numbers(points: Points) -> None:
        name = f"{figure.name}-numbers-{len(section.tables)}"
        section.tables.append(folder.grid(name, numbers(title, points, columns)))

    columns = list(points[0].values)
    if not figure.small_multiples:
        add_panel(points)
        add_numbers(points)
        return section
    by_model = grouped(points, lambda point: point.case)
    for model, of_model in by_model.items():
        add_panel(of_model, model, models.index(model))
    for first, last in model_ranges(models):
        shown = set(models[first:last])
        add_numbers([point for point in points if point.case in shown])
    return section


def model_ranges(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranges of models that a page shows at a time, as (first, last + 1)."""
    starts = range(0, len(names), MODELS_A_PAGE)
    return [(start, min(start + MODELS_A_PAGE, len(names))) for start in starts]


def numbers(caption: str, points: Points, names: Sequence[str]) -> Table:
    """Return the points of a figure as a table of numbers. `names`: of their columns."""
    columns = [
        Column("case", "model", filter=True, value=attrgetter("case")),
        Column("x", x_title(points), numeric=True, value=attrgetter("x")),
        Column("series", "mode", filter=True, value=attrgetter("series")),
    ]
    if any(point.mark is not None for point in points):
        columns.append(Column("mark", "marked", value=attrgetter("mark")))
    for name in names:
        is_text = any(isinstance(point[name], str) for point in points)
        value = partial(_number, name=name)
        column = Column(
            name, heading(name), numeric=not is_text, filter=name == "status", value=value
        )
        columns.append(column)
    return Table(columns, points, caption=caption)


def _number(point: Point, name: str) -> Any:
    """Return a value with at most nine digits; sizes in bytes with a unit, marked ones with `~`."""
    value = point[name]
    if value is None:
        return None
    is_marked = is_marked_figure(point, name)
    if is_marked:
        return Shown(value, signed(f"{value:.4g}", is_marked), "marked", hint=point.mark or "")
    if title_and_unit(name)[1] == "bytes":
        return Shown(value, value_text(name, value))
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value


SCRIPTS = (*GRIDS, *CHARTS, "models.js")
PAGE = Page("charts", "Charts", context, scripts=SCRIPTS)
