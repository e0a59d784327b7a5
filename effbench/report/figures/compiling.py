"""What a mode costs before its first useful call, compile seconds with a cold and with a warm cache; and when it pays
that back, seconds of compiling against milliseconds saved a call."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import (
    KEYS,
    Drawing,
    Figure,
    by_series,
    column,
    hover,
    log_axis,
    mode_axis,
    of_baseline,
    safe,
    scatter_marks,
)

#: Column, name of the cache, suffix of the symbol, offset from the row.
_CACHES = (("compile_cold_s", "cold cache", "", -0.14), ("compile_warm_s", "warm cache", "-open", 0.14))


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, status, compile_cold_s, compile_warm_s, first_call_s, break_even_calls.

    Every result that compiled, degraded and failed ones too: their seconds were spent all the same.
    """
    columns = ["compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls"]
    table = frame[[*KEYS, "status", *columns]]
    return table.dropna(subset=["compile_cold_s", "compile_warm_s"], how="all").reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw one row a mode, one dot a batch size: filled with a cold cache, open with a warm one."""
    parts = by_series(table)
    seconds = pd.concat([table["compile_cold_s"], table["compile_warm_s"]]).dropna()
    figure = Drawing(90 + 30 * len(parts))
    if not (seconds > 0).any():
        return figure
    figure.layout["xaxis"] = log_axis("compile time (s)", seconds)
    figure.layout["yaxis"] = mode_axis([name for name, _ in parts])
    for rank, (name, rows) in enumerate(parts):
        style = style_of(name)
        for shown, cache, suffix, offset in _CACHES:
            part = [row for row in rows if getattr(row, shown) > 0]
            if not part:
                continue
            texts = [
                hover(row, METRICS[shown].format(getattr(row, shown)), cache,
                      "" if row.status == "ok" else f"status {safe(row.status)}")
                for row in part
            ]  # fmt: skip
            marker = {"symbol": f"{style.symbol}{suffix}", "line": {"width": 1.6, "color": style.color}}
            figure.add_marks(name, column(part, shown), [rank + offset] * len(part), texts, marker=marker)
    return figure


def break_even_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, compile_cold_s, saved_ms, break_even_calls, latency_ms.

    `saved_ms`: the baseline's latency - this one, a call. A row for each `ok` result that compiled and has a baseline,
    also if nothing is saved.
    """
    ok = frame[(frame["status"] == "ok") & (frame["latency_ms"] > 0)]
    base = of_baseline(ok, ["latency_ms"]).rename(columns={"latency_ms": "baseline_ms"})
    columns = [*KEYS, "compile_cold_s", "break_even_calls", "latency_ms"]
    others = ok.loc[~ok["is_baseline"] & (ok["compile_cold_s"] > 0), columns]
    table = others.merge(base, how="inner", left_on=["case", "bs"], right_index=True)
    table["saved_ms"] = table["baseline_ms"] - table["latency_ms"]
    return table.reset_index(drop=True)


def break_even_draw(table: pd.DataFrame) -> Drawing:
    """Draw marks on logarithmic axes, and lines of equal break-even. Results that save nothing are only in the table of
    numbers."""
    saving = table[table["saved_ms"] > 0]
    figure = Drawing(400)
    if saving.empty:
        nothing = "no compiled result is faster than its baseline: none pays back"
        figure.annotate(nothing, xref="paper", yref="paper", x=0.5, y=0.5)
        return figure
    x_axis = log_axis("compile time, cold cache (s)", saving["compile_cold_s"])
    y_axis = log_axis("saved a call (ms)", saving["saved_ms"])
    figure.layout |= {"xaxis": x_axis, "yaxis": y_axis}
    _equal_lines(figure, x_axis["range"], y_axis["range"])
    scatter_marks(figure, saving, "compile_cold_s", "saved_ms", break_even_text)
    return figure


def _equal_lines(figure: Drawing, x_range: list[float], y_range: list[float]) -> None:
    """Lines on which seconds ÷ saving are the same number of calls, with that number at the upper or right end."""
    for power in range(0, 12):
        shift = 3 - power  # log10 of ms a second at 10^power calls
        low, high = max(x_range[0], y_range[0] - shift), min(x_range[1], y_range[1] - shift)
        if low >= high:
            continue
        xs = [10**low, 10**high]
        line = {"width": 1, "dash": "dot", "color": "rgba(128,136,146,0.7)"}
        figure.add(x=xs, y=[x * 10**shift for x in xs], mode="lines", hoverinfo="skip", line=line)
        calls = f"{10**power:,} calls" if power < 5 else f"10<sup>{power}</sup> calls"
        at_top = high < x_range[1]
        place = {"xanchor": "left", "yanchor": "top"} if at_top else {"xanchor": "right", "yanchor": "bottom"}
        figure.annotate(calls, x=high, y=high + shift, font={"size": 10}, **place)


def break_even_text(row: Any) -> str:
    calls = METRICS["break_even_calls"].format(row.break_even_calls)
    paid = "whether it pays back is not sure" if math.isnan(row.break_even_calls) else f"pays back after {calls}"
    cost = f"compiles {METRICS['compile_cold_s'].format(row.compile_cold_s)}, saves {row.saved_ms:.3g} ms a call"
    return hover(row, paid, cost)


COMPILE = Figure(
    name="compile",
    title="Compile time",
    order=50,
    caption="Seconds from handing the module over to the last preparing call, imports excluded; a dot a batch size, "
    "filled with an empty compile cache, open with the cell's own cache filled.",
    absent="Nothing in this sweep was compiled, or no compile time was recorded.",
    data=data,
    draw=draw,
    page="cost",
    numbers={"status": "status", "compile_cold_s": "cold (s)", "compile_warm_s": "warm (s)",
             "first_call_s": "first output (s)", "break_even_calls": "break-even (calls)"},
    small_multiples=True,
)  # fmt: skip
BREAK_EVEN = Figure(
    name="break-even",
    title="When a mode pays back",
    order=45,
    page="cost",
    caption="Seconds of compiling with a cold cache against the milliseconds that each call is then quicker than the "
    "baseline. On a dotted line both weigh the same after so many calls; up and left pays back sooner. Results that "
    "save nothing never pay back: they are in the numbers.",
    absent="Nothing was compiled, or there is no baseline to save against.",
    data=break_even_data,
    draw=break_even_draw,
    numbers={"compile_cold_s": "compile, cold (s)", "saved_ms": "saved a call (ms)",
             "break_even_calls": "break-even (calls)", "latency_ms": "latency (ms)"},
    modes=True,
)  # fmt: skip
FIGURES = [COMPILE, BREAK_EVEN]
