"""Charts: figures against batch size, memory and compile time, as small multiples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from effbench.core.labels import grouped
from effbench.render.figures import all_figures
from effbench.render.figures.base import Figure, Points, by_series, x_title
from effbench.render.site.page import CHARTS, Context, Page, PageFolder

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
    """A figure with its drawings."""

    name: str
    title: str
    caption: str
    modes: list[str]
    panels: list[Panel]


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
    """Return the section of a figure; write its drawings. `models`: all, with other swept
    parameters, in reading order."""
    by_model = {"": list(points)}
    if figure.small_multiples:
        by_model = grouped(points, lambda point: point.case)
    panels = []
    for number, (model, of_model) in enumerate(by_model.items()):
        drawing = figure.draw(of_model)
        content = {"data": drawing.data, "layout": drawing.layout}
        source = folder.data(f"{figure.name}-{number}", content)
        at = models.index(model) if model else None
        panels.append(Panel(model, source, drawing.layout["height"], at))
    axis, _ = x_title(points)
    title = figure.title.format(axis=axis)
    return Section(figure.name, title, figure.caption, list(by_series(points)), panels)


def model_ranges(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranges of models that a page shows at a time, as (first, last + 1)."""
    starts = range(0, len(names), MODELS_A_PAGE)
    return [(start, min(start + MODELS_A_PAGE, len(names))) for start in starts]


SCRIPTS = (*CHARTS, "models.js")
PAGE = Page("charts", "Charts", context, scripts=SCRIPTS)
