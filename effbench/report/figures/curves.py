"""Curves over batch size, a line a mode, with the bands of their intervals; dots where there is one batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from effbench.report.colors import style_of
from effbench.report.figures.base import axis, bs_axis, by_series, column, layout, log_axis, safe, short
from effbench.report.figures.drawing import Drawing, scatter


@dataclass(frozen=True)
class Curve:
    """What is drawn against batch size: columns of the value and its bounds (NaN: none), the axis' title with its unit
    and the hover text of a row."""

    value: str
    low: str
    high: str
    title: str
    hover: Callable[[Any], str]


def draw(table: pd.DataFrame, curve: Curve) -> Drawing:
    """Log-log lines; with a single batch size one row of dots a mode. Columns besides those of the curve: bs, series,
    series_rank."""
    if table["bs"].nunique() == 1:
        return _dots(table, curve)
    shown = table.dropna(subset=curve.value)
    figure = Drawing(layout=layout(290))
    if shown.empty:
        return figure
    figure.update_layout(xaxis=bs_axis(table["bs"]), yaxis=log_axis(curve.title, _reach(shown, curve)))
    for series, part in by_series(table):
        style = style_of(series)
        for xs, ys in _bands(part, curve):
            figure.add_trace(
                scatter(
                    x=xs, y=ys, mode="lines", fill="toself", line={"width": 0}, fillcolor=_faint(style.color),
                    hoverinfo="skip", name=safe(series), meta={"mode": series},
                )
            )  # fmt: skip
        figure.add_trace(
            scatter(
                x=column(part, "bs"), y=_list(column(part, curve.value)), mode="lines+markers", name=safe(series),
                line={"color": style.color, "dash": style.dash, "width": 1.8},
                marker={"symbol": style.symbol, "size": 8}, hovertext=[curve.hover(item) for item in part],
                hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip
    return figure


def _dots(table: pd.DataFrame, curve: Curve) -> Drawing:
    shown = table.dropna(subset=curve.value)
    names = [name for name, _ in by_series(table)]
    figure = Drawing(layout=layout(90 + 26 * len(names)))
    if shown.empty:
        return figure
    figure.update_layout(
        xaxis=log_axis(f"{curve.title}, batch size {table['bs'].iloc[0]}", _reach(shown, curve)),
        yaxis=axis(
            "",
            tickvals=list(range(len(names))),
            ticktext=[safe(short(name, 18)) for name in names],
            range=[len(names) - 0.5, -0.5],
        ),
    )
    for rank, (series, part) in enumerate(by_series(table)):
        style = style_of(series)
        figure.add_trace(
            scatter(
                x=_list(column(part, curve.value)), y=[rank] * len(part), mode="markers", name=safe(series),
                marker={"symbol": style.symbol, "size": 10, "color": style.color}, error_x=_bars(part, curve),
                hovertext=[curve.hover(item) for item in part], hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip
    return figure


def add_marks(figure: Drawing, table: pd.DataFrame, x: str, y: str, hover: Callable[[Any], str]) -> None:
    """A mark for each row at its columns `x` and `y`, by mode."""
    for series, part in by_series(table):
        style = style_of(series)
        figure.add_trace(
            scatter(
                x=_rounded(part, x), y=_rounded(part, y), mode="markers", name=safe(series),
                marker={"symbol": style.symbol, "size": 9, "color": style.color, "opacity": 0.85},
                hovertext=[hover(item) for item in part], hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip


def _rounded(part: Sequence[Any], name: str) -> list[float]:
    """Far finer than a screen, and half as long in a file of thousands."""
    return [float(f"{value:.6g}") for value in column(part, name)]


def _bands(part: Sequence[Any], curve: Curve) -> list[tuple[list[float], list[float]]]:
    """A closed outline for each run of neighbours that have bounds; a point alone has a whisker's width."""
    runs: list[list[tuple[float, float, float]]] = [[]]
    for row in part:
        bs, value, low, high = row.bs, getattr(row, curve.value), getattr(row, curve.low), getattr(row, curve.high)
        if any(math.isnan(item) for item in (value, low, high)):
            runs.append([])
        else:
            runs[-1].append((float(bs), float(low), float(high)))
    outlines = []
    for run in filter(None, runs):
        points = run if len(run) > 1 else [(run[0][0] * 0.97, *run[0][1:]), (run[0][0] * 1.03, *run[0][1:])]
        xs = [x for x, _, _ in points]
        outlines.append(
            ([*xs, *xs[::-1], xs[0]], [*(h for *_, h in points), *(low for _, low, _ in points[::-1]), points[0][2]])
        )
    return outlines


def _bars(part: Sequence[Any], curve: Curve) -> dict[str, Any]:
    values = column(part, curve.value)
    up = [high - value for high, value in zip(column(part, curve.high), values, strict=True)]
    down = [value - low for low, value in zip(column(part, curve.low), values, strict=True)]
    arrays = {"array": _lengths(up), "arrayminus": _lengths(down)}
    visible = not all(map(math.isnan, up))
    return {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4, "visible": visible} | arrays


def _lengths(values: Sequence[float]) -> list[float]:
    """Of error bars: none where the bound is not known."""
    return [0.0 if math.isnan(value) else max(value, 0.0) for value in values]


def _reach(shown: pd.DataFrame, curve: Curve) -> pd.Series:
    return pd.concat([shown[curve.value], shown[curve.low], shown[curve.high]]).dropna()


def _faint(color: str) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.12)"


def _list(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]
