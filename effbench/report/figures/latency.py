"""Latency against batch size, a line a mode, with 95 % intervals; one small figure a model."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import Figure, axis, bs_axis, hover, layout, log_axis, safe, short
from effbench.report.speedup_table import UNKNOWN


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, latency_ms, latency_ci_low_ms, latency_ci_high_ms, period_ms,
    throughput_per_s, trials. One row a result; figures only where it is `ok`, else missing, so that lines break there.
    """
    figures = ["latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "period_ms", "throughput_per_s"]
    out = frame[["case", "bs", "series", "series_rank", "status", *figures, "trials"]].copy()
    shown = (out["status"] == "ok") & (out["latency_ms"] > 0)
    out[figures] = out[figures].where(shown)
    bounds = ["latency_ci_low_ms", "latency_ci_high_ms"]
    unknown = out["latency_ci_high_ms"] > UNKNOWN * out["latency_ci_low_ms"]
    out[bounds] = out[bounds].mask(unknown)  # such a bar would hide all others
    return out if shown.any() else out.iloc[:0]


def draw(table: pd.DataFrame) -> go.Figure:
    """Log-log lines over batch size; with a single batch size, one row of dots a mode."""
    if table["bs"].nunique() == 1:
        return _dots(table)
    shown = table.dropna(subset="latency_ms")
    figure = go.Figure(layout=layout(290))
    if shown.empty:
        return figure
    reach = pd.concat([shown["latency_ms"], shown["latency_ci_low_ms"], shown["latency_ci_high_ms"]]).dropna()
    figure.update_layout(xaxis=bs_axis(table["bs"]), yaxis=log_axis("latency (ms)", reach))
    for series, part in _by_series(table):
        style = style_of(series)
        figure.add_trace(
            go.Scatter(
                x=part["bs"].tolist(), y=_list(part["latency_ms"]), mode="lines+markers", name=safe(series),
                line={"color": style.color, "dash": style.dash, "width": 1.8},
                marker={"symbol": style.symbol, "size": 8}, error_y=_bars(part),
                hovertext=[_hover(item) for item in part.itertuples()], hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip
    return figure


def _dots(table: pd.DataFrame) -> go.Figure:
    shown = table.dropna(subset="latency_ms")
    names = [name for name, _ in _by_series(table)]
    figure = go.Figure(layout=layout(90 + 26 * len(names)))
    if shown.empty:
        return figure
    reach = pd.concat([shown["latency_ms"], shown["latency_ci_low_ms"], shown["latency_ci_high_ms"]]).dropna()
    ticks = [safe(short(name, 18)) for name in names]
    title = f"latency at batch size {table['bs'].iloc[0]} (ms)"
    figure.update_layout(
        xaxis=log_axis(title, reach),
        yaxis=axis("", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5]),
    )
    for rank, (series, part) in enumerate(_by_series(table)):
        style = style_of(series)
        figure.add_trace(
            go.Scatter(
                x=_list(part["latency_ms"]), y=[rank] * len(part), mode="markers", name=safe(series),
                marker={"symbol": style.symbol, "size": 10, "color": style.color}, error_x=_bars(part),
                hovertext=[_hover(item) for item in part.itertuples()], hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip
    return figure


def _by_series(table: pd.DataFrame):
    ordered = table.sort_values(["series_rank", "bs"], kind="stable")
    return [(str(name), part) for name, part in ordered.groupby("series", sort=False)]


def _list(values: pd.Series) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _bars(part: pd.DataFrame) -> dict:
    up, down = part["latency_ci_high_ms"] - part["latency_ms"], part["latency_ms"] - part["latency_ci_low_ms"]
    arrays = {"array": up.fillna(0).clip(lower=0).tolist(), "arrayminus": down.fillna(0).clip(lower=0).tolist()}
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1.2,
        "width": 4,
        "visible": bool(up.notna().any()),
    } | arrays


def _hover(item) -> str:
    metric = METRICS["latency_ms"]
    lines = [f"<b>{metric.format(item.latency_ms)}</b> · {safe(item.series)}", f"{safe(item.case)} · bs {item.bs}"]
    if not math.isnan(item.latency_ci_low_ms):
        lines.append(f"95 % interval {item.latency_ci_low_ms:.4g}–{item.latency_ci_high_ms:.4g} ms")
    if not math.isnan(item.throughput_per_s):
        lines.append(METRICS["throughput_per_s"].format(item.throughput_per_s))
    return hover(*lines)


FIGURE = Figure(
    name="latency",
    title="Latency against batch size",
    order=30,
    caption="What one request sees, in milliseconds, on logarithmic axes; bars are 95 % intervals across trials. "
    "A line that breaks has no ok result there: see the failures.",
    absent="No result of this sweep has an ok latency.",
    data=data,
    draw=draw,
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "latency_ms": "latency (ms)",
             "latency_ci_low_ms": "95 % low (ms)", "latency_ci_high_ms": "95 % high (ms)", "period_ms": "period (ms)",
             "throughput_per_s": "throughput (samples/s)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
