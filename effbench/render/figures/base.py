"""Shared parts of figures: points, declaration, drawing, traces by mode, axes, and text escaped for
Plotly."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.core.cell import Result, Status
from effbench.core.labels import (
    LabelledRows,
    axis_of,
    grouped,
    mode_order,
    short_label,
)
from effbench.core.metrics import METRICS, bounds_of, why_marked
from effbench.core.printable import one_line
from effbench.render.colors import style_of
from effbench.render.columns import interval_text, title_and_unit, value_text
from effbench.render.marks import SIGN, signed

#: Values with the names of Plotly.
Plotly = dict[str, Any]
#: Opacity of symbols of marked results.
PALE = 0.4
#: Most characters of a text on hover.
LONGEST_TEXT = 160
#: Label on the x axis -> title and unit; others are their own title.
_TITLES = {
    "bs": ("batch size", " (samples)"),
    "stream.rate": ("arrival rate", " (requests/s)"),
    "prompt": ("prompt length", " (tokens)"),
    "new_tokens": ("new tokens", ""),
}


@dataclass(frozen=True)
class Point:
    """A result in a figure.

    `case`: model with other swept parameters. `axis`: the label on the x axis, by default the batch
    size, and `x` its value. `series`: mode with its swept settings, and `rank` its place in
    canonical order. `mark`: why its figures are marked.
    """

    case: str
    axis: str
    x: float
    series: str
    rank: int
    mark: str | None
    result: Result

    def __getitem__(self, name: str) -> Any:
        """Return the value of a column of the view; None if it is unknown."""
        return getattr(self.result, name)

    @property
    def is_ok(self) -> bool:
        return self.result.status is Status.OK


Points = Sequence[Point]


def points_of(rows: LabelledRows) -> list[Point]:
    """Return the points that all figures are drawn from, in reading order. Rows without a number on
    the x axis (`axis_of`) are omitted."""
    axis = axis_of(rows)
    with_number = [row for row in rows if math.isfinite(row.number(axis))]
    modes = mode_order((row.mode, row.base_mode) for row in with_number)
    cases = list(dict.fromkeys(row.curve(axis) for row in with_number))
    points = []
    for row in with_number:
        x = row.number(axis)
        point = Point(
            case=row.curve(axis),
            axis=short_label(axis),
            x=int(x) if x.is_integer() else x,
            series=row.mode,
            rank=modes.index(row.mode),
            mark=row.result.disturbance,
            result=row.result,
        )
        points.append(point)
    return sorted(points, key=lambda point: (cases.index(point.case), point.x, point.rank))


@dataclass(frozen=True)
class Figure:
    """A section of the page of charts.

    `data` selects the results to draw. Without any, the page shows `absent`, or omits the figure if
    that is empty. `draw` takes all points, or with `small_multiples` those of one `case`.
    """

    name: str
    title: str
    order: int
    caption: str
    absent: str
    data: Callable[[Points], list[Point]]
    draw: Callable[[Points], Drawing]
    small_multiples: bool = False


class Drawing:
    """A Plotly figure as plain values: a list of traces (`data`) and a mapping (`layout`), with
    Plotly's names. Hover texts have the columns `names`.

    Plotly's own classes validate every property, which takes about 50 ms per figure, and a report
    has hundreds. The tests do it instead. The page adds the layout that all figures share, and its
    theme sets the colours.
    """

    def __init__(self, height: int, names: Sequence[str] = (), **layout: Any) -> None:
        self.names = names
        self.data: list[Plotly] = []
        self.layout: Plotly = {"height": height} | layout

    def add(self, kind: str = "scatter", **settings: Any) -> None:
        """Add a trace that belongs to no mode."""
        self.data.append({"type": kind, "showlegend": False, **settings})

    def add_mode(
        self,
        points: Points,
        x: Sequence[Any],
        y: Sequence[Any],
        kind: str = "scatter",
        marker: Plotly | None = None,
        **settings: Any,
    ) -> None:
        """Add a trace for the points of one mode, in the mode's style and with one hover text per
        point. Symbols of marked results are pale; bars are not marked."""
        series = points[0].series
        style = style_of(series)
        look: Plotly = {"color": style.color}
        if kind == "scatter":
            settings = {"mode": "markers"} | settings
            opacity = [1.0 if point.mark is None else PALE for point in points]
            look |= {"symbol": style.symbol, "size": 9, "opacity": opacity}
        trace = {
            "x": x,
            "y": y,
            "name": safe(series),
            "type": kind,
            "marker": look | (marker or {}),
            "hoverinfo": "text",
            "hovertext": [hover(point, self.names) for point in points],
            "meta": {"mode": series},
        }
        self.data.append(trace | settings)


def by_series(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return mode -> its points ordered by x, modes in canonical order."""
    ordered = sorted(points, key=lambda point: (point.rank, point.x))
    return grouped(ordered, lambda point: point.series)


# --- text ---


def safe(text: Any) -> str:
    """Return `text` escaped for Plotly, which interprets `<b>`, `<a href>`, `<br>` and entities in
    any text."""
    return html.escape(one_line(text), quote=False)


def short(text: str, limit: int) -> str:
    """Return the text, shortened in the middle to at most `limit` characters: both ends may
    distinguish names."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[-(limit - 1 - head) :]}"


def hover(point: Point, names: Sequence[str]) -> str:
    """Return the hover text of a point: which result it is, then one column per line."""
    lines = [f"<b>{safe(point.series)}</b> · {safe(point.case)} · {x_text(point)}"]
    for name in names:
        value = point[name]
        if value is None:
            continue
        is_marked = name in METRICS and why_marked(point.result, name) is not None
        line = f"{title_and_unit(name)[0]}: {signed(value_text(name, value), is_marked)}"
        interval = interval_text(name, *bounds_of(point.result, name))
        if interval:
            line += f" (95 %: {interval})"
        lines.append(line)
    if point.mark is not None:
        lines.append(f"{SIGN} marked: {safe(short(point.mark, LONGEST_TEXT))}")
    return "<br>".join(lines)


def x_text(point: Point) -> str:
    """Return where a point is on the x axis: `bs 8`."""
    return f"{safe(point.axis)} {number_text(point.x)}"


def number_text(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


# --- axes ---


def axis(title: str, **more: Any) -> Plotly:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(title: str, values: Sequence[float]) -> Plotly:
    """Return a logarithmic axis. Ticks are at 1, 2 and 5 if the values span a factor between 4 and
    1000."""
    positive = [value for value in values if value > 0]
    drawn = axis(title, type="log", tickformat=",~r")
    if positive and 4 < max(positive) / min(positive) < 1000:
        drawn["dtick"] = "D2"
    return drawn


def small_axis(title: str, values: Sequence[float]) -> Plotly:
    """Return the x axis of a small drawing: logarithmic, or from zero if the values span a factor
    of at most 4, as labels of a logarithmic axis would overlap."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > 4 * min(positive):
        return log_axis(title, values)
    return axis(title, rangemode="tozero", nticks=5)


def x_title(points: Points) -> tuple[str, str]:
    """Return the title of the x axis and its unit in brackets."""
    name = points[0].axis
    return _TITLES.get(name, (name, ""))


def x_axis(points: Points) -> Plotly:
    """Return the axis of `x` with at most eight ticks, at its values; logarithmic if all are
    positive."""
    values = sorted({point.x for point in points})
    kind = "log" if values[0] > 0 else "linear"
    step = math.ceil(len(values) / 8)
    return axis(safe("".join(x_title(points))), type=kind, tickvals=values[::step])


def mode_axis(names: Sequence[str]) -> Plotly:
    """Return an axis with one row per mode, the first at the top."""
    ticks = [safe(short(name, 18)) for name in names]
    return axis(
        "", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5]
    )
