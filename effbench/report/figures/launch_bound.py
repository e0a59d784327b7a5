"""Why graphs help: how far the baseline is bound by launching, against the speedup of every mode."""

from __future__ import annotations

import pandas as pd

from effbench.report.figures.base import GRAY, KEYS, Drawing, Figure, by_series, log_axis, of_baseline


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each `ok` result of another mode whose baseline was profiled.

    `launch_ratio`: the baseline's enqueue time ÷ its GPU busy time; above 1 the host is slower than the GPU.
    """
    ok = frame[frame["status"] == "ok"]
    base = of_baseline(ok[(ok["gpu_busy_ms"] > 0) & (ok["enqueue_ms"] > 0)], ["gpu_busy_ms", "enqueue_ms"])
    others = ok.loc[~ok["is_baseline"] & (ok["speedup"] > 0), [*KEYS, "speedup", "speedup_ci_low", "speedup_ci_high"]]
    table = others.merge(base, how="inner", left_on=["case", "bs"], right_index=True)
    table["launch_ratio"] = table["baseline_enqueue_ms"] / table["baseline_gpu_busy_ms"]
    return table.reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw speedup over the launch ratio, both logarithmic, a mark for each result and lines where each is 1."""
    figure = Drawing(
        400,
        xaxis=log_axis("the baseline's enqueue time ÷ GPU busy time (×)", table["launch_ratio"]),
        yaxis=log_axis("speedup (×)", table["speedup"]),
    )
    line = {"type": "line", "line": {"width": 1, "color": GRAY, "dash": "dot"}}
    figure.layout["shapes"] = [
        line | {"y0": 1, "y1": 1, "yref": "y", "x0": 0, "x1": 1, "xref": "x domain"},
        line | {"x0": 1, "x1": 1, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain"},
    ]
    for _, rows in by_series(table):
        figure.add_mode(rows, [row.launch_ratio for row in rows], [row.speedup for row in rows])
    return figure


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
)
