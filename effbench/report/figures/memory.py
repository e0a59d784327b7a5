"""Peak reserved device memory by mode and batch size, with the part that graph pools hold."""

from __future__ import annotations

import math

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import Figure, axis, by_series, hover, layout, safe
from effbench.report.figures.drawing import Drawing, bar

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, peak_reserved_bytes, graph_pool_bytes, peak_allocated_bytes,
    memory_ratio. Only `ok` results with a peak; none on CPU.
    """
    columns = ["peak_reserved_bytes", "graph_pool_bytes", "peak_allocated_bytes", "memory_ratio"]
    out = frame.loc[frame["status"] == "ok", ["case", "bs", "series", "series_rank", *columns]]
    return out.dropna(subset="peak_reserved_bytes").reset_index(drop=True)


def unit_of(largest: float) -> tuple[str, int]:
    """The binary unit in which `largest` bytes reads as at least 1."""
    return next(((name, size) for name, size in _UNITS if largest >= size), ("B", 1))


def draw(table: pd.DataFrame) -> Drawing:
    """Bars from zero, grouped by batch size; the hatched part of a bar is what graph pools hold of it."""
    unit, size = unit_of(table["peak_reserved_bytes"].max())
    sizes = sorted(table["bs"].unique().tolist())
    x_of = {bs: str(bs) for bs in sizes}
    figure = Drawing(
        layout=layout(
            290,
            barmode="group",
            bargap=0.18,
            bargroupgap=0.06,
            xaxis=axis(
                "batch size (samples)", type="category", categoryarray=[x_of[bs] for bs in sizes], showgrid=False
            ),
            yaxis=axis(f"device memory ({unit})", rangemode="tozero"),
        )
    )
    for series, part in by_series(table):
        style = style_of(series)
        common = {
            "x": [x_of[row.bs] for row in part], "name": safe(series), "offsetgroup": f"mode {part[0].series_rank}",
            "alignmentgroup": "all", "hoverinfo": "text", "hovertext": [_hover(row) for row in part],
            "meta": {"mode": series},
        }  # fmt: skip
        peaks = [row.peak_reserved_bytes / size for row in part]
        figure.add_trace(bar(y=peaks, marker={"color": style.color}, **common))
        pool = [0.0 if math.isnan(row.graph_pool_bytes) else row.graph_pool_bytes / size for row in part]
        if any(pool):
            hatch = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}
            figure.add_trace(bar(y=pool, marker={"color": style.color, "pattern": hatch}, **common))
    return figure


def _hover(item) -> str:
    def text(name: str) -> str:
        return METRICS[name].format(getattr(item, name))

    return hover(
        f"<b>{text('peak_reserved_bytes')}</b> peak reserved · {safe(item.series)}",
        f"{safe(item.case)} · bs {item.bs}",
        f"graph pool {text('graph_pool_bytes')}",
        f"peak allocated {text('peak_allocated_bytes')}",
    )


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
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "peak_reserved_bytes": "peak reserved",
             "graph_pool_bytes": "graph pool", "peak_allocated_bytes": "peak allocated",
             "memory_ratio": "memory ratio (×)"},
    small_multiples=True,
)  # fmt: skip
