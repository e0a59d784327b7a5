"""Peak reserved device memory by mode and batch size, with the part that graph pools hold."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import KEYS, Drawing, Figure, axis, by_series, hover, safe

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


FIGURE = Figure(
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
