"""Speedup of every mode against how long the GPU waits for the host with the baseline."""

from __future__ import annotations

import math

import pandas as pd

from effbench.report.figures.base import GRAY, KEYS, Drawing, Figure, by_series, log_axis, of_baseline, point, short

#: Fractions of the axes (x, y) within which two names overlap.
NEAR = (0.16, 0.07)


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per `ok` result that has a profiled baseline.

    `launch_ratio`: the baseline's latency ÷ its GPU busy time, the largest speedup from removing launches alone.
    """
    ok = frame[frame["status"] == "ok"]
    base = of_baseline(ok[(ok["gpu_busy_ms"] > 0) & (ok["latency_ms"] > 0)], ["gpu_busy_ms", "latency_ms"])
    others = ok.loc[~ok["is_baseline"] & (ok["speedup"] > 0), [*KEYS, "speedup", "speedup_ci_low", "speedup_ci_high"]]
    table = others.merge(base, how="inner", left_on=["case", "x"], right_index=True)
    table["launch_ratio"] = table["baseline_latency_ms"] / table["baseline_gpu_busy_ms"]
    return table.reset_index(drop=True)


def draw(table: pd.DataFrame) -> Drawing:
    """Draw speedup against launch ratio on logarithmic axes, with lines where both are equal and at speedup 1."""
    figure = Drawing(
        420,
        xaxis=log_axis("the baseline's latency ÷ its GPU busy time (×)", table["launch_ratio"]),
        yaxis=log_axis("latency speedup (×)", table["speedup"]),
    )
    line = {"type": "line", "line": {"width": 1, "color": GRAY, "dash": "dot"}, "xref": "x", "yref": "y"}
    ends = min(1.0, table["launch_ratio"].min()), table["launch_ratio"].max() * 1.05
    figure.layout["shapes"] = [
        line | {"x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1]},
        line | {"y0": 1, "y1": 1, "x0": 0, "x1": 1, "xref": "x domain"},
    ]
    for _, rows in by_series(table):
        figure.add_mode(rows, [row.launch_ratio for row in rows], [row.speedup for row in rows])
    _name_points(figure, table)
    return figure


def _name_points(figure: Drawing, table: pd.DataFrame) -> None:
    """Name each model and batch size at its best mark, unless the name would overlap another."""
    best = table.loc[table.groupby(["case", "x"])["speedup"].idxmax()].sort_values("speedup", ascending=False)
    spans = [max(math.log(table[name].max() / table[name].min()), 1e-9) for name in ("launch_ratio", "speedup")]
    placed: list[tuple[float, float]] = []
    for row in best.itertuples(index=False):
        at = math.log(row.launch_ratio) / spans[0], math.log(row.speedup) / spans[1]
        if all(abs(at[0] - x) > NEAR[0] or abs(at[1] - y) > NEAR[1] for x, y in placed):
            placed.append(at)
            place = {"x": math.log10(row.launch_ratio), "y": math.log10(row.speedup), "yshift": 13}
            figure.annotate((f"{short(row.case, 24)} · {point(row)}"), font={"size": 11}, **place)


FIGURE = Figure(
    name="launch-bound",
    title="Why graphs help",
    order=34,
    caption="Marks further right gain more from a CUDA graph, because the GPU waits longer for the host. Removing "
    "these waits gains at most the dotted diagonal. Marks above it also run fewer or faster kernels.",
    absent="This figure needs a profiled baseline (CUDA, protocol.profile=true) and an ok result of another mode.",
    data=data,
    draw=draw,
)
