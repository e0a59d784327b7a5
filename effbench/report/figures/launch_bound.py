"""Why graphs help: how far the baseline is bound by launching, against the speedup of every mode."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures.base import Figure, hover, layout, log_axis, safe
from effbench.report.figures.curves import add_marks
from effbench.report.figures.drawing import Drawing


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, launch_ratio, speedup, speedup_ci_low, speedup_ci_high, gpu_busy_ms,
    enqueue_ms (the last two of the baseline).

    `launch_ratio`: the baseline's enqueue time ÷ its GPU busy time; above 1 the host is slower than the GPU. A row for
    each `ok` result of another mode whose baseline was profiled.
    """
    ok = frame[frame["status"] == "ok"]
    base = ok[ok["is_baseline"] & (ok["gpu_busy_ms"] > 0) & (ok["enqueue_ms"] > 0)]
    base = base.drop_duplicates(["case", "bs"]).set_index(["case", "bs"])[["gpu_busy_ms", "enqueue_ms"]]
    others = ok.loc[~ok["is_baseline"] & (ok["speedup"] > 0), COLUMNS]
    out = others.merge(base, how="inner", left_on=["case", "bs"], right_index=True)
    out["launch_ratio"] = out["enqueue_ms"] / out["gpu_busy_ms"]
    return out.reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Speedup over the launch ratio, both logarithmic, a mark for each result."""
    figure = Drawing(
        layout=layout(
            400,
            xaxis=log_axis("the baseline's enqueue time ÷ GPU busy time (×)", table["launch_ratio"]),
            yaxis=log_axis("speedup (×)", pd.concat([table["speedup"], pd.Series([1.0])])),
        )
    )
    figure.add_hline(y=1, line={"width": 1, "color": "#8a929c"})
    if table["launch_ratio"].min() < 1 < table["launch_ratio"].max():
        figure.add_vline(x=1, line={"width": 1, "dash": "dot", "color": "#8a929c"})
    add_marks(figure, table, "launch_ratio", "speedup", _hover)
    return figure


def _hover(item: Any) -> str:
    interval = ""
    if not math.isnan(item.speedup_ci_low):
        interval = f"95 % interval {item.speedup_ci_low:.2f}–{item.speedup_ci_high:.2f}"
    enqueue, busy = METRICS["enqueue_ms"].format(item.enqueue_ms), METRICS["gpu_busy_ms"].format(item.gpu_busy_ms)
    return hover(
        f"<b>{METRICS['speedup'].format(item.speedup)}</b> · {safe(item.series)}",
        f"{safe(item.case)} · bs {item.bs}",
        interval,
        f"the baseline enqueues for {enqueue}, its kernels run {busy}",
    )


COLUMNS = ["case", "bs", "series", "series_rank", "speedup", "speedup_ci_low", "speedup_ci_high"]
FIGURE = Figure(
    name="launch-bound",
    title="Why graphs help",
    order=34,
    caption="To the right of 1 the host needs longer to launch the baseline's kernels than the GPU to run them: there "
    "a graph, which launches them all at once, can gain up to that ratio. To the left the GPU is the bound: only "
    "fewer or better kernels help.",
    absent="It needs a profiled baseline (CUDA, protocol.profile=true) and an ok result of another mode.",
    data=data,
    draw=draw,
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "launch_ratio": "launch ratio (×)",
             "speedup": "speedup (×)", "speedup_ci_low": "95 % low (×)", "speedup_ci_high": "95 % high (×)",
             "enqueue_ms": "baseline's enqueue (ms)", "gpu_busy_ms": "baseline's GPU busy (ms)"},
    modes=True,
)  # fmt: skip
