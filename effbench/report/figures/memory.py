"""Peak device memory by mode and batch size, or another swept number."""

from __future__ import annotations

from collections.abc import Sequence

from effbench.report.colors import style_of
from effbench.report.figures.base import Drawing, Figure, Row, axis, by_series, columns_of, number_text, safe, x_title

MIB = 2**20


def data(rows: Sequence[Row]) -> list[Row]:
    """Return the `ok` results with a memory peak; empty on CPU."""
    columns = ("peak_reserved_bytes", "peak_reserved_cold_bytes", "graph_pool_bytes", "peak_allocated_bytes")
    ok = [row for row in rows if row["status"] == "ok" and row["peak_reserved_bytes"] is not None]
    return [columns_of(row, *columns, "relative_memory") for row in ok]


def draw(rows: Sequence[Row]) -> Drawing:
    """Draw bars grouped by size, with graph pools hatched and lines that end at the peaks with a cold cache."""
    sizes = [number_text(x) for x in sorted({row["x"] for row in rows})]
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis(safe(x_title(rows, unit=True)), type="category", categoryarray=sizes, showgrid=False),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    hatch = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}
    for series, of_mode in by_series(rows):
        rank = of_mode[0]["series_rank"]
        color, group = style_of(series).color, {"offsetgroup": f"mode {rank}", "alignmentgroup": "all"}
        reserved, pools, cold = (
            [(row[name] or 0) / MIB for row in of_mode]
            for name in ("peak_reserved_bytes", "graph_pool_bytes", "peak_reserved_cold_bytes")
        )
        colder = [max(0.0, high - warm) for high, warm in zip(cold, reserved, strict=True)]
        line = {"type": "data", "symmetric": False, "array": colder, "arrayminus": [0.0] * len(of_mode), "width": 3}
        for heights, marker in ((reserved, {"color": color}), (pools, {"color": color, "pattern": hatch})):
            if any(heights):
                x = [number_text(row["x"]) for row in of_mode]
                lines = {"error_y": line} if heights is reserved and any(colder) else {}
                figure.add_mode(of_mode, x, heights, type="bar", marker=marker, **group, **lines)
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
