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

from effbench.labels import (
    LabelledRows,
    axis_of,
    grouped,
    mode_order,
    short_label,
)
from effbench.metrics import INTERVALS, METRICS
from effbench.printable import one_line
from effbench.report import marks
from effbench.report.colors import style_of
from effbench.report.columns import interval_text, title_and_unit, value_text
from effbench.report.marks import (
    SIGN,
    is_timed,
    signed,
    why_marked,
)
from effbench.report.tables import is_baseline

#: Values with the names of Plotly.
Plotly = dict[str, Any]
GRAY = "rgba(128,136,146,0.8)"
#: Opacity of marks of results that are marked, in figures that use open symbols for something else.
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
    canonical order. `is_baseline`: whether its mode is the baseline's. `mark`, `ratio_mark`: why
    its times and its speedup are marked. `values`: the columns for hover texts and the table of
    numbers; None if unknown.
    """

    case: str
    axis: str
    x: float
    series: str
    rank: int
    is_baseline: bool
    mark: str | None
    ratio_mark: str | None
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return the value of a column; None if it is unknown."""
        return self.values.get(name)

    @property
    def is_ok(self) -> bool:
        return bool(self["status"] == "ok")

    @property
    def place(self) -> tuple[str, float]:
        """What modes are compared at."""
        return self.case, self.x

    def with_columns(self, *names: str, **more: Any) -> Point:
        """Return the point with these columns only, and `more` ones."""
        return replace(self, values={name: self[name] for name in names} | more)

    def with_ratio_mark(self) -> Point:
        """Return the point for a figure of speedups, which have marks of their own."""
        return replace(self, mark=self.ratio_mark)

    def are_positive(self, *names: str) -> bool:
        return all(self[name] is not None and self[name] > 0 for name in names)


Points = Sequence[Point]


def points_of(rows: LabelledRows, baseline_mode: str, axis: str | None = None) -> list[Point]:
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
        values = dict(vars(row.result))
        x = row.number(axis)
        point = Point(
            case=row.curve(axis),
            axis=short_label(axis),
            x=int(x) if x.is_integer() else x,
            series=row.mode,
            rank=ranks[row.mode],
            is_baseline=is_baseline(row, baseline_mode),
            mark=why_marked(row.result),
            ratio_mark=marks.reason(row.result, "speedup"),
            values=values,
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

    def add_mode(self, points: Points, x: Sequence[Any], y: Sequence[Any], **settings: Any) -> None:
        """Add a trace for the points of one mode, in the mode's style and with one hover text per
        point.

        Symbols of marked results are open, or pale if the settings choose the symbol. Bars are not
        marked.
        """
        series = points[0].series
        style = style_of(series)
        is_marked = [point.mark is not None for point in points]
        kind = settings.pop("type", "scatter")
        marker = {"color": style.color} | settings.pop("marker", {})
        if kind == "scatter":
            settings.setdefault("mode", "markers")
            if any(is_marked) and "symbol" in marker:
                marker["opacity"] = [PALE if marked else 1.0 for marked in is_marked]
            open_symbols = [f"{style.symbol}{'-open' * marked}" for marked in is_marked]
            symbol = open_symbols if any(is_marked) else style.symbol
            marker = {"symbol": symbol, "size": 9} | marker
        trace = {
            "x": x,
            "y": y,
            "name": safe(series),
            "type": kind,
            "marker": marker,
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


def baselines(points: Iterable[Point]) -> dict[tuple[str, float], Point]:
    """Return place -> the baseline there."""
    bases: dict[tuple[str, float], Point] = {}
    for point in points:
        if point.is_baseline:
            bases.setdefault(point.place, point)
    return bases


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
        if name in INTERVALS:
            low, high = INTERVALS[name]
            interval = interval_text(name, point[low], point[high])
            line += f" (95 %: {interval})" if interval else ""
        lines.append(line)
    if point.mark is not None:
        lines.append(f"{SIGN} marked: {safe(short(point.mark, LONGEST_TEXT))}")
    return "<br>".join(lines)


def is_marked_figure(point: Point, name: str) -> bool:
    """Return whether the point is marked and a disturbance changes this column."""
    return point.mark is not None and name in METRICS and is_timed(name)


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
