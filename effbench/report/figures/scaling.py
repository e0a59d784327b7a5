"""Latency and throughput against the batch size, or another swept number; and why graphs help."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

from effbench.metrics import INTERVALS
from effbench.report.colors import style_of
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
    mode_axis,
    point,
    short,
    with_baseline,
    x_axis,
)
from effbench.report.tables import UNKNOWN

#: Fractions of the axes (x, y) within which two names overlap.
NEAR = (0.16, 0.07)


def latency_data(rows: Sequence[Row]) -> list[Row]:
    """Return one row per result; only `ok` results have figures."""
    figures = ("latency_ms", *INTERVALS["latency_ms"], "period_ms", "throughput_per_s")
    return only_ok(
        [columns_of(row, "status", *figures, "trials") for row in rows], figures, *figures[:3]
    )


def throughput_data(rows: Sequence[Row]) -> list[Row]:
    """Return one row per result; only `ok` results have figures.

    The bounds follow from those of the period, or of the latency if there is no period.
    """
    figures = ("throughput_per_s", "throughput_ci_low", "throughput_ci_high", "period_ms")
    found = []
    for row in rows:
        time = "latency_ms" if row["period_ms"] is None else "period_ms"
        low, high = (row[bound] for bound in INTERVALS[time])
        columns = columns_of(row, "status", "throughput_per_s")
        work = (
            None
            if None in (row["throughput_per_s"], row[time])
            else row["throughput_per_s"] * row[time]
        )
        # a longer period means less throughput
        for name, bound in zip(figures[1:3], (high, low), strict=True):
            columns[name] = work / bound if work is not None and bound else None
        found.append(columns | {name: row[name] for name in ("period_ms", "trials")})
    return only_ok(found, figures, *figures[:3])


def tail_data(rows: Sequence[Row]) -> list[Row]:
    """Return one row per result if the x axis is the rate of arrivals, else no row; only `ok`
    results have figures."""
    figures = ("latency_p99_ms", "latency_ms")
    rows = [
        columns_of(row, "status", *figures, "trials")
        for row in rows
        if row["axis"] == "stream.rate"
    ]
    return only_ok(rows, figures, *["latency_p99_ms"] * 3)


def only_ok(rows: list[dict], figures: Iterable[str], value: str, low: str, high: str) -> list[Row]:
    """Remove the figures of results that are not ok, so that lines break there, and intervals too
    wide to draw. Return no row if no result has a value."""
    is_shown = [row["status"] == "ok" and is_positive(row, value) for row in rows]
    for row, shown in zip(rows, is_shown, strict=True):
        if not shown:
            row |= dict.fromkeys(figures)
        elif None not in (row[low], row[high]) and row[high] > UNKNOWN * row[low]:
            row |= dict.fromkeys((low, high))
    return rows if any(is_shown) else []


def draw(value: str, low: str, high: str, title: str, rows: Sequence[Row]) -> Drawing:
    """Draw a line per mode on logarithmic axes; for a single size, one row of dots per mode."""
    parts = by_series(rows)
    if len({row["x"] for row in rows}) == 1:
        figure = Drawing(90 + 26 * len(parts), yaxis=mode_axis([name for name, _ in parts]))
        figure.layout["xaxis"] = log_axis(
            f"{title}, {point(rows[0])}", known(rows, value, low, high), narrow=True
        )
        for rank, (_, of_mode) in enumerate(parts):
            bars = error_bars(of_mode, value, low, high)
            figure.add_mode(
                of_mode, [row[value] for row in of_mode], [rank] * len(of_mode), error_x=bars
            )
        return figure
    figure = Drawing(290, xaxis=x_axis(rows), yaxis=log_axis(title, known(rows, value, low, high)))
    for series, of_mode in parts:
        style = style_of(series)
        line = {"color": style.color, "dash": style.dash, "width": 1.8}
        bars = error_bars(of_mode, value, low, high)
        sizes, values = ([row[name] for row in of_mode] for name in ("x", value))
        figure.add_mode(of_mode, sizes, values, mode="lines+markers", line=line, error_y=bars)
    return figure


def error_bars(rows: Sequence[Row], value: str, low: str, high: str) -> dict:
    """Return Plotly's error bars; those of unknown bounds have no length."""

    def lengths(upper: str, lower: str) -> list[float]:
        ends = ((row[upper], row[lower]) for row in rows)
        return [0.0 if None in both else max(both[0] - both[1], 0.0) for both in ends]

    more, less = lengths(high, value), lengths(value, low)
    looks = {
        "type": "data",
        "symmetric": False,
        "thickness": 1.2,
        "width": 3,
        "visible": any(more) or any(less),
    }
    return looks | {"array": more, "arrayminus": less}


def launch_bound_data(rows: Sequence[Row]) -> list[Row]:
    """Return one row per `ok` result that has a profiled baseline.

    `launch_ratio`: the baseline's latency ÷ its GPU busy time, the largest speedup from removing
    launches alone.
    """
    ok = [row for row in rows if row["status"] == "ok"]
    profiled = [row for row in ok if is_positive(row, "gpu_busy_ms", "latency_ms")]
    others = [row for row in ok if not row["is_baseline"] and is_positive(row, "speedup")]
    return [
        columns_of(row, "speedup", "speedup_ci_low", "speedup_ci_high")
        | base
        | {"mark": row["ratio_mark"]}
        | {"launch_ratio": base["baseline_latency_ms"] / base["baseline_gpu_busy_ms"]}
        for row, base in with_baseline(profiled, others, "gpu_busy_ms", "latency_ms")
    ]


def launch_bound_draw(rows: Sequence[Row]) -> Drawing:
    """Draw speedup against launch ratio on logarithmic axes, with lines where both are equal and at
    speedup 1."""
    ratios, speedups = known(rows, "launch_ratio"), known(rows, "speedup")
    ends = min(1.0, *ratios), max(ratios) * 1.05  # of the diagonal, which both axes show
    figure = Drawing(
        420,
        xaxis=log_axis("the baseline's latency ÷ its GPU busy time (×)", [*ratios, *ends]),
        yaxis=log_axis("latency speedup (×)", [*speedups, *ends]),
    )
    line = {
        "type": "line",
        "line": {"width": 1, "color": GRAY, "dash": "dot"},
        "xref": "x",
        "yref": "y",
    }
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
            place = {
                "x": math.log10(row["launch_ratio"]),
                "y": math.log10(row["speedup"]),
                "yshift": 13,
            }
            figure.annotate(f"{short(row['case'], 24)} · {point(row)}", font={"size": 11}, **place)


LATENCY = Figure(
    name="latency",
    title="Latency against {axis}",
    order=30,
    caption=(
        "Latency of one call (arrivals: of one request) on logarithmic axes. Bars are 95 %"
        f" intervals across trials, omitted if the upper bound is over {UNKNOWN} times the lower"
        " one. Lines break at results that are not ok, which the page Failures lists."
    ),
    absent="No ok result of this sweep has a latency.",
    data=latency_data,
    draw=partial(draw, "latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "latency (ms)"),
    small_multiples=True,
)
TAIL = Figure(
    name="tail",
    title="99th percentile latency against {axis}",
    order=31,
    caption=(
        "Requests arrive at random times, whether or not the server is busy. Lines end where it"
        " cannot keep up."
    ),
    absent="",
    data=tail_data,
    draw=partial(
        draw, "latency_p99_ms", "latency_p99_ms", "latency_p99_ms", "99th percentile latency (ms)"
    ),
    small_multiples=True,
)
THROUGHPUT = Figure(
    name="throughput",
    title="Throughput against {axis}",
    order=32,
    caption=(
        "The device is saturated where a line flattens. Samples per second of back-to-back calls"
        " (on CPUs and in generation: of single calls) on logarithmic axes; bars are 95 %"
        " intervals."
    ),
    absent=(
        "No ok result of this sweep has a throughput. Arrivals, and streams on a CPU, have none."
    ),
    data=throughput_data,
    draw=partial(
        draw,
        "throughput_per_s",
        "throughput_ci_low",
        "throughput_ci_high",
        "throughput (samples/s)",
    ),
    small_multiples=True,
)
LAUNCH_BOUND = Figure(
    name="launch-bound",
    title="Why graphs help",
    order=34,
    caption=(
        "Marks further right gain more from a CUDA graph, because the GPU waits longer for the"
        " host. Removing these waits gains at most the dotted diagonal. Marks above it also run"
        " fewer or faster kernels."
    ),
    absent=(
        "This figure needs a profiled baseline (CUDA, protocol.profile=true) and an ok result of"
        " another mode."
    ),
    data=launch_bound_data,
    draw=launch_bound_draw,
)
FIGURES = [LATENCY, TAIL, THROUGHPUT, LAUNCH_BOUND]
