"""Throughput against batch size, a line a mode, with 95 % intervals; one small figure a model."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures.base import KEYS, Figure, hover
from effbench.report.figures.curves import Curve


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: KEYS, trials, throughput_per_s, throughput_low, throughput_high, period_ms. The bounds are those of the
    time that the throughput was made of: the period, or the latency without one."""
    table = frame[[*KEYS, "throughput_per_s", "period_ms", "trials"]].copy()
    has_period = frame["period_ms"].notna()
    middle = frame["latency_ms"].where(~has_period, frame["period_ms"])
    for name, other in (("low", "high"), ("high", "low")):  # the longer the period, the less throughput
        bound = frame[f"latency_ci_{other}_ms"].where(~has_period, frame[f"period_ci_{other}_ms"])
        table[f"throughput_{name}"] = frame["throughput_per_s"] * middle / bound
    shown = (frame["status"] == "ok") & (table["throughput_per_s"] > 0)
    return CURVE.data(table, shown, ["throughput_per_s", "throughput_low", "throughput_high", "period_ms"])


def text(row: Any) -> str:
    interval = ""
    if not math.isnan(row.throughput_low):
        interval = f"95 % interval {row.throughput_low:.4g}–{row.throughput_high:.4g} samples/s"
    return hover(row, METRICS["throughput_per_s"].format(row.throughput_per_s), interval)


CURVE = Curve("throughput_per_s", "throughput_low", "throughput_high", "throughput (samples/s)", text)
FIGURE = Figure(
    name="throughput",
    title="Throughput against batch size",
    order=32,
    caption="Samples per second with back-to-back calls (without a GPU: with one call after the other), on logarithmic "
    "axes; bands are 95 % intervals. Where a line bends down from the straight, the GPU is full.",
    absent="No result of this sweep has an ok throughput.",
    data=data,
    draw=CURVE.draw,
    numbers={"throughput_per_s": "throughput (samples/s)", "throughput_low": "95 % low (samples/s)",
             "throughput_high": "95 % high (samples/s)", "period_ms": "period (ms)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
