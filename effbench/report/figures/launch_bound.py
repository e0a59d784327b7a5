"""Speedup of every mode against how long the GPU waits for the host with the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from effbench.report.figures.base import (
    GRAY,
    Drawing,
    Figure,
    Row,
    by_series,
    columns_of,
    is_positive,
    known,
    log_axis,
    point,
    short,
    with_baseline,
)

#: Fractions of the axes (x, y) within which two names overlap.
NEAR = (0.16, 0.07)


def data(rows: Sequence[Row]) -> list[Row]:
    """Return one row per `ok` result that has a profiled baseline.

    `launch_ratio`: the baseline's latency ÷ its GPU busy time, the largest speedup from removing launches alone.
    """
    ok = [row for row in rows if row["status"] == "ok"]
    profiled = [row for row in ok if is_positive(row, "gpu_busy_ms", "latency_ms")]
    others = [row for row in ok if not row["is_baseline"] and is_positive(row, "speedup")]
    return [
        columns_of(row, "speedup", "speedup_ci_low", "speedup_ci_high")
        | base
        | {"launch_ratio": base["baseline_latency_ms"] / base["baseline_gpu_busy_ms"]}
        for row, base in with_baseline(profiled, others, "gpu_busy_ms", "latency_ms")
    ]


def draw(rows: Sequence[Row]) -> Drawing:
    """Draw speedup against launch ratio on logarithmic axes, with lines where both are equal and at speedup 1."""
    ratios, speedups = known(rows, "launch_ratio"), known(rows, "speedup")
    figure = Drawing(
        420,
        xaxis=log_axis("the baseline's latency ÷ its GPU busy time (×)", ratios),
        yaxis=log_axis("latency speedup (×)", speedups),
    )
    line = {"type": "line", "line": {"width": 1, "color": GRAY, "dash": "dot"}, "xref": "x", "yref": "y"}
    ends = min(1.0, *ratios), max(ratios) * 1.05
    figure.layout["shapes"] = [
        line | {"x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1]},
        line | {"y0": 1, "y1": 1, "x0": 0, "x1": 1, "xref": "x domain"},
    ]
    for _, of_mode in by_series(rows):
        figure.add_mode(of_mode, known(of_mode, "launch_ratio"), known(of_mode, "speedup"))
    _name_points(figure, rows)
    return figure


def _name_points(figure: Drawing, rows: Sequence[Row]) -> None:
    """Name each model and batch size at its best mark, unless the name would overlap another."""
    both = known(rows, "launch_ratio"), known(rows, "speedup")
    spans = [max(math.log(max(values) / min(values)), 1e-9) for values in both]
    best: dict[tuple, Row] = {}
    for row in sorted(rows, key=lambda row: -row["speedup"]):
        best.setdefault((row["case"], row["x"]), row)
    placed: list[tuple[float, float]] = []
    for row in best.values():
        at = math.log(row["launch_ratio"]) / spans[0], math.log(row["speedup"]) / spans[1]
        if all(abs(at[0] - x) > NEAR[0] or abs(at[1] - y) > NEAR[1] for x, y in placed):
            placed.append(at)
            place = {"x": math.log10(row["launch_ratio"]), "y": math.log10(row["speedup"]), "yshift": 13}
            figure.annotate(f"{short(row['case'], 24)} · {point(row)}", font={"size": 11}, **place)


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
