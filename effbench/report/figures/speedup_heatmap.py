"""Heatmap of speedups by model, batch size and mode; cells without a speedup are hatched and show their status."""

from __future__ import annotations

import math
import textwrap

import pandas as pd

from effbench.report.figures.base import KEYS, Drawing, Figure, axis, hover, safe, short
from effbench.report.tables import NO_BASELINE, UNCLEAR, speedup_text

#: Most rows (model × batch size): more take a browser many seconds.
MOST_ROWS = 120
#: End of the colour scale; speedups above it, or below its inverse, have an arrow.
SCALE = 8
#: Slower (orange) – neutral – faster (blue), for all common colour vision; charts.js has the dark theme's colours.
DIVERGING = [(0.0, "#e08a3c"), (0.25, "#f5c98e"), (0.5, "#f5f6f8"), (0.75, "#a5cdec"), (1.0, "#5a9bd5")]
#: Opacity of a speedup whose interval includes 1.
PALE = 0.3


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per result, whatever its status; empty if no result has a speedup."""
    columns = ["status", "reason", "speedup", "speedup_ci_low", "speedup_ci_high", "latency_ms", "trials"]
    table = frame[[*KEYS, *columns]].copy()
    shown = (table["status"] == "ok") & (table["speedup"] > 0)
    table["speedup"] = table["speedup"].where(shown)
    return table if shown.any() else table.iloc[:0]


def draw(table: pd.DataFrame) -> Drawing:
    """Draw a heatmap with a log2 scale that is symmetric about 1×; hatch results without a speedup."""
    names = table.sort_values("series_rank")["series"].unique().tolist()
    points = list(dict.fromkeys(zip(table["case"], table["bs"], strict=True)))[:MOST_ROWS]
    x_of = {name: index for index, name in enumerate(names)}
    y_of = {point: index for index, point in enumerate(points)}
    z: dict[bool, list[list[float | None]]] = {sure: [[None] * len(names) for _ in points] for sure in (True, False)}
    texts = {sure: [[""] * len(names) for _ in points] for sure in z}
    hovers = [["not run"] * len(names) for _ in points]
    failed: list[tuple[int, int, str]] = []
    for row in table.itertuples(index=False):
        x, y = x_of[row.series], y_of.get((row.case, row.bs))
        if y is None:
            continue
        hovers[y][x] = hover(row)
        if math.isnan(row.speedup):
            failed.append((x, y, row.status if row.status != "ok" else NO_BASELINE))
        else:
            text = speedup_text(row.speedup, row.speedup_ci_low, row.speedup_ci_high)
            power = 0.0 if text == UNCLEAR else math.log2(row.speedup)
            sure = row.speedup_ci_low > 1 or row.speedup_ci_high < 1  # NaN without an interval
            z[sure][y][x] = power
            texts[sure][y][x] = text + ("" if abs(power) <= math.log2(SCALE) else " ↑" if power > 0 else " ↓")
    widest = max(abs(math.log2(table["speedup"].min())), abs(math.log2(table["speedup"].max())), 1.0)
    limit = min(widest, math.log2(SCALE))
    box = {"showgrid": False, "showline": False, "ticks": "", "fixedrange": True}
    headings = ["<br>".join(map(safe, textwrap.wrap(name, 14)[:3])) for name in names]
    figure = Drawing(
        30 * len(points) + 150,
        xaxis=axis("", tickvals=list(range(len(names))), ticktext=headings, side="top", tickangle=0,
                   range=[-0.5, len(names) - 0.5], tickfont={"size": 11}, **box),
        yaxis=axis("", tickvals=list(range(len(points))),
                   ticktext=[safe(f"{short(case, 30)} · bs {bs}") for case, bs in points],
                   range=[len(points) - 0.5, -0.5], **box),
    )  # fmt: skip
    powers = range(-math.floor(limit), math.floor(limit) + 1)
    colorbar = {
        "orientation": "h", "y": 0, "yanchor": "top", "ypad": 14, "thickness": 10, "len": 0.9, "outlinewidth": 0,
        "title": {"text": "speedup against the baseline (×, logarithmic): slower ← 1 → faster", "side": "bottom"},
        "tickvals": list(powers), "ticktext": [f"{2**p}×" if p >= 0 else f"1/{2**-p}×" for p in powers],
    }  # fmt: skip
    for sure, values in z.items():
        figure.add(
            "heatmap", z=values, text=texts[sure], hovertext=hovers, hoverinfo="text", texttemplate="%{text}",
            textfont={"size": 12}, xgap=2, ygap=2, zmin=-limit, zmax=limit, zmid=0, colorscale=DIVERGING,
            hoverongaps=sure, opacity=1 if sure else PALE, showscale=sure, colorbar=colorbar,
        )  # fmt: skip
    if failed:
        _hatch(figure, failed)
    return figure


def _hatch(figure: Drawing, failed: list[tuple[int, int, str]]) -> None:
    """Hatch the cells without a speedup and show their status."""
    xs = [x + offset for x, *_ in failed for offset in (-0.48, 0.48, 0.48, -0.48, -0.48, math.nan)]
    ys = [y + offset for _, y, _ in failed for offset in (-0.46, -0.46, 0.46, 0.46, -0.46, math.nan)]
    pattern = {"shape": "/", "size": 7, "solidity": 0.18, "fgcolor": "rgba(128,136,146,0.75)",
               "bgcolor": "rgba(128,136,146,0.14)"}  # fmt: skip
    figure.add(x=xs, y=ys, mode="lines", fill="toself", hoverinfo="skip", line={"width": 0}, fillpattern=pattern)
    texts = [f"<b>{safe(status)}</b>" for *_, status in failed]
    xs, ys = [x for x, *_ in failed], [y for _, y, _ in failed]
    figure.add(x=xs, y=ys, mode="text", text=texts, hoverinfo="skip", textfont={"size": 11})


FIGURE = Figure(
    name="speedup-heatmap",
    title="Speedup at a glance",
    order=10,
    page="speedups",
    caption="Blue: faster than the baseline; orange: slower; pale (n.s.): the interval includes 1. "
    f"↑ ↓: beyond the colour scale ({SCALE}×); hatched: no speedup, with the status. "
    f"The figure shows at most {MOST_ROWS} rows, the numbers all.",
    absent="No result of this sweep has a speedup: the baseline has no ok result, or no other mode ran.",
    data=data,
    draw=draw,
    matrix=True,
)
