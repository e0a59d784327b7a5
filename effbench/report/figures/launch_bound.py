"""Why graphs help: how far the baseline is bound by launching, against the speedup of every mode."""

from __future__ import annotations

from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures.base import (
    KEYS,
    Drawing,
    Figure,
    hover,
    interval_text,
    log_axis,
    of_baseline,
    scatter_marks,
)


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, launch_ratio, speedup with its bounds; gpu_busy_ms and enqueue_ms of the baseline.

    `launch_ratio`: the baseline's enqueue time ÷ its GPU busy time; above 1 the host is slower than the GPU. A row for
    each `ok` result of another mode whose baseline was profiled.
    """
    ok = frame[frame["status"] == "ok"]
    base = of_baseline(ok[(ok["gpu_busy_ms"] > 0) & (ok["enqueue_ms"] > 0)], ["gpu_busy_ms", "enqueue_ms"])
    others = ok.loc[~ok["is_baseline"] & (ok["speedup"] > 0), [*KEYS, "speedup", "speedup_ci_low", "speedup_ci_high"]]
    table = others.merge(base, how="inner", left_on=["case", "bs"], right_index=True)
    table["launch_ratio"] = table["enqueue_ms"] / table["gpu_busy_ms"]
    return table.reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw speedup over the launch ratio, both logarithmic, a mark for each result."""
    figure = Drawing(
        400,
        xaxis=log_axis("the baseline's enqueue time ÷ GPU busy time (×)", table["launch_ratio"]),
        yaxis=log_axis("speedup (×)", pd.concat([table["speedup"], pd.Series([1.0])])),
    )
    figure.add_line("y", 1)
    if table["launch_ratio"].min() < 1 < table["launch_ratio"].max():
        figure.add_line("x", 1, dash="dot")
    scatter_marks(figure, table, "launch_ratio", "speedup", text)
    return figure


def text(row: Any) -> str:
    interval = interval_text(row.speedup_ci_low, row.speedup_ci_high, ".2f")
    enqueue, busy = METRICS["enqueue_ms"].format(row.enqueue_ms), METRICS["gpu_busy_ms"].format(row.gpu_busy_ms)
    launching = f"the baseline enqueues for {enqueue}, its kernels run {busy}"
    return hover(row, METRICS["speedup"].format(row.speedup), interval, launching)


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
    numbers={"launch_ratio": "launch ratio (×)", "speedup": "speedup (×)", "speedup_ci_low": "95 % low (×)",
             "speedup_ci_high": "95 % high (×)", "enqueue_ms": "baseline's enqueue (ms)",
             "gpu_busy_ms": "baseline's GPU busy (ms)"},
    modes=True,
)  # fmt: skip
