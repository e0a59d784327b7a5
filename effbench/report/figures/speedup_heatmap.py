"""Speedup of every mode at every model and batch size; hatched where there is none, with the status."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.analysis.scores import UNCLEAR
from effbench.metrics import METRICS
from effbench.report.colors import DIVERGING
from effbench.report.figures.base import Figure, axis, hover, layout, safe, short, wrapped
from effbench.report.figures.drawing import Drawing, heatmap, scatter
from effbench.report.speedup_table import speedup_text

ROW_PX = 30
#: Models and batch sizes that are drawn: more take a browser many seconds, and nobody looks through them.
MOST_ROWS = 120


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, status, reason, speedup, speedup_ci_low, speedup_ci_high, latency_ms, trials, log2.

    One row a result, whatever its status; `log2` is the base-2 logarithm of a speedup that is `ok`, else missing.
    Empty where no result has a speedup.
    """
    columns = ["case", "bs", "series", "series_rank", "status", "reason", "speedup", "speedup_ci_low"]
    out = frame[[*columns, "speedup_ci_high", "latency_ms", "trials"]].copy()
    shown = (out["status"] == "ok") & (out["speedup"] > 0)
    out["log2"] = out["speedup"].where(shown).map(math.log2, na_action="ignore").astype("float64")
    return out if shown.any() else out.iloc[:0]


def draw(table: pd.DataFrame) -> Drawing:
    """A heatmap with a symmetrical log2 scale about 1×; what is not `ok` is hatched and says why."""
    names = table.sort_values("series_rank")["series"].unique().tolist()
    rows = list(dict.fromkeys(zip(table["case"], table["bs"], strict=True)))[:MOST_ROWS]
    x_of = {name: index for index, name in enumerate(names)}
    y_of = {row: index for index, row in enumerate(rows)}
    z = [[None] * len(names) for _ in rows]
    text = [[""] * len(names) for _ in rows]
    hovers = [["not run"] * len(names) for _ in rows]
    failed: list[tuple[int, int, str]] = []
    for item in table.itertuples():
        x, y = x_of[item.series], y_of.get((item.case, item.bs))
        if y is None:
            continue
        hovers[y][x] = _hover(item)
        if math.isnan(item.log2):
            failed.append((x, y, item.status if item.status != "ok" else "no baseline"))
        else:
            text[y][x] = speedup_text(item.speedup, item.speedup_ci_low, item.speedup_ci_high)
            z[y][x] = 0.0 if text[y][x] == UNCLEAR else item.log2
    limit = min(max(table["log2"].abs().max(), 1.0), 3.0)
    figure = Drawing(layout=_layout(names, rows, limit))
    figure.add_trace(
        heatmap(
            z=z, text=text, hovertext=hovers, hoverinfo="text", texttemplate="%{text}", textfont={"size": 12},
            xgap=2, ygap=2, zmin=-limit, zmax=limit, zmid=0, colorscale=DIVERGING["light"], hoverongaps=True,
            colorbar=_colorbar(limit),
        )
    )  # fmt: skip
    if failed:
        _hatch(figure, failed)
    return figure


def _hover(item) -> str:
    name, where = safe(item.series), f"{safe(item.case)} · bs {item.bs}"
    if item.status != "ok":
        return hover(
            f"<b>{safe(item.status)}</b> · {name}", where, safe(short(str(item.reason or "no reason recorded"), 160))
        )
    interval = ""
    if not math.isnan(item.speedup_ci_low) and not math.isnan(item.speedup_ci_high):
        interval = f"95 % interval {item.speedup_ci_low:.2f}–{item.speedup_ci_high:.2f}"
    latency = METRICS["latency_ms"].format(item.latency_ms)
    trials = "" if math.isnan(item.trials) else f"{item.trials:.0f} trial{'s' if item.trials != 1 else ''}"
    return hover(f"<b>{METRICS['speedup'].format(item.speedup)}</b> · {name}", where, interval, f"{latency}", trials)


def _layout(names: list[str], rows: list[tuple[str, int]], limit: float) -> dict[str, Any]:
    ticks_x = [wrapped(name) for name in names]
    ticks_y = [safe(f"{short(case, 30)} · bs {bs}") for case, bs in rows]
    box = {"showgrid": False, "showline": False, "ticks": "", "fixedrange": True}
    return layout(
        ROW_PX * len(rows) + 150,
        xaxis=axis("", tickvals=list(range(len(names))), ticktext=ticks_x, side="top", tickangle=0,
                   range=[-0.5, len(names) - 0.5], tickfont={"size": 11}, **box),
        yaxis=axis("model · batch size (samples)" if len(rows) > 5 else "", tickvals=list(range(len(rows))),
                   ticktext=ticks_y, range=[len(rows) - 0.5, -0.5], **box),
        meta={"diverging": True},
    )  # fmt: skip


def _colorbar(limit: float) -> dict:
    powers = range(-math.floor(limit), math.floor(limit) + 1)
    return {
        "orientation": "h", "y": 0, "yanchor": "top", "ypad": 14, "thickness": 10, "len": 0.9, "outlinewidth": 0,
        "title": {"text": "speedup against the baseline (×, logarithmic): slower ← 1 → faster", "side": "bottom"},
        "tickvals": list(powers), "ticktext": [f"{2**p}×" if p >= 0 else f"1/{2**-p}×" for p in powers],
    }  # fmt: skip


def _hatch(figure: Drawing, failed: list[tuple[int, int, str]]) -> None:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for x, y, _ in failed:
        xs += [x - 0.48, x + 0.48, x + 0.48, x - 0.48, x - 0.48, None]
        ys += [y - 0.46, y - 0.46, y + 0.46, y + 0.46, y - 0.46, None]
    figure.add_trace(
        scatter(
            x=xs, y=ys, mode="lines", fill="toself", hoverinfo="skip", line={"width": 0},
            fillcolor="rgba(128,136,146,0.16)",
            fillpattern={"shape": "/", "size": 7, "solidity": 0.18, "fgcolor": "rgba(128,136,146,0.75)",
                         "bgcolor": "rgba(128,136,146,0.14)"},
        )
    )  # fmt: skip
    xs, ys = [x for x, _, _ in failed], [y for _, y, _ in failed]
    texts = [f"<b>{safe(status)}</b>" for _, _, status in failed]
    figure.add_trace(scatter(x=xs, y=ys, mode="text", text=texts, hoverinfo="skip", textfont={"size": 11}))


FIGURE = Figure(
    name="speedup-heatmap",
    title="Speedup at a glance",
    order=10,
    caption="Baseline latency ÷ latency, a column a mode, a row a model and batch size (bs, samples). "
    "Blue is faster than the baseline, orange slower; the scale "
    "is logarithmic and centred at 1×. Hatched cells have no speedup and say why. "
    f"Of more than {MOST_ROWS} rows the first are drawn; the numbers have all.",
    absent="No result of this sweep has a speedup: the baseline has no ok result, or nothing ran beside it.",
    data=data,
    draw=draw,
    page="speedups",
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "status": "status", "speedup": "speedup (×)",
             "speedup_ci_low": "95 % low (×)", "speedup_ci_high": "95 % high (×)", "trials": "trials"},
    min_width=720,
)  # fmt: skip
