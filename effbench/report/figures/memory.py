"""Peak reserved device memory by mode and batch size, with the part that graph pools hold."""

from __future__ import annotations

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import Figure, axis, hover, layout, safe
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
    for series, part in table.sort_values("series_rank", kind="stable").groupby("series", sort=False):
        style = style_of(str(series))
        x = [x_of[bs] for bs in part["bs"]]
        group = f"mode {part['series_rank'].iloc[0]}"
        common = {
            "x": x, "name": safe(series), "offsetgroup": group, "alignmentgroup": "all", "hoverinfo": "text",
            "hovertext": [_hover(item) for item in part.itertuples()], "meta": {"mode": str(series)},
        }  # fmt: skip
        figure.add_trace(bar(y=(part["peak_reserved_bytes"] / size).tolist(), marker={"color": style.color}, **common))
        pool = (part["graph_pool_bytes"].fillna(0) / size).tolist()
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
