"""Memory against latency: which modes are beaten in both by another, and which are a choice."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import Figure, by_series, column, hover, layout, log_axis, rows_of, safe
from effbench.report.figures.drawing import Drawing, scatter
from effbench.report.figures.memory import unit_of


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, latency_ms, peak_reserved_bytes, front. Only `ok` results on a GPU;
    `front`: no other mode of this model and batch size is at least as good in both and better in one."""
    columns = ["case", "bs", "series", "series_rank", "latency_ms", "peak_reserved_bytes"]
    out = frame.loc[(frame["status"] == "ok") & (frame["latency_ms"] > 0), columns]
    out = out[out["peak_reserved_bytes"] > 0].reset_index(drop=True)
    points: dict[tuple[str, int], list[int]] = {}
    for place, point in enumerate(zip(out["case"], out["bs"], strict=True)):
        points.setdefault(point, []).append(place)
    latencies, peaks = out["latency_ms"].tolist(), out["peak_reserved_bytes"].tolist()
    front = [False] * len(out)
    for places in points.values():
        beaten_by_none = on_front([latencies[place] for place in places], [peaks[place] for place in places])
        for place, best in zip(places, beaten_by_none, strict=True):
            front[place] = best
    out["front"] = pd.Series(front, index=out.index, dtype=bool)
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
    ends: list[tuple[int, float, float]] = []
    front = sorted((row for row in rows_of(table) if row.front), key=lambda row: (row.bs, row.latency_ms))
    for bs, group in groupby(front, key=lambda row: row.bs):
        part = list(group)
        xs, ys = column(part, "latency_ms"), [row.peak_reserved_bytes / size for row in part]
        figure.add_trace(
            scatter(
                x=xs, y=ys, mode="lines", hoverinfo="skip",
                line={"width": 1, "color": "rgba(128,136,146,0.8)", "shape": "hv"},
            )
        )  # fmt: skip
        ends.append((int(bs), xs[0], ys[0]))
    for sizes, x, y in labels(ends, table["latency_ms"], table["peak_reserved_bytes"] / size):
        figure.add_trace(
            scatter(
                x=[x], y=[y], mode="text", text=[f"bs {', '.join(map(str, sizes))}"], textposition="top center",
                textfont={"size": 10}, hoverinfo="skip", cliponaxis=False,
            )
        )  # fmt: skip
    for series, part in by_series(table):
        style = style_of(series)
        symbols = [style.symbol if row.front else f"{style.symbol}-open" for row in part]
        figure.add_trace(
            scatter(
                x=column(part, "latency_ms"), y=[row.peak_reserved_bytes / size for row in part], mode="markers",
                name=safe(series), marker={"symbol": symbols, "size": 9, "color": style.color},
                hovertext=[_hover(row) for row in part], hoverinfo="text", meta={"mode": series},
            )
        )  # fmt: skip
    return figure


def labels(
    ends: list[tuple[int, float, float]], xs: pd.Series, ys: pd.Series, near: float = 0.12
) -> list[tuple[list[int], float, float]]:
    """Batch sizes whose label would lie on another's share one. `ends`: (bs, x, y); `xs`, `ys`: all that is drawn;
    `near`: share of the (logarithmic) axis."""
    reach = [max(math.log(values.max() / values.min()), 0.1) for values in (xs, ys)]
    found: list[tuple[list[int], float, float]] = []
    for bs, x, y in ends:
        for sizes, other_x, other_y in found:
            apart = (abs(math.log(x / other_x)) / reach[0], abs(math.log(y / other_y)) / reach[1])
            if apart[0] < 2 * near and apart[1] < near:
                sizes.append(bs)
                break
        else:
            found.append(([bs], x, y))
    return found


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
