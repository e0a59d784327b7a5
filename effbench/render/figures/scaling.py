"""Latency and throughput against the batch size, or another swept number."""

from __future__ import annotations

from dataclasses import dataclass

from effbench.core.metrics import INTERVALS
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

#: Ratio of the bounds above which an interval is not drawn: other figures would be too small.
TOO_WIDE = 100


@dataclass(frozen=True)
class Curve:
    """The columns that a figure draws against the x axis: `value`, and its bounds if it has any."""

    title: str
    value: str
    low: str = ""
    high: str = ""

    def data(self, points: Points, *others: str) -> list[Point]:
        """Return the points with these columns and `others`; none if no ok result has a value."""
        columns = [name for name in (self.value, self.low, self.high) if name]
        drawn = [point.with_columns("status", *columns, *others, "trials") for point in points]
        if any(self._drawn(drawn)):
            return drawn
        return []

    def _drawn(self, points: Points) -> list[float | None]:
        """Return the values; None for results that are not ok, so that lines break there."""
        return [point[self.value] if point.is_ok else None for point in points]

    def draw(self, points: Points) -> Drawing:
        """Draw a line per mode on logarithmic axes; for a single size, one row of dots per mode."""
        modes = by_series(points)
        values = [value for value in self._drawn(points) if value is not None]
        if len({point.x for point in points}) == 1:
            figure = Drawing(90 + 26 * len(modes), yaxis=mode_axis([*modes]))
            figure.layout["xaxis"] = small_axis(f"{self.title}, {x_text(points[0])}", values)
            for rank, of_mode in enumerate(modes.values()):
                bars = self._error_bars(of_mode)
                rows = [rank] * len(of_mode)
                figure.add_mode(of_mode, self._drawn(of_mode), rows, error_x=bars)
            return figure
        figure = Drawing(290, xaxis=x_axis(points), yaxis=log_axis(self.title, values))
        for mode, of_mode in modes.items():
            style = style_of(mode)
            figure.add_mode(
                of_mode,
                [point.x for point in of_mode],
                self._drawn(of_mode),
                mode="lines+markers",
                line={"color": style.color, "dash": style.dash, "width": 1.8},
                error_y=self._error_bars(of_mode),
            )
        return figure

    def _error_bars(self, points: Points) -> Plotly:
        above, below = [], []
        for point in points:
            value, low, high = point[self.value], point[self.low], point[self.high]
            if not point.is_ok or not point.are_positive(self.low, self.high):
                low = high = value = 0.0
            elif high > TOO_WIDE * low:
                low = high = value
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


LATENCY_CURVE = Curve("latency (ms)", "latency_ms", *INTERVALS["latency_ms"])
THROUGHPUT_CURVE = Curve(
    "throughput (samples/s)", "throughput_per_s", "throughput_ci_low", "throughput_ci_high"
)
TAIL_CURVE = Curve("99th percentile latency (ms)", "latency_p99_ms")


def latency_data(points: Points) -> list[Point]:
    return LATENCY_CURVE.data(points, "period_ms", "throughput_per_s")


def tail_data(points: Points) -> list[Point]:
    """Return the points if the x axis is the rate of arrivals, else none."""
    arrivals = [point for point in points if point.axis == "stream.rate"]
    return TAIL_CURVE.data(arrivals, "latency_ms")


def throughput_data(points: Points) -> list[Point]:
    """Return the points with bounds of the throughput, which follow from those of the period, or of
    the latency if there is no period."""
    bounded = []
    for point in points:
        time = "period_ms"
        if point["period_ms"] is None:
            time = "latency_ms"
        low, high = INTERVALS[time]
        bounds: dict[str, float] = {}
        if point.are_positive("throughput_per_s", time, low, high):
            work = point["throughput_per_s"] * point[time]
            # a longer period means less throughput
            bounds["throughput_ci_low"] = work / point[high]
            bounds["throughput_ci_high"] = work / point[low]
        bounded.append(point.with_columns(*point.values, **bounds))
    return THROUGHPUT_CURVE.data(bounded, "period_ms")


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
FIGURES = [LATENCY, TAIL, THROUGHPUT]
