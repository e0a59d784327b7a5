"""Charts: figures against batch size, memory and compile time, as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.labels import grouped
from effbench.report.columns import heading, title_and_unit, value_text
from effbench.report.data import DeviceSweep
from effbench.report.figures import all_figures
from effbench.report.figures.base import (
    Figure,
    Point,
    Points,
    is_marked_figure,
    x_title,
)
from effbench.report.marks import SIGN
from effbench.report.site.page import (
    CHARTS,
    GRIDS,
    Context,
    Page,
    PageFolder,
)
from effbench.table import Column, Shown, Table

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
    device_sweep = folder.subject
    names = models(device_sweep)
    sections, absent = [], []
    for figure in all_figures():
        points = figure.data(device_sweep.points)
        if points:
            sections.append(section_of(folder, figure, points, names))
        elif figure.absent:
            absent.append(figure.absent)
    return {
        "lead": "" if sections else " ".join(absent),
        "sections": sections,
        "models": names if sections else [],
        "ranges": model_ranges(names),
    }


def section_of(folder: PageFolder, figure: Figure, points: Points, names: Sequence[str]) -> Section:
    """Return the section of a figure; write its drawings and numbers. `names`: all models."""
    title = figure.title.format(axis=x_title(points))
    by_rank = sorted(points, key=lambda point: point.rank)
    modes = list(dict.fromkeys(point.series for point in by_rank))
    section = Section(figure.name, title, figure.caption, modes)
    places = {name: place for place, name in enumerate(names)}
    drawings: Mapping[str, Points] = {"": points}
    parts = {0: list(points)}
    if figure.small_multiples:
        drawings = grouped(points, lambda point: point.case)
        parts = {number: [] for number in range(len(model_ranges(names)))}
        for point in points:
            parts[places[point.case] // MODELS_A_PAGE].append(point)
    for number, (model, drawn) in enumerate(drawings.items()):
        drawing = figure.draw(drawn)
        source = folder.data(f"{figure.name}-{number}", vars(drawing))
        section.panels.append(Panel(model, source, drawing.layout["height"], places.get(model)))
    columns = list(points[0].values)
    for number, part in parts.items():
        table = numbers(title, part, columns)
        section.tables.append(folder.grid(f"{figure.name}-numbers-{number}", table))
    return section


def models(device_sweep: DeviceSweep) -> list[str]:
    """Return the models (with other swept parameters) of small multiples, in reading order."""
    return list(dict.fromkeys(point.case for point in device_sweep.points))


def model_ranges(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranges of models that a page shows at a time, as (first, last + 1)."""
    starts = range(0, len(names), MODELS_A_PAGE)
    return [(start, min(start + MODELS_A_PAGE, len(names))) for start in starts]


def numbers(caption: str, points: Points, names: Sequence[str]) -> Table:
    """Return the points of a figure as a table of numbers. `names`: of their columns."""
    columns = [
        Column("case", "model", filter=True),
        Column("x", x_title(points), numeric=True),
        Column("series", "mode", filter=True),
    ]
    if any(point.mark is not None for point in points):
        columns.append(Column("mark", "marked"))
    for name in names:
        is_text = any(isinstance(point[name], str) for point in points)
        columns.append(
            Column(
                name,
                heading(name),
                numeric=not is_text,
                filter=name == "status",
            )
        )
    rows = []
    for point in points:
        row: dict[str, Any] = {name: _number(point, name) for name in names}
        row |= {
            "case": point.case,
            "x": point.x,
            "series": point.series,
            "mark": point.mark,
        }
        rows.append(row)
    return Table(columns, rows, caption=caption)


def _number(point: Point, name: str) -> Any:
    """Return a value with at most nine digits; sizes in bytes with a unit, marked ones with `~`."""
    value = point[name]
    if value is None:
        return None
    number = value
    if isinstance(value, float):
        number = float(f"{value:.9g}")
    if is_marked_figure(point, name):
        return Shown(number, f"{SIGN}{value:.4g}", "marked", hint=point.mark or "")
    if title_and_unit(name)[1] == "bytes":
        return Shown(value, value_text(name, value))
    return number


SCRIPTS = (*GRIDS, *CHARTS, "models.js")
PAGE = Page("charts", "Charts", context, scripts=SCRIPTS)
