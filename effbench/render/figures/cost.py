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
    mode_axis,
    number_text,
    safe,
    small_axis,
    x_title,
)

MIB = 2**20
#: Bars of graph pools are hatched.
POOL = {
    "pattern": {
        "shape": "/",
        "size": 6,
        "solidity": 0.4,
        "fgcolor": "#ffffff",
        "fillmode": "overlay",
    }
}


MEMORY_COLUMNS = (
    "peak_reserved_bytes",
    "peak_reserved_cold_bytes",
    "graph_pool_bytes",
    "peak_allocated_bytes",
    "relative_memory",
)
COMPILE_COLUMNS = ("status", "compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls")


def memory_data(points: Points) -> list[Point]:
    """Return the `ok` results with a memory peak; empty on CPU."""
    return [point for point in points if point.is_ok and point["peak_reserved_bytes"] is not None]


def memory_draw(points: Points) -> Drawing:
    """Draw bars grouped by size, with graph pools hatched."""
    sizes = sorted({point.x for point in points})
    figure = Drawing(
        290,
        MEMORY_COLUMNS,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis(
            safe("".join(x_title(points))),
            type="category",
            categoryarray=[number_text(size) for size in sizes],
            showgrid=False,
        ),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    for of_mode in by_series(points).values():
        x = [number_text(point.x) for point in of_mode]
        place: Plotly = {"offsetgroup": f"mode {of_mode[0].rank}", "alignmentgroup": "all"}
        for column, marker in (("peak_reserved_bytes", {}), ("graph_pool_bytes", POOL)):
            sizes = [(point[column] or 0) / MIB for point in of_mode]
            if any(sizes):
                figure.add_mode(of_mode, x, sizes, "bar", marker, **place)
    return figure


def compile_data(points: Points) -> list[Point]:
    """Return every result with a compile time, whatever its status."""
    return [point for point in points if compile_times([point])]


def compile_times(points: Points) -> list[float]:
    """Return the known compile times, with a cold and with a warm cache."""
    times = []
    for point in points:
        times += [point["compile_cold_s"], point["compile_warm_s"]]
    return [time for time in times if time is not None]


def compile_draw(points: Points) -> Drawing:
    """Draw one row per mode and one mark per size: filled with a cold cache, open with a warm
    one."""
    modes = by_series(points)
    figure = Drawing(
        90 + 30 * len(modes),
        COMPILE_COLUMNS,
        xaxis=small_axis("compile time (s)", compile_times(points)),
        yaxis=mode_axis([*modes]),
    )
    for rank, (mode, of_mode) in enumerate(modes.items()):
        symbol = style_of(mode).symbol
        for column, name, offset in (
            ("compile_cold_s", symbol, -0.14),
            ("compile_warm_s", f"{symbol}-open", 0.14),
        ):
            shown = [point for point in of_mode if point[column]]
            if shown:
                seconds = [point[column] for point in shown]
                rows = [rank + offset] * len(shown)
                figure.add_mode(shown, seconds, rows, marker={"symbol": name})
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
