"""Peak device memory by mode and batch size, or another swept number."""

from __future__ import annotations

import math

import pandas as pd

from effbench.report.colors import style_of
from effbench.report.figures.base import KEYS, Drawing, Figure, axis, by_series, number_text, safe, x_title

MIB = 2**20


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the `ok` results with a memory peak; empty on CPU."""
    columns = ["peak_reserved_bytes", "peak_reserved_cold_bytes", "graph_pool_bytes", "peak_allocated_bytes"]
    table = frame.loc[frame["status"] == "ok", [*KEYS, *columns, "relative_memory"]]
    return table.dropna(subset="peak_reserved_bytes").reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw bars grouped by size, with graph pools hatched and lines that end at the peaks with a cold cache."""
    sizes = [number_text(x) for x in sorted(table["x"].unique().tolist())]
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis(safe(x_title(table, unit=True)), type="category", categoryarray=sizes, showgrid=False),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    hatch = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}
    for series, rows in by_series(table):
        color, group = style_of(series).color, {"offsetgroup": f"mode {rows[0].series_rank}", "alignmentgroup": "all"}
        reserved = [row.peak_reserved_bytes / MIB for row in rows]
        pools = [0.0 if math.isnan(row.graph_pool_bytes) else row.graph_pool_bytes / MIB for row in rows]
        colder = [max(0.0, row.peak_reserved_cold_bytes / MIB - warm) for row, warm in zip(rows, reserved, strict=True)]
        line = {"type": "data", "symmetric": False, "array": colder, "arrayminus": [0.0] * len(rows), "width": 3}
        for heights, marker in ((reserved, {"color": color}), (pools, {"color": color, "pattern": hatch})):
            if any(heights):
                x = [number_text(row.x) for row in rows]
                lines = {"error_y": line} if heights is reserved and any(colder) else {}
                figure.add_mode(rows, x, heights, type="bar", marker=marker, **group, **lines)
    return figure


FIGURE = Figure(
    name="memory",
    title="Memory",
    order=40,
    page="cost",
    caption="Peak reserved device memory in steady state, with a warm compile cache. A line above a bar ends at the "
    "peak of processes that compiled with an empty cache. The hatched part is the memory of graph pools.",
    absent="No device memory was recorded. Only ok results on CUDA have it.",
    data=data,
    draw=draw,
    small_multiples=True,
)
