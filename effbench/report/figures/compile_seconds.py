"""What a mode costs before its first useful call: compile seconds with a cold and with a warm cache."""

from __future__ import annotations

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import Figure, axis, by_series, column, hover, layout, log_axis, safe, short
from effbench.report.figures.drawing import Drawing, scatter

_CACHES = (("compile_cold_s", "cold cache", ""), ("compile_warm_s", "warm cache", "-open"))


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, status, compile_cold_s, compile_warm_s, first_call_s, break_even_calls.

    Every result that compiled, degraded and failed ones too: their seconds were spent all the same.
    """
    columns = ["compile_cold_s", "compile_warm_s", "first_call_s", "break_even_calls"]
    out = frame[["case", "bs", "series", "series_rank", "status", *columns]]
    return out.dropna(subset=["compile_cold_s", "compile_warm_s"], how="all").reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """One row a mode, one dot a batch size: filled with a cold cache, open with a warm one."""
    parts = by_series(table)
    names = [name for name, _ in parts]
    seconds = pd.concat([table["compile_cold_s"], table["compile_warm_s"]]).dropna()
    figure = Drawing(layout=layout(90 + 30 * len(names)))
    if not (seconds > 0).any():
        return figure
    ticks = [safe(short(name, 18)) for name in names]
    figure.update_layout(
        xaxis=log_axis("compile time (s)", seconds),
        yaxis=axis("", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5]),
    )
    for rank, (name, rows) in enumerate(parts):
        style = style_of(name)
        for shown, cache, suffix in _CACHES:
            part = [row for row in rows if getattr(row, shown) > 0]
            if not part:
                continue
            offset = -0.14 if shown == "compile_cold_s" else 0.14
            texts = [
                hover(
                    f"<b>{METRICS[shown].format(getattr(row, shown))}</b> · {safe(name)}, {cache}",
                    f"{safe(row.case)} · bs {row.bs}",
                    "" if row.status == "ok" else f"status {safe(row.status)}",
                )
                for row in part
            ]
            marker = {
                "symbol": f"{style.symbol}{suffix}",
                "size": 9,
                "color": style.color,
                "line": {"width": 1.6, "color": style.color},
            }
            figure.add_trace(
                scatter(
                    x=column(part, shown), y=[rank + offset] * len(part), mode="markers", name=safe(name),
                    marker=marker, hovertext=texts, hoverinfo="text", meta={"mode": name},
                )
            )  # fmt: skip
    return figure


FIGURE = Figure(
    name="compile",
    title="Compile time",
    order=50,
    caption="Seconds from handing the module over to the last preparing call, imports excluded; a dot a batch size, "
    "filled with an empty compile cache, open with the cell's own cache filled.",
    absent="Nothing in this sweep was compiled, or no compile time was recorded.",
    data=data,
    draw=draw,
    page="cost",
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "status": "status",
             "compile_cold_s": "cold (s)", "compile_warm_s": "warm (s)", "first_call_s": "first output (s)",
             "break_even_calls": "break-even (calls)"},
    small_multiples=True,
)  # fmt: skip
