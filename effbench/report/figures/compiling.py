"""Compile time with a cold and a warm cache, and the number of calls after which it pays back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from effbench.report.colors import style_of
from effbench.report.figures.base import (
    GRAY,
    Drawing,
    Figure,
    Row,
    by_series,
    columns_of,
    is_positive,
    known,
    log_axis,
    mode_axis,
    with_baseline,
)


def data(rows: Sequence[Row]) -> list[Row]:
    """Return every result with a compile time, whatever its status."""
    columns = ("status", "compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls")
    return [columns_of(row, *columns) for row in rows if known([row], "compile_cold_s", "compile_warm_s")]


def draw(rows: Sequence[Row]) -> Drawing:
    """Draw one row per mode and one mark per size: filled with a cold cache, open with a warm one."""
    parts = by_series(rows)
    seconds = known(rows, "compile_cold_s", "compile_warm_s")
    figure = Drawing(90 + 30 * len(parts), xaxis=log_axis("compile time (s)", seconds))
    figure.layout["yaxis"] = mode_axis([name for name, _ in parts])
    for rank, (name, of_mode) in enumerate(parts):
        for column, suffix, offset in (("compile_cold_s", "", -0.14), ("compile_warm_s", "-open", 0.14)):
            shown = [row for row in of_mode if is_positive(row, column)]
            if shown:
                marker = {"symbol": f"{style_of(name).symbol}{suffix}", "size": 9}
                figure.add_mode(shown, known(shown, column), [rank + offset] * len(shown), marker=marker)
    return figure


def break_even_data(rows: Sequence[Row]) -> list[Row]:
    """Return the `ok` results that compiled and have a baseline; empty if none is faster than its baseline.

    `saved_ms`: the baseline's latency minus the result's latency, per call.
    """
    ok = [row for row in rows if row["status"] == "ok" and is_positive(row, "latency_ms")]
    compiled = [row for row in ok if not row["is_baseline"] and is_positive(row, "compile_cold_s")]
    found = [
        columns_of(row, "compile_cold_s", "break_even_calls", "latency_ms")
        | base
        | {"saved_ms": base["baseline_latency_ms"] - row["latency_ms"]}
        for row, base in with_baseline(ok, compiled, "latency_ms")
    ]
    return found if any(map(pays_back, found)) else []


def pays_back(row: Row) -> bool:
    """Return whether a result is significantly faster than its baseline."""
    return row["break_even_calls"] is not None and row["saved_ms"] > 0


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
    pad = max(0.06 * (high - low), 0.08, (0.6 - (high - low)) / 2)  # so that a line of `_equal_lines` crosses them
    return [low - pad, high + pad]


def _equal_lines(figure: Drawing, x_range: list[float], y_range: list[float]) -> None:
    """Draw lines of equal compile time ÷ saving, with the number of calls at their upper or right end."""
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
        figure.annotate(f"{10**power:,} calls", font={"size": 10}, **place)


COMPILE = Figure(
    name="compile",
    title="Compile time",
    order=50,
    page="cost",
    caption="Filled marks: empty compile cache. Open marks: cache filled by the same cell. Each size has its own "
    "mark; imports are not included.",
    absent="Nothing in this sweep was compiled.",
    data=data,
    draw=draw,
    small_multiples=True,
)
BREAK_EVEN = Figure(
    name="break-even",
    title="When a mode pays back",
    order=45,
    page="cost",
    caption="Marks further up and left pay back sooner. On a dotted line, compiling pays back after the number of "
    "calls at its end. Modes that are not faster than the baseline never pay back and are only in the numbers.",
    absent="Compiling is not known to pay back: nothing compiled is known to take significantly less time per call.",
    data=break_even_data,
    draw=break_even_draw,
)
FIGURES = [COMPILE, BREAK_EVEN]
