"""Figures with 95 % intervals: what they say about a limit, and the helpers that combine them.

Arithmetic takes the extremes of the bounds, so an interval is never too narrow. A figure that was
not measured stays missing in everything that is computed from it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeAlias

OPEN = "the interval leaves it open"
NO_INTERVAL = "the figure has no interval: a single trial of a cell says nothing of its spread"
UNDEFINED = (
    "the figure is not defined (a division by 0, or a logarithm or geometric mean of values ≤ 0)"
)
NO_VALUE = "it has no value"


Function = Callable[[float, float], float]
Operator: TypeAlias = "Callable[[Figure, Number], Figure]"


class NotMeasuredError(Exception):
    """A claim needs a figure or a fact that was not measured."""


@dataclass(frozen=True)
class Statement:
    """Whether a statement holds: True, False, or None if this is open or was not measured, and then
    `why`. `figure`: the figure that was compared."""

    holds: bool | None
    why: str = ""
    figure: Figure | None = None

    @property
    def is_measured(self) -> bool:
        if self.holds is not None:
            return True
        return self.figure is not None and not self.figure.is_missing

    def __bool__(self) -> bool:
        raise TypeError(
            "the interval may leave a comparison open, so it is neither true nor false: return it;"
            " for several statements return Answer({text: comparison})"
        )


def _operators(function: Function) -> tuple[Operator, Operator]:
    """Return the methods of an operator, for a figure on its left and on its right."""

    def forward(figure: Figure, other: Number) -> Figure:
        return combine(function, figure, other)

    def reverse(figure: Figure, other: Number) -> Figure:
        return combine(function, other, figure)

    return forward, reverse


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
        difference = self - limit
        return self._compared(difference, difference.low > 0, difference.high <= 0)

    def below(self, limit: Number) -> Statement:
        """Return whether the figure is smaller than a number or another figure."""
        difference = self - limit
        return self._compared(difference, difference.high < 0, difference.low >= 0)

    def within(self, low: float, high: float) -> Statement:
        """Return whether low <= figure <= high."""
        is_within = low <= self.low and self.high <= high
        is_outside = self.high < low or self.low > high
        return self._compared(self, is_within, is_outside)

    def _compared(self, difference: Figure, is_true: bool, is_false: bool) -> Statement:
        if difference.is_missing:
            return Statement(None, difference.why_missing, difference)
        figure = replace(self, gaps=difference.gaps)
        if is_true or is_false:
            return Statement(is_true, "", figure)
        if math.isfinite(difference.high - difference.low):
            return Statement(None, OPEN, figure)
        return Statement(None, NO_INTERVAL, figure)

    __add__, __radd__ = _operators(operator.add)
    __sub__, __rsub__ = _operators(operator.sub)
    __mul__, __rmul__ = _operators(operator.mul)
    __truediv__, __rtruediv__ = _operators(operator.truediv)


Number = Figure | float | None


def missing(*gaps: str) -> Figure:
    return Figure(math.nan, math.nan, math.nan, gaps)


def as_figure(value: Number) -> Figure:
    """Return a number as an exact figure, and None or NaN as a missing one."""
    if isinstance(value, Figure):
        return value
    if value is None:
        return missing()
    number = float(value)
    return Figure(number, number, number)


def gaps_of(figures: Iterable[Figure]) -> tuple[str, ...]:
    """Return the gaps of all figures, each once."""
    gaps = [gap for figure in figures for gap in figure.gaps]
    return tuple(dict.fromkeys(gaps))


def combine(function: Function, left: Number, right: Number) -> Figure:
    """Return the sum, difference, product or ratio of two figures, with its extremes as bounds."""
    a = as_figure(left)
    b = as_figure(right)
    gaps = gaps_of([a, b])
    if a.is_missing or b.is_missing:
        return missing(*gaps)
    if function is operator.truediv and b.low <= 0 <= b.high:
        if b.value == 0:
            return missing(*gaps, UNDEFINED)
        return Figure(a.value / b.value, -math.inf, math.inf, gaps)
    value = function(a.value, b.value)
    extremes = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    bounds = [value, *extremes]
    known = [bound for bound in bounds if not math.isnan(bound)]  # an unknown bound times 0
    return Figure(value, min(known), max(known), gaps)


def log(number: Number) -> Figure:
    figure = as_figure(number)
    if figure.value <= 0:
        return missing(*figure.gaps, UNDEFINED)
    low = -math.inf
    if figure.low > 0:
        low = math.log(figure.low)
    return Figure(math.log(figure.value), low, math.log(figure.high), figure.gaps)


# --- helpers of claims ---

#: A column of a frame, a list, or a single figure.
Column = Number | Iterable[Number]


def over_rows(function: Callable[[list[Figure]], Figure]) -> Callable[[Column], Figure]:
    """Return the helper that applies a function to the measured figures of a column. It returns a
    missing figure if there are none."""

    @wraps(function)
    def helper(values: Column) -> Figure:
        if not isinstance(values, Iterable):
            values = [values]
        figures = [as_figure(value) for value in values]
        measured = [figure for figure in figures if not figure.is_missing]
        if not measured:
            return missing(*gaps_of(figures))
        combined = function(measured)
        return replace(combined, gaps=gaps_of([combined, *figures]))

    return helper


def columns_of(figures: list[Figure]) -> tuple[list[float], list[float], list[float]]:
    """Return the values, the lower and the upper bounds."""
    values = [figure.value for figure in figures]
    return values, [figure.low for figure in figures], [figure.high for figure in figures]


@over_rows
def interval(figures: list[Figure]) -> Figure:
    """Return the figure of the only row. Raises ValueError for several rows."""
    if len(figures) > 1:
        rows = f"{len(figures)} are left; select one with where()"
        raise ValueError(f"interval() takes one row, but {rows}")
    return figures[0]


@over_rows
def mean(figures: list[Figure]) -> Figure:
    """Return the mean; the intervals are taken as independent."""
    values, lows, highs = columns_of(figures)
    number = len(figures)
    center = sum(values) / number
    below = math.dist(values, lows) / number
    above = math.dist(values, highs) / number
    return Figure(center, center - below, center + above)


@over_rows
def geomean(figures: list[Figure]) -> Figure:
    """Return the geometric mean of positive figures; the intervals are taken as independent."""
    logarithms = [log(figure) for figure in figures]
    if any(figure.is_missing for figure in logarithms):
        return missing(UNDEFINED)
    center = mean(logarithms)
    return Figure(math.exp(center.value), math.exp(center.low), math.exp(center.high))


@over_rows
def lowest(figures: list[Figure]) -> Figure:
    """Return the lowest value, with the lowest of the bounds."""
    values, lows, highs = columns_of(figures)
    return Figure(min(values), min(lows), min(highs))


@over_rows
def highest(figures: list[Figure]) -> Figure:
    """Return the highest value, with the highest of the bounds."""
    values, lows, highs = columns_of(figures)
    return Figure(max(values), max(lows), max(highs))


def fraction(part: Number, whole: Number) -> Figure:
    """Return which fraction of a speedup a part of it explains: ln(part) ÷ ln(whole)."""
    return log(part) / log(whole)
