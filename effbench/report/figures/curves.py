"""Latency and throughput against the batch size, or another swept number: one figure per model, one line per mode;
dots for a single size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from effbench.report.colors import style_of
from effbench.report.figures.base import KEYS, Drawing, Figure, by_series, log_axis, mode_axis, point, x_axis
from effbench.report.tables import UNKNOWN


def latency_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per result; only `ok` results have figures."""
    figures = ["latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "period_ms", "throughput_per_s"]
    table = frame[[*KEYS, "status", *figures, "trials"]].copy()
    return only_ok(table, (frame["status"] == "ok") & (frame["latency_ms"] > 0), figures, *figures[1:3])


def throughput_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per result; only `ok` results have figures.

    The bounds follow from those of the period, or of the latency if there is no period.
    """
    table = frame[[*KEYS, "status", "throughput_per_s"]].copy()
    has_period = frame["period_ms"].notna()
    middle = frame["latency_ms"].where(~has_period, frame["period_ms"])
    for name, other in (("low", "high"), ("high", "low")):  # a longer period means less throughput
        bound = frame[f"latency_ci_{other}_ms"].where(~has_period, frame[f"period_ci_{other}_ms"])
        table[f"throughput_ci_{name}"] = frame["throughput_per_s"] * middle / bound
    table[["period_ms", "trials"]] = frame[["period_ms", "trials"]]
    shown = (frame["status"] == "ok") & (frame["throughput_per_s"] > 0)
    bounds = ["throughput_ci_low", "throughput_ci_high"]
    return only_ok(table, shown, ["throughput_per_s", *bounds, "period_ms"], *bounds)


def tail_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per result if the x axis is the rate of arrivals, else no row; only `ok` results have figures."""
    table = frame[[*KEYS, "status", "latency_p99_ms", "latency_ms", "trials"]].copy()
    shown = (frame["status"] == "ok") & (frame["axis"] == "stream.rate")
    table["latency_p99_ms"] = table["latency_p99_ms"].where(shown)
    return table if shown.any() else table.iloc[:0]


def only_ok(table: pd.DataFrame, shown: pd.Series, figures: list[str], low: str, high: str) -> pd.DataFrame:
    """Remove the figures of rows that are not `shown`, so that lines break there, and intervals too wide to draw.
    Return an empty table if no row is shown."""
    table[figures] = table[figures].where(shown)
    table[[low, high]] = table[[low, high]].mask(table[high] > UNKNOWN * table[low])
    return table if shown.any() else table.iloc[:0]


def draw(value: str, low: str, high: str, title: str, table: pd.DataFrame) -> Drawing:
    """Draw lines on logarithmic axes; for a single size, one row of dots per mode."""
    parts = by_series(table)
    if table["x"].nunique() == 1:
        figure = Drawing(90 + 26 * len(parts), yaxis=mode_axis([name for name, _ in parts]))
        figure.layout["xaxis"] = log_axis(f"{title}, {point(table.iloc[0])}", table[value])
        for rank, (_, rows) in enumerate(parts):
            bars = error_bars(rows, value, low, high)
            figure.add_mode(rows, plain(rows, value), [rank] * len(rows), error_x=bars)
        return figure
    figure = Drawing(290, xaxis=x_axis(table), yaxis=log_axis(title, table[value]))
    for series, rows in parts:
        style = style_of(series)
        line = {"color": style.color, "dash": style.dash, "width": 1.8}
        bars = error_bars(rows, value, low, high)
        sizes = [row.x for row in rows]
        figure.add_mode(rows, sizes, plain(rows, value), mode="lines+markers", line=line, error_y=bars)
    return figure


def plain(rows: Sequence[Any], name: str) -> list[float | None]:
    """Return the values of a column, with None for NaN: lines break there."""
    return [None if math.isnan(value) else value for value in (getattr(row, name) for row in rows)]


def error_bars(rows: Sequence[Any], value: str, low: str, high: str) -> dict[str, Any]:
    """Return Plotly's error bars; those of unknown bounds have no length."""

    def lengths(upper: str, lower: str) -> list[float]:
        differences = (getattr(row, upper) - getattr(row, lower) for row in rows)
        return [0.0 if math.isnan(length) else max(length, 0.0) for length in differences]

    more, less = lengths(high, value), lengths(value, low)
    looks = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "visible": any(more) or any(less)}
    return looks | {"array": more, "arrayminus": less}


LATENCY = Figure(
    name="latency",
    title="Latency against {axis}",
    order=30,
    caption="Latency of one request on logarithmic axes; bars are 95 % intervals across trials. Lines break at results "
    "that are not ok, which the page Failures lists.",
    absent="No ok result of this sweep has a latency.",
    data=latency_data,
    draw=partial(draw, "latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "latency (ms)"),
    small_multiples=True,
)
TAIL = Figure(
    name="tail",
    title="99th percentile latency against {axis}",
    order=31,
    caption="Requests arrive at random times, whether or not the server is busy. Lines end where it cannot keep up.",
    absent="",
    data=tail_data,
    draw=partial(draw, "latency_p99_ms", "latency_p99_ms", "latency_p99_ms", "99th percentile latency (ms)"),
    small_multiples=True,
)
THROUGHPUT = Figure(
    name="throughput",
    title="Throughput against {axis}",
    order=32,
    caption="The GPU is saturated where a line flattens. Samples per second with back-to-back calls, on logarithmic "
    "axes; bars are 95 % intervals.",
    absent="No ok result of this sweep has a throughput.",
    data=throughput_data,
    draw=partial(draw, "throughput_per_s", "throughput_ci_low", "throughput_ci_high", "throughput (samples/s)"),
    small_multiples=True,
)
FIGURES = [LATENCY, TAIL, THROUGHPUT]
