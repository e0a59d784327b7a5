"""Latency against batch size, a line a mode, with 95 % intervals; one small figure a model."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures.base import KEYS, Figure, hover
from effbench.report.figures.curves import Curve


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, status, trials, latency_ms with its bounds, period_ms, throughput_per_s. A row for each result;
    figures only if it is `ok`."""
    figures = ["latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "period_ms", "throughput_per_s"]
    table = frame[[*KEYS, "status", *figures, "trials"]].copy()
    return CURVE.data(table, (table["status"] == "ok") & (table["latency_ms"] > 0), figures)


def text(row: Any) -> str:
    lines = []
    if not math.isnan(row.latency_ci_low_ms):
        lines.append(f"95 % interval {row.latency_ci_low_ms:.4g}–{row.latency_ci_high_ms:.4g} ms")
    if not math.isnan(row.throughput_per_s):
        lines.append(METRICS["throughput_per_s"].format(row.throughput_per_s))
    return hover(row, METRICS["latency_ms"].format(row.latency_ms), *lines)


CURVE = Curve("latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "latency (ms)", text)
FIGURE = Figure(
    name="latency",
    title="Latency against batch size",
    order=30,
    caption="What one request sees, in milliseconds, on logarithmic axes; bands are 95 % intervals across trials. "
    "A line breaks where the result is not ok: see the failures.",
    absent="No result of this sweep has an ok latency.",
    data=data,
    draw=CURVE.draw,
    numbers={"latency_ms": "latency (ms)", "latency_ci_low_ms": "95 % low (ms)", "latency_ci_high_ms": "95 % high (ms)",
             "period_ms": "period (ms)", "throughput_per_s": "throughput (samples/s)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
