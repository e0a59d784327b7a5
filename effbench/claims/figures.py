"""Figures with 95 % intervals: what they say about a limit, and the helpers that combine them.

Arithmetic takes the extremes of the bounds, so an interval is never too narrow. A figure that was
not measured stays missing in everything that is computed from it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partialmethod, wraps
from itertools import product, starmap
from typing import Any

import numpy as np

OPEN = "the interval leaves it open"
NO_INTERVAL = "the figure has no interval: a single trial of a cell says nothing of its spread"
UNDEFINED = (
    "the figure is not defined (a division by 0, or a logarithm or geometric mean of values ≤ 0)"
)
NO_VALUE = "it has no value"
#: What a statement is -> the words before such statements in a reason.
TITLES = {True: "holds for", False: "not for", None: "open for"}
UNMEASURED = "not measured for"
#: The smallest positive number.
SMALLEST = math.ulp(0.0)

Function = Callable[[float, float], float]


class NotMeasuredError(Exception):
    """A claim needs a figure or a fact that was not measured."""


@dataclass(frozen=True)
class Statement:
    """Whether a statement holds: True, False, or None if this is open or was not measured, and then
    `why`. `figure`: the figure that was compared."""

    holds: bool | None
    why: str
    figure: Figure

    @property
    def title(self) -> str:
        """The words before the statement in the reason of a verdict."""
        if self.why in ("", OPEN, NO_INTERVAL):
            return TITLES[self.holds]
        return UNMEASURED

    def __bool__(self) -> bool:
        raise TypeError(
            "the interval may leave a comparison open, so it is neither true nor false: return it;"
            " for several statements return Answer({text: comparison})"
        )


@dataclass(frozen=True)
class Figure:
    """A figure and the bounds of its interval: the value itself if it is exact, infinite if
    unknown; NaN if it was not measured. `gaps`: the rows that it lacks, each with the reason."""

    value: float
    low: float
    high: float
    gaps: tuple[str, ...] = ()

    @property
    def is_missing(self) -> bool:
        return math.isnan(self.value)

    @property
    def values(self) -> tuple[float, float, float]:
        """The figure and its bounds."""
        return self.value, self.low, self.high

    @property
    def why_missing(self) -> str:
        return "; ".join(self.gaps[:3]) or NO_VALUE

    def __float__(self) -> float:
        return self.value

    def __bool__(self) -> bool:
        if self.is_missing:
            raise NotMeasuredError(self.why_missing)
        raise TypeError("compare the figure: above(), below() or within()")

    def above(self, limit: Number) -> Statement:
        """Return whether the figure is larger than a number or another figure."""
        return self._compared(self - limit, SMALLEST, math.inf)

    def below(self, limit: Number) -> Statement:
        """Return whether the figure is smaller than a number or another figure."""
        return self._compared(self - limit, -math.inf, -SMALLEST)

    def within(self, low: float, high: float) -> Statement:
        """Return whether low <= figure <= high."""
        return self._compared(self, low, high)

    def _compared(self, difference: Figure, low: float, high: float) -> Statement:
        """Return whether the difference is in this range, as a statement about this figure."""
        figure = replace(self, gaps=difference.gaps)
        if difference.is_missing:
            return Statement(None, difference.why_missing, figure)
        if low <= difference.low and difference.high <= high:
            return Statement(True, "", figure)
        if difference.high < low or difference.low > high:
            return Statement(False, "", figure)
        why = NO_INTERVAL
        if math.isfinite(difference.high - difference.low):
            why = OPEN
        return Statement(None, why, figure)

    def _combined(self, function: Function, number: Number) -> Figure:
        """Return the sum, difference, product or ratio, with its extremes as bounds."""
        other = as_figure(number)
        gaps = gaps_of([self, other])
        try:
            value = function(self.value, other.value)
        except ZeroDivisionError:
            return missing(*gaps, UNDEFINED)
        if math.isnan(value):
            return missing(*gaps)
        if function is operator.truediv and other.low <= 0 <= other.high:
            return Figure(value, -math.inf, math.inf, gaps)
        results = starmap(function, product(self.values, other.values))
        extremes = [result for result in results if not math.isnan(result)]  # 0 × infinity is NaN
        return Figure(value, min(extremes), max(extremes), gaps)

    def _reversed(self, function: Function, number: Number) -> Figure:
        return as_figure(number)._combined(function, self)

    __add__ = partialmethod(_combined, operator.add)
    __radd__ = __add__
    __sub__ = partialmethod(_combined, operator.sub)
    __rsub__ = partialmethod(_reversed, operator.sub)
    __mul__ = partialmethod(_combined, operator.mul)
    __rmul__ = __mul__
    __truediv__ = partialmethod(_combined, operator.truediv)
    __rtruediv__ = partialmethod(_reversed, operator.truediv)


Number = Figure | float | None


def missing(*gaps: str) -> Figure:
    return Figure(math.nan, math.nan, math.nan, gaps)


#: A figure without a reason.
NOT_MEASURED = missing()


def as_figure(value: Number) -> Figure:
    """Return a number as an exact figure, and None or NaN as a missing one."""
    if isinstance(value, Figure):
        return value
    if value is None:
        return NOT_MEASURED
    number = float(value)
    return Figure(number, number, number)


def gaps_of(figures: Iterable[Figure]) -> tuple[str, ...]:
    """Return the gaps of all figures, each once."""
    return tuple(dict.fromkeys(gap for figure in figures for gap in figure.gaps))


def log(number: Number) -> Figure:
    figure = as_figure(number)
    if figure.value <= 0:
        return missing(*figure.gaps, UNDEFINED)
    return mapped(lambda value: math.log(max(value, SMALLEST)), figure)


def mapped(function: Callable[[float], float], figure: Figure) -> Figure:
    """Return an increasing function of a figure."""
    value, low, high = map(function, figure.values)
    return Figure(value, low, high, figure.gaps)


# --- helpers of claims ---

#: A column of a frame, a list, or a single figure.
Column = Number | Iterable[Number]


def over_rows(function: Callable[[Any], Any]) -> Callable[[Column], Figure]:
    """Return the helper that turns the measured figures of a column into one; `function` gets an
    array with a row for each: value, lower and upper bound. It returns a missing figure if there
    are none."""

    @wraps(function)
    def helper(column: Column) -> Figure:
        figures = figures_of(column)
        gaps = gaps_of(figures)
        measured = [figure.values for figure in figures if not figure.is_missing]
        if not measured:
            return missing(*gaps)
        value, low, high = function(np.array(measured)).tolist()
        return Figure(value, low, high, gaps)

    return helper


def figures_of(column: Column) -> list[Figure]:
    if isinstance(column, Iterable):
        return [as_figure(value) for value in column]
    return [as_figure(column)]


@over_rows
def interval(rows: Any) -> Any:
    """Return the figure of the only row. Raises ValueError for several rows."""
    if len(rows) > 1:
        raise ValueError(f"interval() takes one row, not {len(rows)}: select one with where()")
    return rows[0]


@over_rows
def mean(rows: Any) -> Any:
    """Return the mean; the intervals are taken as independent."""
    values = rows[:, :1]
    distances = np.linalg.norm(rows - values, axis=0) / len(rows)
    return values.mean() + distances * (0, -1, 1)


@over_rows
def lowest(rows: Any) -> Any:
    """Return the lowest value, with the lowest of the bounds."""
    return rows.min(axis=0)


@over_rows
def highest(rows: Any) -> Any:
    """Return the highest value, with the highest of the bounds."""
    return rows.max(axis=0)


def geomean(column: Column) -> Figure:
    """Return the geometric mean of positive figures; the intervals are taken as independent."""
    return mapped(math.exp, mean(map(log, figures_of(column))))


def fraction(part: Number, whole: Number) -> Figure:
    """Return which fraction of a speedup a part of it explains: ln(part) ÷ ln(whole)."""
    return log(part) / log(whole)
