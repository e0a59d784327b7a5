"""Speedup of every mode at every model and batch size; hatched if there is none, with the status."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import DIVERGING
from effbench.report.figures.base import KEYS, Drawing, Figure, axis, hover, interval_text, safe, short, wrapped
from effbench.report.tables import NO_BASELINE, NO_REASON, UNCLEAR, speedup_text

ROW_PX = 30
#: Models and batch sizes that are drawn: more take a browser many seconds, and nobody looks through them.
MOST_ROWS = 120
LONGEST_REASON = 160


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, status, reason, speedup with its bounds, latency_ms, trials, log2.

    One row a result, whatever its status; `log2` is the base-2 logarithm of a speedup that is `ok`, else missing.
    Empty if no result has a speedup.
    """
    columns = ["status", "reason", "speedup", "speedup_ci_low", "speedup_ci_high", "latency_ms", "trials"]
    table = frame[[*KEYS, *columns]].copy()
    shown = (table["status"] == "ok") & (table["speedup"] > 0)
    table["log2"] = table["speedup"].where(shown).map(math.log2, na_action="ignore").astype("float64")
    return table if shown.any() else table.iloc[:0]


def draw(table: pd.DataFrame) -> Drawing:
    """Draw a heatmap with a symmetrical log2 scale about 1×; what is not `ok` is hatched with its status."""
    names = table.sort_values("series_rank")["series"].unique().tolist()
    points = list(dict.fromkeys(zip(table["case"], table["bs"], strict=True)))[:MOST_ROWS]
    x_of = {name: index for index, name in enumerate(names)}
    y_of = {point: index for index, point in enumerate(points)}
    z = [[None] * len(names) for _ in points]
    texts = [[""] * len(names) for _ in points]
    hovers = [["not run"] * len(names) for _ in points]
    failed: list[tuple[int, int, str]] = []
    for row in table.itertuples():
        x, y = x_of[row.series], y_of.get((row.case, row.bs))
        if y is None:
            continue
        hovers[y][x] = hover_text(row)
        if math.isnan(row.log2):
            failed.append((x, y, row.status if row.status != "ok" else NO_BASELINE))
        else:
            texts[y][x] = speedup_text(row.speedup, row.speedup_ci_low, row.speedup_ci_high)
            z[y][x] = 0.0 if texts[y][x] == UNCLEAR else row.log2
    limit = min(max(table["log2"].abs().max(), 1.0), 3.0)
    box = {"showgrid": False, "showline": False, "ticks": "", "fixedrange": True}
    figure = Drawing(
        ROW_PX * len(points) + 150,
        xaxis=axis("", tickvals=list(range(len(names))), ticktext=[wrapped(name) for name in names], side="top",
                   tickangle=0, range=[-0.5, len(names) - 0.5], tickfont={"size": 11}, **box),
        yaxis=axis("model · batch size (samples)" if len(points) > 5 else "", tickvals=list(range(len(points))),
                   ticktext=[safe(f"{short(case, 30)} · bs {bs}") for case, bs in points],
                   range=[len(points) - 0.5, -0.5], **box),
        meta={"diverging": True},
    )  # fmt: skip
    powers = range(-math.floor(limit), math.floor(limit) + 1)
    colorbar = {
        "orientation": "h", "y": 0, "yanchor": "top", "ypad": 14, "thickness": 10, "len": 0.9, "outlinewidth": 0,
        "title": {"text": "speedup against the baseline (×, logarithmic): slower ← 1 → faster", "side": "bottom"},
        "tickvals": list(powers), "ticktext": [f"{2**p}×" if p >= 0 else f"1/{2**-p}×" for p in powers],
    }  # fmt: skip
    figure.add(
        "heatmap", z=z, text=texts, hovertext=hovers, hoverinfo="text", texttemplate="%{text}", textfont={"size": 12},
        xgap=2, ygap=2, zmin=-limit, zmax=limit, zmid=0, colorscale=DIVERGING["light"], hoverongaps=True,
        colorbar=colorbar,
    )  # fmt: skip
    if failed:
        _hatch(figure, failed)
    return figure


def hover_text(row: Any) -> str:
    if row.status != "ok":
        return hover(row, safe(row.status), safe(short(str(row.reason or NO_REASON), LONGEST_REASON)))
    interval = interval_text(row.speedup_ci_low, row.speedup_ci_high, ".2f")
    latency = METRICS["latency_ms"].format(row.latency_ms)
    trials = "" if math.isnan(row.trials) else f"{row.trials:.0f} trial{'s' if row.trials != 1 else ''}"
    return hover(row, METRICS["speedup"].format(row.speedup), interval, latency, trials)


def _hatch(figure: Drawing, failed: list[tuple[int, int, str]]) -> None:
    """Hatch the cells without a speedup, and write their status."""
    xs = [x + offset for x, *_ in failed for offset in (-0.48, 0.48, 0.48, -0.48, -0.48, math.nan)]
    ys = [y + offset for _, y, _ in failed for offset in (-0.46, -0.46, 0.46, 0.46, -0.46, math.nan)]
    pattern = {"shape": "/", "size": 7, "solidity": 0.18, "fgcolor": "rgba(128,136,146,0.75)",
               "bgcolor": "rgba(128,136,146,0.14)"}  # fmt: skip
    figure.add(x=xs, y=ys, mode="lines", fill="toself", hoverinfo="skip", line={"width": 0},
               fillcolor="rgba(128,136,146,0.16)", fillpattern=pattern)  # fmt: skip
    texts = [f"<b>{safe(status)}</b>" for *_, status in failed]
    xs, ys = [x for x, *_ in failed], [y for _, y, _ in failed]
    figure.add(x=xs, y=ys, mode="text", text=texts, hoverinfo="skip", textfont={"size": 11})


FIGURE = Figure(
    name="speedup-heatmap",
    title="Speedup at a glance",
    order=10,
    caption="Baseline latency ÷ latency, a column a mode, a row a model and batch size (bs, samples). "
    "Blue is faster than the baseline, orange slower; the scale "
    "is logarithmic and centred at 1×. Hatched cells have no speedup and say why. "
    f"Of more than {MOST_ROWS} rows the first are drawn; the numbers have all.",
    absent="No result of this sweep has a speedup: the baseline has no ok result, or no other mode ran.",
    data=data,
    draw=draw,
    page="speedups",
    numbers={"status": "status", "speedup": "speedup (×)", "speedup_ci_low": "95 % low (×)",
             "speedup_ci_high": "95 % high (×)", "trials": "trials"},
    min_width=720,
)  # fmt: skip
