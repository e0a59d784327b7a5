"""Headings and texts of measured columns, for figures, their tables of numbers and the page of a
cell."""

from __future__ import annotations

from functools import cache
from typing import Any

from effbench.core.labels import ABSENT
from effbench.core.metrics import (
    METRICS,
    format_bytes,
    is_missing,
)

#: Suffix of a column's name -> its unit.
UNITS = {
    "ms": "ms",
    "s": "s",
    "mhz": "MHz",
    "c": "°C",
    "w": "W",
    "mj": "mJ",
    "bytes": "bytes",
}
_TITLES = {"case": "model", "series": "mode"}


@cache
def title_and_unit(name: str) -> tuple[str, str]:
    """Return the title of a column and its unit, which is empty for texts and counts."""
    if name in METRICS:
        return METRICS[name].title, METRICS[name].unit
    stem, _, end = name.rpartition("_")
    unit = ""
    if stem:
        unit = UNITS.get(end, "")
    title = (stem if unit else name).replace("_", " ")
    return _TITLES.get(name, title.replace(" ci ", " 95 % ")), unit


def heading(name: str) -> str:
    """Return the title with its unit: `latency (ms)`. Sizes in bytes show their units in each value
    instead."""
    title, unit = title_and_unit(name)
    if unit not in ("", "bytes"):
        return f"{title} ({unit})"
    return title


def value_text(name: str, value: Any) -> str:
    """Return a value with its unit; an em dash for a missing value."""
    if is_missing(value):
        return ABSENT
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    if name in METRICS:
        return METRICS[name].format(value)
    if not isinstance(value, int | float):
        return str(value)
    unit = title_and_unit(name)[1]
    if unit == "bytes":
        return format_bytes(value)
    text = f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
    if unit:
        return f"{text} {unit}"
    return text


def interval_text(name: str, low: float | None, high: float | None) -> str:
    """Return the 95 % interval of a metric as `0.12 ms to 0.13 ms`; empty without one."""
    if low is None or high is None or not low < high:
        return ""
    return f"{METRICS[name].format(low)} to {METRICS[name].format(high)}"
