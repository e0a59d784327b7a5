"""Compile time with a cold and a warm cache, and the number of calls after which it pays back."""

from __future__ import annotations

import math

import pandas as pd

from effbench.report.colors import style_of
from effbench.report.figures.base import (
    GRAY,
    KEYS,
    Drawing,
    Figure,
    by_series,
    log_axis,
    mode_axis,
    of_baseline,
)


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every result with a compile time, whatever its status."""
    columns = ["compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls"]
    table = frame[[*KEYS, "status", *columns]]
    return table.dropna(subset=["compile_cold_s", "compile_warm_s"], how="all").reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw one row per mode and one mark per size: filled with a cold cache, open with a warm one."""
    parts = by_series(table)
    figure = Drawing(
        90 + 30 * len(parts),
        xaxis=log_axis("compile time (s)", pd.concat([table["compile_cold_s"], table["compile_warm_s"]])),
    )
    figure.layout["yaxis"] = mode_axis([name for name, _ in parts])
    for rank, (name, rows) in enumerate(parts):
        for column, suffix, offset in (("compile_cold_s", "", -0.14), ("compile_warm_s", "-open", 0.14)):
            shown = [row for row in rows if getattr(row, column) > 0]
            if shown:
                seconds = [getattr(row, column) for row in shown]
                marker = {"symbol": f"{style_of(name).symbol}{suffix}", "size": 9}
                figure.add_mode(shown, seconds, [rank + offset] * len(shown), marker=marker)
    return figure


def break_even_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the `ok` results that compiled and have a baseline; empty if none is faster than its baseline.

    `saved_ms`: the baseline's latency minus the result's latency, per call.
    """
    ok = frame[(frame["status"] == "ok") & (frame["latency_ms"] > 0)]
    columns = [*KEYS, "compile_cold_s", "break_even_calls", "latency_ms"]
    others = ok.loc[~ok["is_baseline"] & (ok["compile_cold_s"] > 0), columns]
    table = others.merge(of_baseline(ok, ["latency_ms"]), how="inner", left_on=["case", "x"], right_index=True)
    table["saved_ms"] = table["baseline_latency_ms"] - table["latency_ms"]
    return table.reset_index(drop=True) if pays_back(table).any() else table.iloc[:0]


def pays_back(table: pd.DataFrame) -> pd.Series:
    """Return which results are significantly faster than their baseline."""
    return table["break_even_calls"].notna() & (table["saved_ms"] > 0)


def break_even_draw(table: pd.DataFrame) -> Drawing:
    """Draw the results that save time on logarithmic axes, with lines of equal break-even."""
    saving = table[pays_back(table)]
    x_range, y_range = log_range(saving["compile_cold_s"]), log_range(saving["saved_ms"])
    figure = Drawing(
        400,
        xaxis=log_axis("compile time, cold cache (s)", saving["compile_cold_s"], range=x_range),
        yaxis=log_axis("saved per call (ms)", saving["saved_ms"], range=y_range),
    )
    _equal_lines(figure, x_range, y_range)
    for _, rows in by_series(saving):
        figure.add_mode(rows, [row.compile_cold_s for row in rows], [row.saved_ms for row in rows])
    return figure


def log_range(values: pd.Series) -> list[float]:
    """Return the ends of an axis for positive values, as decimal logarithms."""
    low, high = math.log10(values.min()), math.log10(values.max())
    pad = max(0.06 * (high - low), 0.08)
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
    absent="No mode pays back: nothing was compiled, or no compiled result is significantly faster than the baseline.",
    data=break_even_data,
    draw=break_even_draw,
)
FIGURES = [COMPILE, BREAK_EVEN]
