"""Peak device memory by mode and batch size, and its trade-off with latency."""

from __future__ import annotations

import math
from itertools import groupby

import pandas as pd

from effbench.report.colors import style_of
from effbench.report.figures.base import GRAY, KEYS, Drawing, Figure, axis, by_series, log_axis

MIB = 2**20


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the `ok` results with a memory peak; empty on CPU."""
    columns = ["peak_reserved_bytes", "graph_pool_bytes", "peak_allocated_bytes", "relative_memory"]
    table = frame.loc[frame["status"] == "ok", [*KEYS, *columns]]
    return table.dropna(subset="peak_reserved_bytes").reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw bars grouped by batch size; the hatched part of a bar is the memory of graph pools."""
    sizes = [str(bs) for bs in sorted(table["bs"].unique().tolist())]
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis("batch size (samples)", type="category", categoryarray=sizes, showgrid=False),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    hatch = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}
    for series, rows in by_series(table):
        color, group = style_of(series).color, {"offsetgroup": f"mode {rows[0].series_rank}", "alignmentgroup": "all"}
        reserved = [row.peak_reserved_bytes / MIB for row in rows]
        pools = [0.0 if math.isnan(row.graph_pool_bytes) else row.graph_pool_bytes / MIB for row in rows]
        for heights, marker in ((reserved, {"color": color}), (pools, {"color": color, "pattern": hatch})):
            if any(heights):
                x = [str(row.bs) for row in rows]
                figure.add_mode(rows, x, heights, type="bar", marker=marker, **group)
    return figure


def pareto_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the `ok` results with a memory peak. `beaten`: another mode of this model and batch size is at least as
    good in both latency and memory, and better in one."""
    values = ["latency_ms", "peak_reserved_bytes"]
    table = frame.loc[(frame["status"] == "ok") & (frame[values] > 0).all(axis=1), [*KEYS, *values]]
    table = table.reset_index(drop=True)
    points: dict[tuple, list[tuple[float, float]]] = {}
    for case, bs, *pair in zip(*(table[name] for name in ("case", "bs", *values)), strict=True):
        points.setdefault((case, bs), []).append(tuple(pair))
    table["beaten"] = [
        is_beaten((row.latency_ms, row.peak_reserved_bytes), points[row.case, row.bs])
        for row in table.itertuples(index=False)
    ]
    return table


def is_beaten(pair: tuple[float, float], others: list[tuple[float, float]]) -> bool:
    """Return whether another (latency, memory) pair is no larger in both values and not equal."""
    return any(a <= pair[0] and b <= pair[1] and (a, b) != pair for a, b in others)


def pareto_draw(table: pd.DataFrame) -> Drawing:
    """Draw one mark per result, open if it is beaten, and a stepped line along each batch size's Pareto front."""
    figure = Drawing(
        320,
        xaxis=log_axis("latency (ms)", table["latency_ms"]),
        yaxis=log_axis("peak reserved memory (MiB)", table["peak_reserved_bytes"]),
    )
    front = sorted((row for row in table.itertuples(index=False) if not row.beaten),
                   key=lambda row: (row.bs, row.latency_ms))  # fmt: skip
    lines = [(bs, list(rows)) for bs, rows in groupby(front, key=lambda row: row.bs)]
    for place, (bs, rows) in enumerate(lines):
        # name only the first and last batch size: more names would overlap
        text = [f"bs {bs}"] if place in (0, len(lines) - 1) else []
        figure.add(
            x=[row.latency_ms for row in rows],
            y=[row.peak_reserved_bytes / MIB for row in rows],
            mode="lines+text",
            text=text,
            textposition="top center",
            textfont={"size": 10},
            line={"width": 1, "color": GRAY, "shape": "hv"},
            hoverinfo="skip",
        )
    for series, rows in by_series(table):
        symbol = style_of(series).symbol
        symbols = [f"{symbol}-open" if row.beaten else symbol for row in rows]
        x, y = [row.latency_ms for row in rows], [row.peak_reserved_bytes / MIB for row in rows]
        figure.add_mode(rows, x, y, marker={"symbol": symbols, "size": 9})
    return figure


ABSENT = "No device memory was recorded. Only ok results on CUDA have it."
MEMORY = Figure(
    name="memory",
    title="Memory",
    order=40,
    page="cost",
    caption="Peak reserved device memory in steady state. The hatched part of a bar is the memory of graph pools.",
    absent=ABSENT,
    data=data,
    draw=draw,
    small_multiples=True,
)
PARETO = Figure(
    name="pareto",
    title="Memory against latency",
    order=42,
    page="cost",
    caption="Lower left is better. A line joins the modes of one batch size that no other mode beats in both latency "
    "and memory. Open marks are beaten.",
    absent=ABSENT,
    data=pareto_data,
    draw=pareto_draw,
    small_multiples=True,
)
FIGURES = [MEMORY, PARETO]
