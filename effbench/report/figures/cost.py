"""Peak device memory, compile time with a cold and a warm cache, and the calls after which it pays
back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from effbench.printable import count
from effbench.report.colors import style_of
from effbench.report.figures.base import (
    GRAY,
    Drawing,
    Figure,
    Point,
    axis,
    baselines,
    by_series,
    known,
    log_axis,
    mode_axis,
    number_text,
    safe,
    small_axis,
    x_title,
)

MIB = 2**20
HATCH = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}


def memory_data(points: Sequence[Point]) -> list[Point]:
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


def memory_draw(points: Sequence[Point]) -> Drawing:
    """Draw bars grouped by size, with graph pools hatched and lines that end at the peaks with a
    cold cache."""
    sizes = [number_text(x) for x in sorted({point.x for point in points})]
    title = safe(x_title(points, unit=True))
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis(title, type="category", categoryarray=sizes, showgrid=False),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    for of_mode in by_series(points).values():
        x = [number_text(point.x) for point in of_mode]
        place = {"offsetgroup": f"mode {of_mode[0].rank}", "alignmentgroup": "all", "type": "bar"}
        reserved = _mebibytes(of_mode, "peak_reserved_bytes")
        if any(reserved):
            figure.add_mode(of_mode, x, reserved, **place, **_cold_lines(of_mode, reserved))
        pools = _mebibytes(of_mode, "graph_pool_bytes")
        if any(pools):
            figure.add_mode(of_mode, x, pools, **place, marker={"pattern": HATCH})
    return figure


def _mebibytes(points: Sequence[Point], name: str) -> list[float]:
    return [(point[name] or 0) / MIB for point in points]


def _cold_lines(points: Sequence[Point], reserved: Sequence[float]) -> dict[str, Any]:
    """Return lines from the bars up to the peaks with a cold cache; nothing without one."""
    cold = _mebibytes(points, "peak_reserved_cold_bytes")
    above = [max(0.0, high - warm) for high, warm in zip(cold, reserved, strict=True)]
    if not any(above):
        return {}
    below = [0.0] * len(above)
    line = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "width": 3}
    return {"error_y": line}


def compile_data(points: Sequence[Point]) -> list[Point]:
    """Return every result with a compile time, whatever its status."""
    columns = ("status", "compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls")
    return [
        point.with_columns(*columns)
        for point in points
        if known([point], "compile_cold_s", "compile_warm_s")
    ]


def compile_draw(points: Sequence[Point]) -> Drawing:
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


def break_even_data(points: Sequence[Point]) -> list[Point]:
    """Return the `ok` results that compiled and have a baseline; empty if none is faster than its
    baseline.

    `saved_ms`: the baseline's latency minus the result's latency, per call.
    """
    ok = [point for point in points if point.is_ok and point.are_positive("latency_ms")]
    bases = baselines(ok)
    drawn = []
    for point in ok:
        base = bases.get(point.place)
        if base is None or point.is_baseline or not point.are_positive("compile_cold_s"):
            continue
        shown = point.with_columns(
            "compile_cold_s",
            "break_even_calls",
            "latency_ms",
            baseline_latency_ms=base["latency_ms"],
            saved_ms=base["latency_ms"] - point["latency_ms"],
        )
        drawn.append(shown.with_ratio_mark())
    return drawn if any(map(pays_back, drawn)) else []


def pays_back(point: Point) -> bool:
    """Return whether a result is significantly faster than its baseline; nothing marked is known to
    be."""
    is_faster = point["break_even_calls"] is not None and point.are_positive("saved_ms")
    return is_faster and point.mark is None


def break_even_draw(points: Sequence[Point]) -> Drawing:
    """Draw the results that save time on logarithmic axes, with lines of equal break-even."""
    saving = [point for point in points if pays_back(point)]
    compile_s, saved_ms = known(saving, "compile_cold_s"), known(saving, "saved_ms")
    x_range, y_range = log_range(compile_s), log_range(saved_ms)
    figure = Drawing(
        400,
        xaxis=log_axis("compile time, cold cache (s)", compile_s, range=x_range),
        yaxis=log_axis("saved per call (ms)", saved_ms, range=y_range),
    )
    _draw_equal_lines(figure, x_range, y_range)
    for of_mode in by_series(saving).values():
        figure.add_mode(of_mode, known(of_mode, "compile_cold_s"), known(of_mode, "saved_ms"))
    return figure


def log_range(values: Sequence[float]) -> list[float]:
    """Return the ends of an axis for positive values, as decimal logarithms."""
    low, high = math.log10(min(values)), math.log10(max(values))
    # so that a line of `_draw_equal_lines` crosses them
    pad = max(0.06 * (high - low), 0.08, (0.6 - (high - low)) / 2)
    return [low - pad, high + pad]


def _draw_equal_lines(figure: Drawing, x_range: list[float], y_range: list[float]) -> None:
    """Draw lines of equal compile time ÷ saving, with the number of calls at their upper or right
    end."""
    line = {"width": 1, "dash": "dot", "color": GRAY}
    for power in range(12):
        shift = 3 - power  # log10 of ms saved per second of compile time at 10^power calls
        low = max(x_range[0], y_range[0] - shift)
        high = min(x_range[1], y_range[1] - shift)
        if low >= high:
            continue
        xs = [10**low, 10**high]
        ys = [x * 10**shift for x in xs]
        figure.add(x=xs, y=ys, mode="lines", hoverinfo="skip", line=line)
        figure.annotate(
            count(10**power, "call"),
            font={"size": 10},
            x=high,
            y=high + shift,
            xanchor="right",
            yanchor="top" if high < x_range[1] else "bottom",
        )


MEMORY = Figure(
    name="memory",
    title="Memory",
    order=40,
    caption=(
        "Peak reserved device memory in steady state, with a warm compile cache. A line above a bar"
        " ends at the peak of processes that compiled with an empty cache. The hatched part is the"
        " memory of graph pools."
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
BREAK_EVEN = Figure(
    name="break-even",
    title="When a mode pays back",
    order=45,
    caption=(
        "Marks further up and left pay back sooner. On a dotted line, compiling pays back after the"
        " number of calls at its end. Modes that are not significantly faster than the baseline"
        " (with one trial: not faster), and marked ones, are only in the numbers."
    ),
    absent=(
        "Compiling is not known to pay back: nothing compiled is known to take significantly less"
        " time per call."
    ),
    data=break_even_data,
    draw=break_even_draw,
)
FIGURES = [MEMORY, COMPILE, BREAK_EVEN]
