"""Shared parts of figures: points, declaration, drawing, traces by mode, axes, and text escaped for
Plotly."""

from __future__ import annotations

import html
import math
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import Any

from effbench.core.labels import (
    LabelledRows,
    axis_of,
    grouped,
    mode_order,
    short_label,
)
from effbench.core.metrics import INTERVALS, METRICS
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
#: Bounds, which hover texts show with the figure between them.
_BOUNDS = frozenset(bound for bounds in INTERVALS.values() for bound in bounds)


@dataclass(frozen=True)
class Point:
    """A result in a figure.

    `case`: model with other swept parameters. `axis`: the label on the x axis, by default the batch
    size, and `x` its value. `series`: mode with its swept settings, and `rank` its place in
    canonical order. `mark`: why its figures are marked. `values`: the
    columns for hover texts and the table of numbers; None if unknown.
    """

    case: str
    axis: str
    x: float
    series: str
    rank: int
    mark: str | None
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return the value of a column; None if it is unknown."""
        return self.values.get(name)

    @property
    def is_ok(self) -> bool:
        return bool(self["status"] == "ok")

    def with_columns(self, *names: str, **more: Any) -> Point:
        """Return the point with these columns only, and `more` ones."""
        return replace(self, values={name: self[name] for name in names} | more)

    def are_positive(self, *names: str) -> bool:
        return all(self[name] is not None and self[name] > 0 for name in names)


Points = Sequence[Point]


def points_of(rows: LabelledRows, axis: str | None = None) -> list[Point]:
    """Return the points that all figures are drawn from, with all columns of the view, in reading
    order. `axis`: the label on the x axis, by default that of `axis_of`; rows without a number are
    omitted."""
    axis = axis or axis_of(rows)
    with_number = [row for row in rows if math.isfinite(row.number(axis))]
    modes = mode_order((row.mode, row.base_mode) for row in with_number)
    ranks = {mode: rank for rank, mode in enumerate(modes)}
    cases = {row.curve(axis): None for row in with_number}
    order = {case: rank for rank, case in enumerate(cases)}
    points = []
    for row in with_number:
        x = row.number(axis)
        point = Point(
            case=row.curve(axis),
            axis=short_label(axis),
            x=int(x) if x.is_integer() else x,
            series=row.mode,
            rank=ranks[row.mode],
            mark=row.result.disturbance,
            values=vars(row.result),
        )
        points.append(point)
    return sorted(points, key=lambda point: (order[point.case], point.x, point.rank))


@dataclass(frozen=True)
class Figure:
    """A section of the page of charts.

    `data` turns the results (`points_of`) into the points to draw, with equal columns: those for
    hover texts and the table of numbers. Without points, the page shows `absent`. `draw` takes all
    points, or with `small_multiples` those of one `case`. Without `absent`, the page omits an empty
    figure.
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
    Plotly's names.

    Plotly's own classes validate every property, which takes about 50 ms per figure, and a report
    has hundreds. The tests do it instead. The page adds the layout that all figures share, and its
    theme sets the colours.
    """

    def __init__(self, height: int, **layout: Any) -> None:
        self.data: list[Plotly] = []
        self.layout: Plotly = {"height": height} | layout

    def add(self, kind: str = "scatter", **settings: Any) -> None:
        """Add a trace that belongs to no mode."""
        self.data.append(
            {
                "type": kind,
                "showlegend": False,
                **settings,
            }
        )

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
            "hovertext": [hover(point) for point in points],
            "meta": {"mode": series},
        }
        self.data.append(trace | settings)


def known(points: Iterable[Point], *names: str) -> list[Any]:
    """Return the known values of these columns."""
    points = list(points)
    values = [point[name] for name in names for point in points]
    return [value for value in values if value is not None]


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


def hover(point: Point) -> str:
    """Return the hover text of a point: which result it is, then one value per line."""
    lines = [f"<b>{safe(point.series)}</b> · {safe(point.case)} · {x_text(point)}"]
    for name, value in point.values.items():
        if name in _BOUNDS or value is None:
            continue
        text = value_text(name, value)
        if isinstance(value, str):
            text = safe(short(value, LONGEST_TEXT))
        line = f"{title_and_unit(name)[0]}: {signed(text, is_marked_figure(point, name))}"
        low, high = INTERVALS.get(name, ("", ""))
        interval = interval_text(name, point[low], point[high])
        if interval:
            line += f" (95 %: {interval})"
        lines.append(line)
    if point.mark is not None:
        lines.append(f"{SIGN} marked: {safe(short(point.mark, LONGEST_TEXT))}")
    return "<br>".join(lines)


def is_marked_figure(point: Point, name: str) -> bool:
    """Return whether the point is marked and a disturbance changes this column."""
    return point.mark is not None and name in METRICS and METRICS[name].is_timed


def x_text(point: Point) -> str:
    """Return where a point is on the x axis: `bs 8`."""
    return f"{safe(point.axis)} {number_text(point.x)}"


def number_text(number: float) -> str:
    if number == int(number):
        return f"{number:.0f}"
    return f"{number:g}"


# --- axes ---


def axis(title: str, **more: Any) -> Plotly:
    return {
        "title": {"text": title, "standoff": 8},
        "automargin": True,
        "zeroline": False,
    } | more


def log_axis(title: str, values: Sequence[float], **more: Any) -> Plotly:
    """Return a logarithmic axis. Ticks are at 1, 2 and 5 if the values span a factor between 4 and
    1000."""
    positive = [value for value in values if value > 0]
    ticks = {}
    if positive and 4 < max(positive) / min(positive) < 1000:
        ticks["dtick"] = "D2"
    return axis(
        title,
        type="log",
        tickformat=",~r",
        **ticks,
        **more,
    )


def small_axis(title: str, values: Sequence[float]) -> Plotly:
    """Return the x axis of a small drawing: logarithmic, or from zero if the values span a factor
    of at most 4, as labels of a logarithmic axis would overlap."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > 4 * min(positive):
        return log_axis(title, values)
    return axis(
        title,
        rangemode="tozero",
        nticks=5,
    )


def x_title(points: Points, unit: bool = False) -> str:
    name = "bs"
    if points:
        name = points[0].axis
    title, unit_text = _TITLES.get(name, (name, ""))
    if unit:
        return title + unit_text
    return title


def x_axis(points: Points) -> Plotly:
    """Return the axis of `x` with at most eight ticks, at its values; logarithmic if all are
    positive."""
    values = sorted({point.x for point in points})
    kind = "linear"
    if values[0] > 0:
        kind = "log"
    step = math.ceil(len(values) / 8)
    return axis(
        safe(x_title(points, unit=True)),
        type=kind,
        tickvals=values[::step],
    )


def mode_axis(names: Sequence[str]) -> Plotly:
    """Return an axis with one row per mode, the first at the top."""
    ticks = [safe(short(name, 18)) for name in names]
    return axis(
        "", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5]
    )
