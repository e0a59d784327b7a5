"""Latency against batch size, a line a mode, with 95 % intervals; one small figure a model."""

from __future__ import annotations

import math

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures import curves
from effbench.report.figures.base import Figure, hover, safe
from effbench.report.figures.drawing import Drawing
from effbench.report.speedup_table import UNKNOWN


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, latency_ms, latency_ci_low_ms, latency_ci_high_ms, period_ms,
    throughput_per_s, trials. One row a result; figures only where it is `ok`, else missing, so that lines break there.
    """
    figures = ["latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "period_ms", "throughput_per_s"]
    out = frame[["case", "bs", "series", "series_rank", "status", *figures, "trials"]].copy()
    shown = (out["status"] == "ok") & (out["latency_ms"] > 0)
    out[figures] = out[figures].where(shown)
    bounds = ["latency_ci_low_ms", "latency_ci_high_ms"]
    unknown = out["latency_ci_high_ms"] > UNKNOWN * out["latency_ci_low_ms"]
    out[bounds] = out[bounds].mask(unknown)  # such a bar would hide all others
    return out if shown.any() else out.iloc[:0]


def draw(table: pd.DataFrame) -> Drawing:
    """Log-log lines over batch size; with a single batch size, one row of dots a mode."""
    return curves.draw(table, CURVE)


def _hover(item) -> str:
    metric = METRICS["latency_ms"]
    lines = [f"<b>{metric.format(item.latency_ms)}</b> · {safe(item.series)}", f"{safe(item.case)} · bs {item.bs}"]
    if not math.isnan(item.latency_ci_low_ms):
        lines.append(f"95 % interval {item.latency_ci_low_ms:.4g}–{item.latency_ci_high_ms:.4g} ms")
    if not math.isnan(item.throughput_per_s):
        lines.append(METRICS["throughput_per_s"].format(item.throughput_per_s))
    return hover(*lines)


CURVE = curves.Curve("latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "latency (ms)", _hover)
FIGURE = Figure(
    name="latency",
    title="Latency against batch size",
    order=30,
    caption="What one request sees, in milliseconds, on logarithmic axes; bands are 95 % intervals across trials. "
    "A line that breaks has no ok result there: see the failures.",
    absent="No result of this sweep has an ok latency.",
    data=data,
    draw=draw,
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "latency_ms": "latency (ms)",
             "latency_ci_low_ms": "95 % low (ms)", "latency_ci_high_ms": "95 % high (ms)", "period_ms": "period (ms)",
             "throughput_per_s": "throughput (samples/s)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
