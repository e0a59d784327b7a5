"""Device memory: its peak by mode and batch size, with the part that graph pools hold; and against latency: which modes
are beaten in both by another, and which are a choice."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import (
    KEYS,
    Drawing,
    Figure,
    axis,
    by_series,
    column,
    hover,
    log_axis,
    rows_of,
    safe,
)

#: Labels that are nearer than this share of the (logarithmic) axis share one.
NEAR = 0.12
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, peak_reserved_bytes, graph_pool_bytes, peak_allocated_bytes, memory_ratio. Only `ok` results with
    a peak; none on CPU."""
    columns = ["peak_reserved_bytes", "graph_pool_bytes", "peak_allocated_bytes", "memory_ratio"]
    table = frame.loc[frame["status"] == "ok", [*KEYS, *columns]]
    return table.dropna(subset="peak_reserved_bytes").reset_index(drop=True)


def unit_of(largest: float) -> tuple[str, int]:
    """Return the binary unit in which `largest` bytes reads as at least 1."""
    return next(((name, size) for name, size in _UNITS if largest >= size), ("B", 1))


def draw(table: pd.DataFrame) -> Drawing:
    """Draw bars from zero, grouped by batch size; the hatched part of a bar is what graph pools hold of it."""
    unit, size = unit_of(table["peak_reserved_bytes"].max())
    sizes = [str(bs) for bs in sorted(table["bs"].unique().tolist())]
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis("batch size (samples)", type="category", categoryarray=sizes, showgrid=False),
        yaxis=axis(f"device memory ({unit})", rangemode="tozero"),
    )
    hatch = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}
    for series, part in by_series(table):
        color = style_of(series).color
        common = {
            "x": [str(row.bs) for row in part], "name": safe(series), "offsetgroup": f"mode {part[0].series_rank}",
            "alignmentgroup": "all", "hoverinfo": "text", "hovertext": [text(row) for row in part],
            "meta": {"mode": series},
        }  # fmt: skip
        figure.add("bar", y=[row.peak_reserved_bytes / size for row in part], marker={"color": color}, **common)
        pool = [0.0 if math.isnan(row.graph_pool_bytes) else row.graph_pool_bytes / size for row in part]
        if any(pool):
            figure.add("bar", y=pool, marker={"color": color, "pattern": hatch}, **common)
    return figure


def text(row: Any) -> str:
    peak, pool, allocated = (
        METRICS[name].format(getattr(row, name))
        for name in ("peak_reserved_bytes", "graph_pool_bytes", "peak_allocated_bytes")
    )
    return hover(row, f"{peak} peak reserved", f"graph pool {pool}", f"peak allocated {allocated}")


def pareto_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, latency_ms, peak_reserved_bytes, front. Only `ok` results on a GPU; `front`: no other mode of this
    model and batch size is at least as good in both and better in one."""
    table = frame.loc[
        (frame["status"] == "ok") & (frame["latency_ms"] > 0), [*KEYS, "latency_ms", "peak_reserved_bytes"]
    ]
    table = table[table["peak_reserved_bytes"] > 0].reset_index(drop=True)
    points: dict[tuple[str, int], list[int]] = {}
    for place, point in enumerate(zip(table["case"], table["bs"], strict=True)):
        points.setdefault(point, []).append(place)
    pairs = list(zip(table["latency_ms"], table["peak_reserved_bytes"], strict=True))
    front = [False] * len(table)
    for places in points.values():
        for place, best in zip(places, on_front([pairs[place] for place in places]), strict=True):
            front[place] = best
    table["front"] = pd.Series(front, index=table.index, dtype=bool)
    return table


def on_front(pairs: list[tuple[float, float]]) -> list[bool]:
    """Return for each pair whether none beats it: smaller is better in both."""
    return [not any(a <= x and b <= y and (a, b) != (x, y) for a, b in pairs) for x, y in pairs]


def pareto_draw(table: pd.DataFrame) -> Drawing:
    """Draw a mark for each mode and batch size, open if it is beaten; a stepped line along each batch size's front."""
    unit, size = unit_of(table["peak_reserved_bytes"].max())
    heights = table["peak_reserved_bytes"] / size
    figure = Drawing(
        320,
        xaxis=log_axis("latency (ms)", table["latency_ms"]),
        yaxis=log_axis(f"peak reserved memory ({unit})", heights),
    )
    ends: list[tuple[int, float, float]] = []
    front = sorted((row for row in rows_of(table) if row.front), key=lambda row: (row.bs, row.latency_ms))
    for bs, group in groupby(front, key=lambda row: row.bs):
        part = list(group)
        xs, ys = column(part, "latency_ms"), [row.peak_reserved_bytes / size for row in part]
        line = {"width": 1, "color": "rgba(128,136,146,0.8)", "shape": "hv"}
        figure.add(x=xs, y=ys, mode="lines", hoverinfo="skip", line=line)
        ends.append((int(bs), xs[0], ys[0]))
    for sizes, x, y in labels(ends, table["latency_ms"], heights):
        figure.add(x=[x], y=[y], mode="text", text=[f"bs {', '.join(map(str, sizes))}"], textposition="top center",
                   textfont={"size": 10}, hoverinfo="skip", cliponaxis=False)  # fmt: skip
    for series, part in by_series(table):
        symbol = style_of(series).symbol
        symbols = [symbol if row.front else f"{symbol}-open" for row in part]
        xs, ys = column(part, "latency_ms"), [row.peak_reserved_bytes / size for row in part]
        figure.add_marks(series, xs, ys, [pareto_text(row) for row in part], marker={"symbol": symbols})
    return figure


def labels(ends: list[tuple[int, float, float]], xs: pd.Series, ys: pd.Series) -> list[tuple[list[int], float, float]]:
    """Return labels as (batch sizes, x, y); those that would overlap share one.

    `ends`: (bs, x, y); `xs`, `ys`: everything that is drawn.
    """
    reach = [max(math.log(values.max() / values.min()), 0.1) for values in (xs, ys)]
    found: list[tuple[list[int], float, float]] = []
    for bs, x, y in ends:
        for sizes, other_x, other_y in found:
            apart = (abs(math.log(x / other_x)) / reach[0], abs(math.log(y / other_y)) / reach[1])
            if apart[0] < 2 * NEAR and apart[1] < NEAR:
                sizes.append(bs)
                break
        else:
            found.append(([bs], x, y))
    return found


def pareto_text(row: Any) -> str:
    latency, memory = (METRICS[name].format(getattr(row, name)) for name in ("latency_ms", "peak_reserved_bytes"))
    return hover(row, f"{latency}, {memory}", "" if row.front else "another mode is at least as good in both")


MEMORY = Figure(
    name="memory",
    title="Memory",
    order=40,
    caption="Peak reserved device memory in steady state, graph pools included; the hatched part of a bar is what the "
    "pools hold. A memory ratio above 1 is less memory than the baseline.",
    absent="No device memory was recorded: it exists for ok results on CUDA only.",
    data=data,
    draw=draw,
    page="cost",
    numbers={"peak_reserved_bytes": "peak reserved", "graph_pool_bytes": "graph pool",
             "peak_allocated_bytes": "peak allocated", "memory_ratio": "memory ratio (×)"},
    small_multiples=True,
)  # fmt: skip
PARETO = Figure(
    name="pareto",
    title="Memory against latency",
    order=42,
    page="cost",
    caption="Down and left is better. The line joins the modes of one batch size that no other mode beats in both; an "
    "open mark is beaten.",
    absent="No device memory was recorded: it exists for ok results on CUDA only.",
    data=pareto_data,
    draw=pareto_draw,
    numbers={"latency_ms": "latency (ms)", "peak_reserved_bytes": "peak reserved", "front": "beaten by none"},
    small_multiples=True,
)  # fmt: skip
FIGURES = [MEMORY, PARETO]
