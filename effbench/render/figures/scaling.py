"""Latency and throughput against the batch size, or another swept number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from effbench.core.metrics import bounds_of
from effbench.render.colors import style_of
from effbench.render.figures.base import (
    Drawing,
    Figure,
    Plotly,
    Point,
    Points,
    by_series,
    log_axis,
    mode_axis,
    small_axis,
    x_axis,
    x_text,
)

#: Lower and upper bound of an interval, None without one.
Bounds = tuple[float | None, float | None]
#: Ratio of the bounds above which an interval is not drawn: other figures would be too small.
TOO_WIDE = 100


@dataclass(frozen=True)
class Curve:
    """A column that is drawn against the x axis. `names`: the columns of hover texts. `bounds`:
    returns the bounds of a point's interval, which are None without one."""

    title: str
    column: str
    names: Sequence[str]
    bounds: Callable[[Point], Bounds]

    def data(self, points: Points) -> list[Point]:
        """Return the points; none if no ok result has a value."""
        return list(points) if self.known(points) else []

    def values(self, points: Points) -> list[float | None]:
        """Return the values; None for results that are not ok, so that lines break there."""
        return [point[self.column] if point.is_ok else None for point in points]

    def known(self, points: Points) -> list[float]:
        return [value for value in self.values(points) if value is not None]

    def draw(self, points: Points) -> Drawing:
        """Draw a line per mode on logarithmic axes; for a single size, one row of dots per mode."""
        modes = by_series(points)
        values = self.known(points)
        if len({point.x for point in points}) == 1:
            figure = Drawing(
                90 + 26 * len(modes),
                self.names,
                xaxis=small_axis(f"{self.title}, {x_text(points[0])}", values),
                yaxis=mode_axis([*modes]),
            )
            for rank, of_mode in enumerate(modes.values()):
                bars = self.error_bars(of_mode)
                rows = [rank] * len(of_mode)
                figure.add_mode(of_mode, self.values(of_mode), rows, error_x=bars)
            return figure
        figure = Drawing(290, self.names, xaxis=x_axis(points), yaxis=log_axis(self.title, values))
        for mode, of_mode in modes.items():
            style = style_of(mode)
            figure.add_mode(
                of_mode,
                [point.x for point in of_mode],
                self.values(of_mode),
                mode="lines+markers",
                line={"color": style.color, "dash": style.dash, "width": 1.8},
                error_y=self.error_bars(of_mode),
            )
        return figure

    def error_bars(self, points: Points) -> Plotly:
        above, below = [], []
        for point in points:
            value = point[self.column]
            low, high = self.bounds(point)
            if not point.is_ok or not low or not high or high > TOO_WIDE * low:
                low = high = value = 0.0
            above.append(high - value)
            below.append(value - low)
        return {
            "type": "data",
            "symmetric": False,
            "thickness": 1.2,
            "width": 3,
            "array": above,
            "arrayminus": below,
        }


def throughput_bounds(point: Point) -> Bounds:
    """Return the bounds that follow from those of the period, or of the latency without a
    period."""
    name = "latency_ms" if point["period_ms"] is None else "period_ms"
    low, high = bounds_of(point.result, name)
    if not low or not high or not point["throughput_per_s"]:
        return None, None
    work = point["throughput_per_s"] * point[name]
    return work / high, work / low  # a longer period means less throughput


LATENCY_CURVE = Curve(
    "latency (ms)",
    "latency_ms",
    ("status", "latency_ms", "period_ms", "throughput_per_s", "trials"),
    lambda point: bounds_of(point.result, "latency_ms"),
)
THROUGHPUT_CURVE = Curve(
    "throughput (samples/s)",
    "throughput_per_s",
    ("status", "throughput_per_s", "period_ms", "trials"),
    throughput_bounds,
)
TAIL_CURVE = Curve(
    "99th percentile latency (ms)",
    "latency_p99_ms",
    ("status", "latency_p99_ms", "latency_ms", "trials"),
    lambda point: (None, None),
)


def tail_data(points: Points) -> list[Point]:
    """Return the points if the x axis is the rate of arrivals, else none."""
    return TAIL_CURVE.data([point for point in points if point.axis == "stream.rate"])


LATENCY = Figure(
    name="latency",
    title="Latency against {axis}",
    order=30,
    caption=(
        "Latency of one call (arrivals: of one request) on logarithmic axes. Bars are 95 %"
        f" intervals across trials, omitted if the upper bound is over {TOO_WIDE} times the lower"
        " one. Lines break at results that are not ok, which the page Cells lists."
    ),
    absent="No ok result of this sweep has a latency.",
    data=LATENCY_CURVE.data,
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
    data=THROUGHPUT_CURVE.data,
    draw=THROUGHPUT_CURVE.draw,
    small_multiples=True,
)
FIGURES = [LATENCY, TAIL, THROUGHPUT]
