"""Latency and throughput against batch size: a line a mode with the band of its 95 % intervals, one small figure a
model; dots if there is one batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.figures.base import (
    KEYS,
    Drawing,
    Figure,
    bs_axis,
    by_series,
    column,
    hover,
    interval_text,
    log_axis,
    mode_axis,
    safe,
)
from effbench.report.tables import UNKNOWN


@dataclass(frozen=True)
class Curve:
    """What is drawn against batch size: columns of the value and its bounds (NaN: none), the axis' title with its unit
    and the hover text of a row."""

    value: str
    low: str
    high: str
    title: str
    text: Callable[[Any], str]

    def data(self, table: pd.DataFrame, shown: pd.Series, figures: Sequence[str]) -> pd.DataFrame:
        """Return the table with `figures` only in the rows that are `shown`, so that lines break at the others, and
        without the bounds of intervals that would hide all others; empty if nothing is shown."""
        table[figures] = table[figures].where(shown)
        unknown = table[self.high] > UNKNOWN * table[self.low]
        table[[self.low, self.high]] = table[[self.low, self.high]].mask(unknown)
        return table if shown.any() else table.iloc[:0]

    def draw(self, table: pd.DataFrame) -> Drawing:
        """Draw log-log lines; with a single batch size one row of dots for each mode."""
        if table["bs"].nunique() == 1:
            return self._dots(table)
        figure = Drawing(290)
        if table[self.value].isna().all():
            return figure
        figure.layout |= {"xaxis": bs_axis(table["bs"]), "yaxis": log_axis(self.title, self._reach(table))}
        for series, part in by_series(table):
            style = style_of(series)
            faint = f"rgba({','.join(str(int(style.color[at : at + 2], 16)) for at in (1, 3, 5))},0.12)"
            for xs, ys in self._bands(part):
                figure.add(x=xs, y=ys, mode="lines", fill="toself", line={"width": 0}, fillcolor=faint,
                           hoverinfo="skip", name=safe(series), meta={"mode": series})  # fmt: skip
            figure.add_marks(
                series, column(part, "bs"), self._values(part), [self.text(row) for row in part], "lines+markers",
                {"size": 8}, line={"color": style.color, "dash": style.dash, "width": 1.8},
            )  # fmt: skip
            del figure.data[-1]["marker"]["color"]  # the line's
        return figure

    def _dots(self, table: pd.DataFrame) -> Drawing:
        parts = by_series(table)
        figure = Drawing(90 + 26 * len(parts))
        if table[self.value].isna().all():
            return figure
        figure.layout["xaxis"] = log_axis(f"{self.title}, batch size {table['bs'].iloc[0]}", self._reach(table))
        figure.layout["yaxis"] = mode_axis([name for name, _ in parts])
        for rank, (series, part) in enumerate(parts):
            texts = [self.text(row) for row in part]
            rows = [rank] * len(part)
            figure.add_marks(series, self._values(part), rows, texts, marker={"size": 10}, error_x=self._bars(part))
        return figure

    def _values(self, part: Sequence[Any]) -> list[float | None]:
        return [None if math.isnan(value) else value for value in column(part, self.value)]

    def _reach(self, table: pd.DataFrame) -> pd.Series:
        shown = table.dropna(subset=self.value)
        return pd.concat([shown[self.value], shown[self.low], shown[self.high]]).dropna()

    def _bands(self, part: Sequence[Any]) -> list[tuple[list[float], list[float]]]:
        """A closed outline for each run of neighbours that have bounds; a point alone has a whisker's width."""
        runs: list[list[tuple[float, float, float]]] = [[]]
        for row in part:
            value, low, high = (getattr(row, name) for name in (self.value, self.low, self.high))
            if any(math.isnan(item) for item in (value, low, high)):
                runs.append([])
            else:
                runs[-1].append((float(row.bs), float(low), float(high)))
        outlines = []
        for run in filter(None, runs):
            points = run if len(run) > 1 else [(run[0][0] * 0.97, *run[0][1:]), (run[0][0] * 1.03, *run[0][1:])]
            xs, lows, highs = (list(values) for values in zip(*points, strict=True))
            outlines.append(([*xs, *xs[::-1], xs[0]], [*highs, *lows[::-1], highs[0]]))
        return outlines

    def _bars(self, part: Sequence[Any]) -> dict[str, Any]:
        """Error bars; no length where the bound is unknown."""

        def lengths(over: str, under: str) -> list[float]:
            found = [getattr(row, over) - getattr(row, under) for row in part]
            return [0.0 if math.isnan(length) else max(length, 0.0) for length in found]

        arrays = {"array": lengths(self.high, self.value), "arrayminus": lengths(self.value, self.low)}
        visible = not all(math.isnan(getattr(row, self.high) - getattr(row, self.value)) for row in part)
        return {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4, "visible": visible} | arrays


def latency_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, status, trials, latency_ms with its bounds, period_ms, throughput_per_s. A row for each result;
    figures only if it is `ok`."""
    figures = ["latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "period_ms", "throughput_per_s"]
    table = frame[[*KEYS, "status", *figures, "trials"]].copy()
    return LATENCY_CURVE.data(table, (table["status"] == "ok") & (table["latency_ms"] > 0), figures)


def latency_text(row: Any) -> str:
    interval = interval_text(row.latency_ci_low_ms, row.latency_ci_high_ms, ".4g", " ms")
    throughput = row.throughput_per_s
    rate = "" if math.isnan(throughput) else METRICS["throughput_per_s"].format(throughput)
    return hover(row, METRICS["latency_ms"].format(row.latency_ms), interval, rate)


LATENCY_CURVE = Curve("latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "latency (ms)", latency_text)


def throughput_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, trials, throughput_per_s, throughput_low, throughput_high, period_ms. The bounds are those of the
    time that the throughput was made of: the period, or the latency without one."""
    table = frame[[*KEYS, "throughput_per_s", "period_ms", "trials"]].copy()
    has_period = frame["period_ms"].notna()
    middle = frame["latency_ms"].where(~has_period, frame["period_ms"])
    for name, other in (("low", "high"), ("high", "low")):  # the longer the period, the less throughput
        bound = frame[f"latency_ci_{other}_ms"].where(~has_period, frame[f"period_ci_{other}_ms"])
        table[f"throughput_{name}"] = frame["throughput_per_s"] * middle / bound
    shown = (frame["status"] == "ok") & (table["throughput_per_s"] > 0)
    return THROUGHPUT_CURVE.data(table, shown, ["throughput_per_s", "throughput_low", "throughput_high", "period_ms"])


def throughput_text(row: Any) -> str:
    interval = interval_text(row.throughput_low, row.throughput_high, ".4g", " samples/s")
    return hover(row, METRICS["throughput_per_s"].format(row.throughput_per_s), interval)


THROUGHPUT_CURVE = Curve(
    "throughput_per_s", "throughput_low", "throughput_high", "throughput (samples/s)", throughput_text
)


LATENCY = Figure(
    name="latency",
    title="Latency against batch size",
    order=30,
    caption="What one request sees, in milliseconds, on logarithmic axes; bands are 95 % intervals across trials. "
    "A line breaks where the result is not ok: see the failures.",
    absent="No result of this sweep has an ok latency.",
    data=latency_data,
    draw=LATENCY_CURVE.draw,
    numbers={"latency_ms": "latency (ms)", "latency_ci_low_ms": "95 % low (ms)", "latency_ci_high_ms": "95 % high (ms)",
             "period_ms": "period (ms)", "throughput_per_s": "throughput (samples/s)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
THROUGHPUT = Figure(
    name="throughput",
    title="Throughput against batch size",
    order=32,
    caption="Samples per second with back-to-back calls (without a GPU: with one call after the other), on logarithmic "
    "axes; bands are 95 % intervals. Where a line bends down from the straight, the GPU is full.",
    absent="No result of this sweep has an ok throughput.",
    data=throughput_data,
    draw=THROUGHPUT_CURVE.draw,
    numbers={"throughput_per_s": "throughput (samples/s)", "throughput_low": "95 % low (samples/s)",
             "throughput_high": "95 % high (samples/s)", "period_ms": "period (ms)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
FIGURES = [LATENCY, THROUGHPUT]
