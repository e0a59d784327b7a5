"""What a mode costs before its first useful call: compile seconds with a cold and with a warm cache."""

from __future__ import annotations

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import KEYS, Drawing, Figure, by_series, column, hover, log_axis, mode_axis, safe

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
            texts = [hover(row, METRICS[shown].format(getattr(row, shown)), cache, _status(row.status)) for row in part]
            marker = {"symbol": f"{style.symbol}{suffix}", "line": {"width": 1.6, "color": style.color}}
            figure.add_marks(name, column(part, shown), [rank + offset] * len(part), texts, marker=marker)
    return figure


def _status(status: str) -> str:
    return "" if status == "ok" else f"status {safe(status)}"


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
    numbers={"status": "status", "compile_cold_s": "cold (s)", "compile_warm_s": "warm (s)",
             "first_call_s": "first output (s)", "break_even_calls": "break-even (calls)"},
    small_multiples=True,
)  # fmt: skip
