"""Peak device memory, compile time with a cold and a warm cache, and the calls after which it pays
back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from effbench.printable import count
from effbench.report.colors import style_of
from effbench.report.figures.base import (
    GRAY,
    Drawing,
    Figure,
    Row,
    axis,
    by_series,
    columns_of,
    is_positive,
    known,
    log_axis,
    mode_axis,
    number_text,
    safe,
    with_baseline,
    x_title,
)

MIB = 2**20


def memory_data(rows: Sequence[Row]) -> list[Row]:
    """Return the `ok` results with a memory peak; empty on CPU."""
    columns = (
        "peak_reserved_bytes",
        "peak_reserved_cold_bytes",
        "graph_pool_bytes",
        "peak_allocated_bytes",
    )
    ok = [row for row in rows if row["status"] == "ok" and row["peak_reserved_bytes"] is not None]
    return [columns_of(row, *columns, "relative_memory") for row in ok]


def memory_draw(rows: Sequence[Row]) -> Drawing:
    """Draw bars grouped by size, with graph pools hatched and lines that end at the peaks with a
    cold cache."""
    sizes = [number_text(x) for x in sorted({row["x"] for row in rows})]
    figure = Drawing(
        290,
        barmode="group",
        bargap=0.18,
        bargroupgap=0.06,
        xaxis=axis(
            safe(x_title(rows, unit=True)), type="category", categoryarray=sizes, showgrid=False
        ),
        yaxis=axis("device memory (MiB)", rangemode="tozero", tickformat=","),
    )
    hatch = {"shape": "/", "size": 6, "solidity": 0.4, "fgcolor": "#ffffff", "fillmode": "overlay"}
    for series, of_mode in by_series(rows):
        rank = of_mode[0]["series_rank"]
        color, group = (
            style_of(series).color,
            {"offsetgroup": f"mode {rank}", "alignmentgroup": "all"},
        )
        reserved, pools, cold = (
            [(row[name] or 0) / MIB for row in of_mode]
            for name in ("peak_reserved_bytes", "graph_pool_bytes", "peak_reserved_cold_bytes")
        )
        colder = [max(0.0, high - warm) for high, warm in zip(cold, reserved, strict=True)]
        line = {
            "type": "data",
            "symmetric": False,
            "array": colder,
            "arrayminus": [0.0] * len(of_mode),
            "width": 3,
        }
        for heights, marker in (
            (reserved, {"color": color}),
            (pools, {"color": color, "pattern": hatch}),
        ):
            if any(heights):
                x = [number_text(row["x"]) for row in of_mode]
                lines = {"error_y": line} if heights is reserved and any(colder) else {}
                figure.add_mode(of_mode, x, heights, type="bar", marker=marker, **group, **lines)
    return figure


def compile_data(rows: Sequence[Row]) -> list[Row]:
    """Return every result with a compile time, whatever its status."""
    columns = ("status", "compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls")
    return [
        columns_of(row, *columns)
        for row in rows
        if known([row], "compile_cold_s", "compile_warm_s")
    ]


def compile_draw(rows: Sequence[Row]) -> Drawing:
    """Draw one row per mode and one mark per size: filled with a cold cache, open with a warm
    one."""
    parts = by_series(rows)
    seconds = known(rows, "compile_cold_s", "compile_warm_s")
    figure = Drawing(90 + 30 * len(parts), xaxis=log_axis("compile time (s)", seconds, narrow=True))
    figure.layout["yaxis"] = mode_axis([name for name, _ in parts])
    for rank, (name, of_mode) in enumerate(parts):
        for column, suffix, offset in (
            ("compile_cold_s", "", -0.14),
            ("compile_warm_s", "-open", 0.14),
        ):
            shown = [row for row in of_mode if is_positive(row, column)]
            if shown:
                marker = {"symbol": f"{style_of(name).symbol}{suffix}", "size": 9}
                figure.add_mode(
                    shown, known(shown, column), [rank + offset] * len(shown), marker=marker
                )
    return figure


def break_even_data(rows: Sequence[Row]) -> list[Row]:
    """Return the `ok` results that compiled and have a baseline; empty if none is faster than its
    baseline.

    `saved_ms`: the baseline's latency minus the result's latency, per call.
    """
    ok = [row for row in rows if row["status"] == "ok" and is_positive(row, "latency_ms")]
    compiled = [row for row in ok if not row["is_baseline"] and is_positive(row, "compile_cold_s")]
    found = [
        columns_of(row, "compile_cold_s", "break_even_calls", "latency_ms")
        | base
        | {"saved_ms": base["baseline_latency_ms"] - row["latency_ms"], "mark": row["ratio_mark"]}
        for row, base in with_baseline(ok, compiled, "latency_ms")
    ]
    return found if any(map(pays_back, found)) else []


def pays_back(row: Row) -> bool:
    """Return whether a result is significantly faster than its baseline; nothing marked is known to
    be."""
    return row["break_even_calls"] is not None and row["saved_ms"] > 0 and row["mark"] is None


def break_even_draw(rows: Sequence[Row]) -> Drawing:
    """Draw the results that save time on logarithmic axes, with lines of equal break-even."""
    saving = [row for row in rows if pays_back(row)]
    compile_s, saved_ms = known(saving, "compile_cold_s"), known(saving, "saved_ms")
    x_range, y_range = log_range(compile_s), log_range(saved_ms)
    figure = Drawing(
        400,
        xaxis=log_axis("compile time, cold cache (s)", compile_s, range=x_range),
        yaxis=log_axis("saved per call (ms)", saved_ms, range=y_range),
    )
    _equal_lines(figure, x_range, y_range)
    for _, of_mode in by_series(saving):
        figure.add_mode(of_mode, known(of_mode, "compile_cold_s"), known(of_mode, "saved_ms"))
    return figure


def log_range(values: Sequence[float]) -> list[float]:
    """Return the ends of an axis for positive values, as decimal logarithms."""
    low, high = math.log10(min(values)), math.log10(max(values))
    # so that a line of `_equal_lines` crosses them
    pad = max(0.06 * (high - low), 0.08, (0.6 - (high - low)) / 2)
    return [low - pad, high + pad]


def _equal_lines(figure: Drawing, x_range: list[float], y_range: list[float]) -> None:
    """Draw lines of equal compile time ÷ saving, with the number of calls at their upper or right
    end."""
    for power in range(0, 12):
        shift = 3 - power  # log10 of ms saved per second of compile time at 10^power calls
        low, high = max(x_range[0], y_range[0] - shift), min(x_range[1], y_range[1] - shift)
        if low >= high:
            continue
        xs = [10**low, 10**high]
        line = {"width": 1, "dash": "dot", "color": GRAY}
        figure.add(x=xs, y=[x * 10**shift for x in xs], mode="lines", hoverinfo="skip", line=line)
        below = "top" if high < x_range[1] else "bottom"
        place = {"x": high, "y": high + shift, "xanchor": "right", "yanchor": below}
        figure.annotate(count(10**power, "call"), font={"size": 10}, **place)


MEMORY = Figure(
    name="memory",
    title="Memory",
    order=40,
    page="cost",
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
    page="cost",
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
    page="cost",
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
