"""What a measured quantity is: unit, direction, how trials are combined and results compared; and
how its values are written as text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, ParamSpec

#: The upper bound of an interval that is written is at most this multiple of the lower one.
WIDEST = 1000
#: Units of quantities that depend on times.
UNITS_OF_TIME = ("ms", "s", "mJ", "samples/s", "tokens/s")

Arguments = ParamSpec("Arguments")


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"  # describes, but does not rank


@dataclass(frozen=True)
class Metric:
    """A measured quantity. `title`: empty for facts that a trial records, but that are not
    offered as metrics. `better`: which values are better, by default lower ones. `compare`: `ratio`
    (interval of a ratio), `exact` (any change counts), `bound` (one value per sweep) or `none`.
    `interval`: columns of the bounds of its 95 % confidence interval. `combine`: how trials form a
    result, `mean` (geometric), `median`, `max`, `min`, `warm` or `cold` (the largest of processes
    that did not, or did, compile with an empty cache, if any); None: `store.summary` computes it.
    `caches`: the compile caches of the trials that give it, marked or not: `cold`, `warm` or None,
    which compile nothing; empty: all trials that count. `of`: the field of these trials, by default
    `name`. `explains`: whether failed cells keep it. `as_change`: whether people read the ratio
    1.54 as `+54 %`. `speedup_of`: the time that this speedup compares. `from_times`: whether it
    follows from times, which its unit does not tell. `mark`: the column that says why the figure of
    a result is marked. `name` and `kind` are those of the field that declares it.
    """

    title: str = ""
    unit: str = ""
    better: Better = Better.LOWER
    compare: Literal["ratio", "exact", "bound", "none"] = "none"
    help: str = ""
    interval: tuple[str, str] | None = None
    combine: Literal["mean", "median", "max", "min", "warm", "cold"] | None = None
    caches: tuple[str | None, ...] = ()
    of: str = ""
    explains: bool = False
    as_change: bool = False
    speedup_of: str | None = None
    from_times: bool = False
    mark: str = "disturbance"
    name: str = ""
    kind: type = float

    @property
    def is_timed(self) -> bool:
        """Whether it depends on times, so that a disturbed host or GPU changes it and marks apply
        to it."""
        return self.from_times or self.unit in UNITS_OF_TIME or self.speedup_of is not None

    def format(self, value: float | int | None) -> str:
        """Return `value` as text with a unit and three significant digits; an em dash for None and
        NaN."""
        number = self.number(value)
        has_unit = self.unit not in ("", "bytes") and not self.as_change
        if value is None or not math.isfinite(value) or not has_unit:
            return number
        separator = "" if self.unit == "×" else " "
        return f"{number}{separator}{self.unit}"

    def number(self, value: float | int | None) -> str:
        """Return `value` as `format` does, but without the unit; bytes keep their binary unit."""
        if value is None or math.isnan(value):
            return "—"
        if math.isinf(value):
            return "∞"
        if self.unit == "bytes":
            return format_bytes(value)
        if self.kind is int and float(value).is_integer():
            return f"{value:,.0f}"
        if self.as_change:
            return change_text(value)
        if self.unit == "×":
            return significant(value, 2) if value < 0.0995 else f"{value:.2f}"
        if self.unit == "" and self.interval is None:
            return f"{value:.3g}"
        return significant(value, 3)


def as_field(declare: Callable[Arguments, Metric]) -> Callable[Arguments, Any]:
    """Return a function that declares a metric as a field of a dataclass; None: not measured."""

    def declared(*arguments: Arguments.args, **settings: Arguments.kwargs) -> Any:
        return field(default=None, metadata={"metric": declare(*arguments, **settings)})

    return declared


#: Declares a field that holds a metric; its arguments are those of `Metric`.
metric = as_field(Metric)


def fact(help: str) -> Any:
    """Declare a field with a fact that is recorded, but is no metric."""
    return metric(help=help)


@lru_cache(maxsize=2**16)  # a report shows a figure in several tables
def significant(value: float, digits: int) -> str:
    """Return `value` with this many significant digits, without an exponent from 0.0001 to a
    million."""
    if value == 0 or abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9996 has as many decimals as 1.00
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{decimals}f}"


def format_bytes(value: float) -> str:
    """Return bytes in binary units: `1536` is `1.5 KiB`."""
    if abs(value) < 1024:
        return f"{value:.0f} B"
    power = min(4, int(math.log2(abs(value)) // 10))
    return f"{significant(value / 1024**power, 3)} {' KMGT'[power]}iB"


def interval_text(low: float, high: float, number: Callable[[float], str]) -> str:
    """Return the bounds of an interval as `1.25–1.35`. Bounds more than WIDEST times apart, such as
    those of two values that differ much, tell nothing: return `interval over 1000×`. `number`:
    writes a bound."""
    if high > WIDEST * low:
        return f"interval over {WIDEST}×"
    return f"{number(low)}–{number(high)}"


def ratio_text(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return `1.052 (1.047–1.057)`, the ratio alone without bounds, or an empty text for None."""
    if ratio is None:
        return ""
    if low is None or high is None:
        return f"{ratio:.3f}"
    return f"{ratio:.3f} ({interval_text(low, high, '{:.3f}'.format)})"


def change_text(ratio: float) -> str:
    """Return a ratio as a change: `+54 %` for 1.54, `−2.1 %` for 0.979, `±0 %` for 1, `12×` from 10
    on."""
    if ratio >= 10:
        return f"{significant(ratio, 2)}×"
    change = 100 * (ratio - 1)
    if abs(change) < 0.05:
        return "±0 %"
    decimals = 1 if abs(change) < 9.95 else 0
    return f"{change:+.{decimals}f} %".replace("-", "−")


def percent(value: float) -> str:
    """Return a fraction in per cent: `5.2 %` for 0.052, `34 %` for 0.34."""
    if value >= 10:
        return "more than tenfold"
    decimals = 1 if value < 0.0995 else 0
    return f"{100 * value:.{decimals}f} %"
