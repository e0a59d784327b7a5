"""When a mode pays back: seconds of compiling against milliseconds saved a call."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures.base import KEYS, Drawing, Figure, hover, log_axis, of_baseline, scatter_marks


def data(frame: pd.DataFrame) -> pd.DataFrame:
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


def draw(table: pd.DataFrame) -> Drawing:
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
    scatter_marks(figure, saving, "compile_cold_s", "saved_ms", text)
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


def text(row: Any) -> str:
    calls = METRICS["break_even_calls"].format(row.break_even_calls)
    paid = "whether it pays back is not sure" if math.isnan(row.break_even_calls) else f"pays back after {calls}"
    cost = f"compiles {METRICS['compile_cold_s'].format(row.compile_cold_s)}, saves {row.saved_ms:.3g} ms a call"
    return hover(row, paid, cost)


FIGURE = Figure(
    name="break-even",
    title="When a mode pays back",
    order=45,
    page="cost",
    caption="Seconds of compiling with a cold cache against the milliseconds that each call is then quicker than the "
    "baseline. On a dotted line both weigh the same after so many calls; up and left pays back sooner. Results that "
    "save nothing never pay back: they are in the numbers.",
    absent="Nothing was compiled, or there is no baseline to save against.",
    data=data,
    draw=draw,
    numbers={"compile_cold_s": "compile, cold (s)", "saved_ms": "saved a call (ms)",
             "break_even_calls": "break-even (calls)", "latency_ms": "latency (ms)"},
    modes=True,
)  # fmt: skip
