"""Peak device memory, and compile time with a cold and a warm cache."""

from __future__ import annotations

from effbench.render.colors import style_of
from effbench.render.figures.base import (
    Drawing,
    Figure,
    Plotly,
    Point,
    Points,
    axis,
    by_series,
    known,
    mode_axis,
    number_text,
    safe,
    small_axis,
    x_title,
)

MIB = 2**20
HATCH = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}


def memory_data(points: Points) -> list[Point]:
    """Return the `ok` results with a memory peak; empty on CPU."""
    columns = (
        "peak_reserved_bytes",
        "peak_reserved_cold_bytes",
        "graph_pool_bytes",
        "peak_allocated_bytes",
        "relative_memory",
    )
    return [
        point.with_columns(*columns)
        for point in points
        if point.is_ok and point["peak_reserved_bytes"] is not None
    ]


def memory_draw(points: Points) -> Drawing:
    """Draw bars grouped by size, with graph pools hatched."""
    sizes = sorted({point.x for point in points})
    title = safe(x_title(points, unit=True))
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis(
            title,
            type="category",
            categoryarray=[number_text(size) for size in sizes],
            showgrid=False,
        ),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    for of_mode in by_series(points).values():
        x = [number_text(point.x) for point in of_mode]
        place: Plotly = {"offsetgroup": f"mode {of_mode[0].rank}", "alignmentgroup": "all"}
        reserved = _mebibytes(of_mode, "peak_reserved_bytes")
        if any(reserved):
            figure.add_mode(of_mode, x, reserved, "bar", **place)
        pools = _mebibytes(of_mode, "graph_pool_bytes")
        if any(pools):
            figure.add_mode(of_mode, x, pools, "bar", **place, marker={"pattern": HATCH})
    return figure


def _mebibytes(points: Points, name: str) -> list[float]:
    return [(point[name] or 0) / MIB for point in points]


def compile_data(points: Points) -> list[Point]:
    """Return every result with a compile time, whatever its status."""
    columns = ("status", "compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls")
    return [
        point.with_columns(*columns)
        for point in points
        if known([point], "compile_cold_s", "compile_warm_s")
    ]


def compile_draw(points: Points) -> Drawing:
    """Draw one row per mode and one mark per size: filled with a cold cache, open with a warm
    one."""
    modes = by_series(points)
    seconds = known(points, "compile_cold_s", "compile_warm_s")
    figure = Drawing(90 + 30 * len(modes), xaxis=small_axis("compile time (s)", seconds))
    figure.layout["yaxis"] = mode_axis([*modes])
    for rank, (mode, of_mode) in enumerate(modes.items()):
        symbol = style_of(mode).symbol
        for column, name, offset in (
            ("compile_cold_s", symbol, -0.14),
            ("compile_warm_s", f"{symbol}-open", 0.14),
        ):
            shown = [point for point in of_mode if point.are_positive(column)]
            if shown:
                y = [rank + offset] * len(shown)
                marker = {"symbol": name, "size": 9}
                figure.add_mode(shown, known(shown, column), y, marker=marker)
    return figure


MEMORY = Figure(
    name="memory",
    title="Memory",
    order=40,
    caption=(
        "Peak reserved device memory in steady state, with a warm compile cache. The hatched part"
        " is the memory of graph pools."
    ),
    absent="No device memory was recorded. Only ok results on CUDA have it.",
    data=memory_data,
    draw=memory_draw,
    small_multiples=True,
)
COMPILE = Figure(
    name="compile",
    title="Compile time",
    order=50,
    caption=(
        "Filled marks: empty compile cache. Open marks: cache filled by the same cell. Each size"
        " has its own mark; imports are not included."
    ),
    absent="Nothing in this sweep was compiled.",
    data=compile_data,
    draw=compile_draw,
    small_multiples=True,
)
FIGURES = [MEMORY, COMPILE]
