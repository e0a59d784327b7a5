"""Latency and throughput against the batch size, or another swept number; and why graphs help."""

from __future__ import annotations

from dataclasses import dataclass

from effbench.metrics import INTERVALS
from effbench.report.colors import style_of
from effbench.report.figures.base import (
    GRAY,
    Drawing,
    Figure,
    Plotly,
    Point,
    Points,
    baselines,
    by_series,
    known,
    log_axis,
    mode_axis,
    small_axis,
    x_axis,
    x_text,
)
from effbench.report.tables import UNKNOWN


@dataclass(frozen=True)
class Curve:
    """The columns that a figure draws against the x axis: `value`, and its bounds if it has any."""

    title: str
    value: str
    bounds: tuple[str, str] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.value, *(self.bounds or ()))

    def lengths(self, points: Points) -> tuple[list[float], list[float]]:
        """Return the lengths of error bars above and below; 0 for unknown bounds."""
        above, below = [], []
        for point in points:
            value = point[self.value]
            low, high = (point[bound] for bound in self.bounds or (self.value, self.value))
            is_known = value is not None and low is not None and high is not None
            above.append(max(high - value, 0.0) if is_known else 0.0)
            below.append(max(value - low, 0.0) if is_known else 0.0)
        return above, below

    def of_ok(self, points: Points, *others: str) -> list[Point]:
        """Return the points with these columns and `others`. Results that are not ok have no
        figures, so that lines break there, and intervals too wide to draw have no bounds. Return no
        point if no result has a value."""
        drawn = []
        for point in points:
            shown = point.with_columns("status", *self.columns, *others, "trials")
            if not point.is_ok or not point.are_positive(self.value):
                shown = _without(shown, *self.columns, *others)
            elif self.bounds is not None and _is_too_wide(point, *self.bounds):
                shown = _without(shown, *self.bounds)
            drawn.append(shown)
        if known(drawn, self.value):
            return drawn
        return []

    def draw(self, points: Points) -> Drawing:
        """Draw a line per mode on logarithmic axes; for a single size, one row of dots per mode."""
        modes = by_series(points)
        values = known(points, *self.columns)
        if len({point.x for point in points}) == 1:
            figure = Drawing(90 + 26 * len(modes), yaxis=mode_axis([*modes]))
            figure.layout["xaxis"] = small_axis(f"{self.title}, {x_text(points[0])}", values)
            for rank, of_mode in enumerate(modes.values()):
                x = [point[self.value] for point in of_mode]
                bars = self._error_bars(of_mode)
                figure.add_mode(of_mode, x, [rank] * len(of_mode), error_x=bars)
            return figure
        figure = Drawing(290, xaxis=x_axis(points), yaxis=log_axis(self.title, values))
        for mode, of_mode in modes.items():
            style = style_of(mode)
            figure.add_mode(
                of_mode,
                [point.x for point in of_mode],
                [point[self.value] for point in of_mode],
                mode="lines+markers",
                line={"color": style.color, "dash": style.dash, "width": 1.8},
                error_y=self._error_bars(of_mode),
            )
        return figure

    def _error_bars(self, points: Points) -> Plotly:
        above, below = self.lengths(points)
        return {
            "type": "data",
            "symmetric": False,
            "thickness": 1.2,
            "width": 3,
            "visible": any(above) or any(below),
            "array": above,
            "arrayminus": below,
        }


def _without(point: Point, *names: str) -> Point:
    """Return the point with these figures unknown."""
    return point.with_columns(*point.values, **dict.fromkeys(names))


def _is_too_wide(point: Point, low: str, high: str) -> bool:
    return point.are_positive(low, high) and bool(point[high] > UNKNOWN * point[low])


LATENCY_CURVE = Curve("latency (ms)", "latency_ms", INTERVALS["latency_ms"])
THROUGHPUT_CURVE = Curve(
    "throughput (samples/s)", "throughput_per_s", ("throughput_ci_low", "throughput_ci_high")
)
TAIL_CURVE = Curve("99th percentile latency (ms)", "latency_p99_ms")


def latency_data(points: Points) -> list[Point]:
    return LATENCY_CURVE.of_ok(points, "period_ms", "throughput_per_s")


def tail_data(points: Points) -> list[Point]:
    """Return the points if the x axis is the rate of arrivals, else none."""
    arrivals = [point for point in points if point.axis == "stream.rate"]
    return TAIL_CURVE.of_ok(arrivals, "latency_ms")


def throughput_data(points: Points) -> list[Point]:
    """Return the points with bounds of the throughput, which follow from those of the period, or of
    the latency if there is no period."""
    bounded = []
    for point in points:
        time = "period_ms"
        if point["period_ms"] is None:
            time = "latency_ms"
        low, high = INTERVALS[time]
        bounds: dict[str, float | None] = dict.fromkeys(THROUGHPUT_CURVE.bounds or ())
        if point.are_positive("throughput_per_s", time, low, high):
            work = point["throughput_per_s"] * point[time]
            # a longer period means less throughput
            bounds = {
                "throughput_ci_low": work / point[high],
                "throughput_ci_high": work / point[low],
            }
        bounded.append(point.with_columns(*point.values, **bounds))
    return THROUGHPUT_CURVE.of_ok(bounded, "period_ms")


def launch_bound_data(points: Points) -> list[Point]:
    """Return one point per `ok` result that has a profiled baseline.

    `launch_ratio`: the baseline's latency ÷ its GPU busy time, the largest speedup from removing
    launches alone.
    """
    ok = [point for point in points if point.is_ok]
    bases = baselines(point for point in ok if point.are_positive("gpu_busy_ms", "latency_ms"))
    drawn = []
    for point in ok:
        base = bases.get(point.place)
        if base is None or point.is_baseline or not point.are_positive("speedup"):
            continue
        shown = point.with_columns(
            "speedup",
            *INTERVALS["speedup"],
            baseline_gpu_busy_ms=base["gpu_busy_ms"],
            baseline_latency_ms=base["latency_ms"],
            launch_ratio=base["latency_ms"] / base["gpu_busy_ms"],
        )
        drawn.append(shown.with_ratio_mark())
    return drawn


def launch_bound_draw(points: Points) -> Drawing:
    """Draw speedup against launch ratio on logarithmic axes, with lines where both are equal and at
    speedup 1."""
    ratios, speedups = known(points, "launch_ratio"), known(points, "speedup")
    ends = min(1.0, *ratios), max(ratios) * 1.05  # of the diagonal, which both axes show
    figure = Drawing(
        420,
        xaxis=log_axis("the baseline's latency ÷ its GPU busy time (×)", [*ratios, *ends]),
        yaxis=log_axis("latency speedup (×)", [*speedups, *ends]),
    )
    line = {"width": 1, "color": GRAY, "dash": "dot"}
    diagonal = {"x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1], "xref": "x"}
    at_one = {"y0": 1, "y1": 1, "x0": 0, "x1": 1, "xref": "x domain"}
    figure.layout["shapes"] = [
        {"type": "line", "line": line, "yref": "y", **place} for place in (diagonal, at_one)
    ]
    for of_mode in by_series(points).values():
        figure.add_mode(of_mode, known(of_mode, "launch_ratio"), known(of_mode, "speedup"))
    return figure


LATENCY = Figure(
    name="latency",
    title="Latency against {axis}",
    order=30,
    caption=(
        "Latency of one call (arrivals: of one request) on logarithmic axes. Bars are 95 %"
        f" intervals across trials, omitted if the upper bound is over {UNKNOWN} times the lower"
        " one. Lines break at results that are not ok, which the page Cells lists."
    ),
    absent="No ok result of this sweep has a latency.",
    data=latency_data,
    draw=LATENCY_CURVE.draw,
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
    draw=TAIL_CURVE.draw,
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
    draw=THROUGHPUT_CURVE.draw,
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
