"""When a mode pays back: seconds of compiling against milliseconds saved a call."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures.base import Figure, hover, layout, log_axis, safe
from effbench.report.figures.curves import add_marks
from effbench.report.figures.drawing import Drawing, scatter


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, compile_cold_s, saved_ms, break_even_calls, latency_ms.

    `saved_ms`: the baseline's latency - this one, a call. A row for each `ok` result that compiled and has a baseline,
    also where nothing is saved.
    """
    ok = frame[(frame["status"] == "ok") & (frame["latency_ms"] > 0)]
    base = ok[ok["is_baseline"]].drop_duplicates(["case", "bs"]).set_index(["case", "bs"])["latency_ms"]
    columns = ["case", "bs", "series", "series_rank", "compile_cold_s", "break_even_calls", "latency_ms"]
    others = ok.loc[~ok["is_baseline"] & (ok["compile_cold_s"] > 0), columns]
    out = others.merge(base.rename("baseline_ms"), how="inner", left_on=["case", "bs"], right_index=True)
    out["saved_ms"] = out["baseline_ms"] - out["latency_ms"]
    return out.reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Both axes logarithmic; lines of equal break-even. What saves nothing is in the table of numbers only."""
    saving = table[table["saved_ms"] > 0]
    figure = Drawing(layout=layout(400))
    if saving.empty:
        text = "no compiled result is faster than its baseline: none pays back"
        figure.add_annotation(text=text, showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
        return figure
    x_axis = log_axis("compile time, cold cache (s)", saving["compile_cold_s"])
    y_axis = log_axis("saved a call (ms)", saving["saved_ms"])
    figure.update_layout(xaxis=x_axis, yaxis=y_axis)
    _equal_lines(figure, x_axis["range"], y_axis["range"])
    add_marks(figure, saving, "compile_cold_s", "saved_ms", _hover)
    return figure


def _equal_lines(figure: Drawing, x_range: list[float], y_range: list[float]) -> None:
    """Where seconds ÷ saving are the same number of calls, with that number at the upper or right end."""
    for power in range(0, 12):
        shift = 3 - power  # log10 of ms a second at 10^power calls
        low, high = max(x_range[0], y_range[0] - shift), min(x_range[1], y_range[1] - shift)
        if low >= high:
            continue
        xs = [10**low, 10**high]
        figure.add_trace(
            scatter(x=xs, y=[x * 10**shift for x in xs], mode="lines", hoverinfo="skip",
                       line={"width": 1, "dash": "dot", "color": "rgba(128,136,146,0.7)"})
        )  # fmt: skip
        name = f"{10**power:,} calls" if power < 5 else f"10<sup>{power}</sup> calls"
        at_top = high < x_range[1]
        figure.add_annotation(
            x=high, y=high + shift, text=name, showarrow=False, font={"size": 10},
            xanchor="left" if at_top else "right", yanchor="top" if at_top else "bottom",
        )  # fmt: skip


def _hover(item: Any) -> str:
    calls = METRICS["break_even_calls"].format(item.break_even_calls)
    paid = "whether it pays back is not sure" if math.isnan(item.break_even_calls) else f"pays back after {calls}"
    return hover(
        f"<b>{paid}</b> · {safe(item.series)}",
        f"{safe(item.case)} · bs {item.bs}",
        f"compiles {METRICS['compile_cold_s'].format(item.compile_cold_s)}, saves {item.saved_ms:.3g} ms a call",
    )


FIGURE = Figure(
    name="break-even",
    title="When a mode pays back",
    order=45,
    page="cost",
    caption="Seconds of compiling with a cold cache against the milliseconds that each call is then quicker than the "
    "baseline. On a dotted line both weigh the same after so many calls; up and left pays back sooner. What saves "
    "nothing never does: it is in the numbers.",
    absent="Nothing was compiled, or no baseline is there to save against.",
    data=data,
    draw=draw,
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "compile_cold_s": "compile, cold (s)",
             "saved_ms": "saved a call (ms)", "break_even_calls": "break-even (calls)", "latency_ms": "latency (ms)"},
    modes=True,
)  # fmt: skip
