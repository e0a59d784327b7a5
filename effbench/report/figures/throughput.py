"""Throughput against batch size, a line a mode, with 95 % intervals; one small figure a model."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from effbench.metrics import METRICS
from effbench.report.figures import curves
from effbench.report.figures.base import Figure, hover, safe
from effbench.report.figures.drawing import Drawing
from effbench.report.speedup_table import UNKNOWN


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns: case, bs, series, series_rank, throughput_per_s, throughput_low, throughput_high, period_ms, trials.

    The bounds are those of what the throughput was made of: the period, without one the latency.
    """
    out = frame[["case", "bs", "series", "series_rank", "throughput_per_s", "period_ms", "trials"]].copy()
    has_period = frame["period_ms"].notna()
    of_period = {name: frame.get(f"period_ci_{name}_ms", math.nan) for name in ("low", "high")}
    for name, other in (("low", "high"), ("high", "low")):  # the longer the period, the less throughput
        bound = frame[f"latency_ci_{other}_ms"].where(~has_period, of_period[other])
        middle = frame["latency_ms"].where(~has_period, frame["period_ms"])
        out[f"throughput_{name}"] = frame["throughput_per_s"] * middle / bound
    shown = (frame["status"] == "ok") & (out["throughput_per_s"] > 0)
    figures = ["throughput_per_s", "throughput_low", "throughput_high", "period_ms"]
    out[figures] = out[figures].where(shown)
    bounds = ["throughput_low", "throughput_high"]
    out[bounds] = out[bounds].mask(out["throughput_high"] > UNKNOWN * out["throughput_low"])
    return out if shown.any() else out.iloc[:0]


def draw(table: pd.DataFrame) -> Drawing:
    """Log-log lines over batch size; with a single batch size, one row of dots a mode."""
    return curves.draw(table, CURVE)


def _hover(item: Any) -> str:
    metric = METRICS["throughput_per_s"]
    lines = [
        f"<b>{metric.format(item.throughput_per_s)}</b> · {safe(item.series)}",
        f"{safe(item.case)} · bs {item.bs}",
    ]
    if not math.isnan(item.throughput_low):
        lines.append(f"95 % interval {item.throughput_low:.4g}–{item.throughput_high:.4g} samples/s")
    return hover(*lines)


CURVE = curves.Curve("throughput_per_s", "throughput_low", "throughput_high", "throughput (samples/s)", _hover)
FIGURE = Figure(
    name="throughput",
    title="Throughput against batch size",
    order=32,
    caption="Samples a second of a saturated stream (without a GPU: of one call after the other), on logarithmic axes; "
    "bands are 95 % intervals. Where a line bends down from the straight, the GPU is full.",
    absent="No result of this sweep has an ok throughput.",
    data=data,
    draw=draw,
    numbers={"case": "model", "bs": "bs (samples)", "series": "mode", "throughput_per_s": "throughput (samples/s)",
             "throughput_low": "95 % low (samples/s)", "throughput_high": "95 % high (samples/s)",
             "period_ms": "period (ms)", "trials": "trials"},
    small_multiples=True,
)  # fmt: skip
