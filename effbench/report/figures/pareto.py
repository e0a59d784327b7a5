"""Memory against latency: which modes are beaten in both by another, and which are a choice."""

from __future__ import annotations

from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import Figure, hover, layout, log_axis, safe
from effbench.report.figures.curves import by_series
from effbench.report.figures.drawing import Drawing, scatter
from effbench.report.figures.memory import unit_of


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, latency_ms, peak_reserved_bytes, front. Only `ok` results on a GPU;
    `front`: no other mode of this model and batch size is at least as good in both and better in one."""
    columns = ["case", "bs", "series", "series_rank", "latency_ms", "peak_reserved_bytes"]
    out = frame.loc[(frame["status"] == "ok") & (frame["latency_ms"] > 0), columns]
    out = out[out["peak_reserved_bytes"] > 0].reset_index(drop=True)
    out["front"] = False
    for _, part in out.groupby(["case", "bs"], sort=False):
        out.loc[part.index, "front"] = on_front(part["latency_ms"].tolist(), part["peak_reserved_bytes"].tolist())
    return out


def on_front(first: list[float], second: list[float]) -> list[bool]:
    """Whether each pair is beaten by none: smaller is better in both."""
    pairs = list(zip(first, second, strict=True))
    return [not any(a <= x and b <= y and (a, b) != (x, y) for a, b in pairs) for x, y in pairs]


def draw(table: pd.DataFrame) -> Drawing:
    """A mark for each mode and batch size, open where it is beaten; a stepped line along each batch size's front."""
    unit, size = unit_of(table["peak_reserved_bytes"].max())
    figure = Drawing(
        layout=layout(
            320,
            xaxis=log_axis("latency (ms)", table["latency_ms"]),
            yaxis=log_axis(f"peak reserved memory ({unit})", table["peak_reserved_bytes"] / size),
        )
    )
    for bs, part in table[table["front"]].groupby("bs"):
        part = part.sort_values("latency_ms")
        figure.add_trace(
            scatter(
                x=part["latency_ms"].tolist(), y=(part["peak_reserved_bytes"] / size).tolist(), mode="lines",
                line={"width": 1, "color": "rgba(128,136,146,0.8)", "shape": "hv"}, hoverinfo="skip",
            )
        )  # fmt: skip
        first = part.iloc[0]
        figure.add_trace(
            scatter(
                x=[first["latency_ms"]], y=[first["peak_reserved_bytes"] / size], mode="text", text=[f"bs {bs}  "],
                textposition="middle left", textfont={"size": 10}, hoverinfo="skip", cliponaxis=False,
            )
        )  # fmt: skip
    for series, part in by_series(table):
        style = style_of(series)
        symbols = [style.symbol if front else f"{style.symbol}-open" for front in part["front"]]
        figure.add_trace(
            scatter(
                x=part["latency_ms"].tolist(), y=(part["peak_reserved_bytes"] / size).tolist(), mode="markers",
                name=safe(series), marker={"symbol": symbols, "size": 9, "color": style.color},
                hovertext=[_hover(item) for item in part.itertuples()], hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip
    return figure


def _hover(item: Any) -> str:
    latency, memory = (METRICS[name].format(getattr(item, name)) for name in ("latency_ms", "peak_reserved_bytes"))
    return hover(
        f"<b>{latency}, {memory}</b> · {safe(item.series)}",
        f"{safe(item.case)} · bs {item.bs}",
        "" if item.front else "another mode is at least as good in both",
    )


FIGURE = Figure(
    name="pareto",
    title="Memory against latency",
    order=42,
    page="cost",
    caption="Down and left is better. The line joins the modes of one batch size that no other mode beats in both; an "
    "open mark is beaten.",
    absent="No device memory was recorded: it exists for ok results on CUDA only.",
    data=data,
    draw=draw,
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "latency_ms": "latency (ms)",
             "peak_reserved_bytes": "peak reserved", "front": "beaten by none"},
    small_multiples=True,
)  # fmt: skip
