"""Figures with 95 % intervals, what they say about a limit, and the helpers that combine them.

Arithmetic combines the bounds by interval arithmetic, which is never too narrow. A figure that was
not measured stays without a value in everything that is computed from it.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from effbench.errors import UsageError
from effbench.printable import one_line

OPEN = "the interval leaves it open"
NO_INTERVAL = "the figure has no interval: a single trial of a cell says nothing of its spread"
UNDEFINED = (
    "the figure is not defined (a division by 0, or a logarithm or geometric mean of values ≤ 0)"
)
NO_VALUE = "it has no value"
#: Titles of statements in the reason of a verdict.
TITLES = ("holds for", "not for", "open for", "not measured for")


class ClaimError(UsageError):
    """A claim uses something that does not exist."""


class NotMeasuredError(Exception):
    """A claim needs a figure or a fact that was not measured."""


@dataclass(frozen=True)
class Outcome:
    """Whether a statement holds: True, False, or None if this is open, and then `why`.

    `figure`: the figure that was compared. A statement without a figure or an answer was not
    measured.
    """

    holds: bool | None
    why: str = ""
    figure: Figure | None = None

    @property
    def is_measured(self) -> bool:
        if self.holds is not None:
            return True
        return self.figure is not None and not self.figure.is_missing

    @property
    def title(self) -> str:
        holds, fails, is_open, is_unmeasured = TITLES
        if not self.is_measured:
            return is_unmeasured
        return {True: holds, False: fails, None: is_open}[self.holds]

    def __bool__(self) -> bool:
        raise ClaimError(
            "the interval may leave a comparison open, so it is neither true nor false: return it;"
            " for several statements return Answer({text: comparison})"
        )


@dataclass(frozen=True)
class Gap:
    """A row without figures: it failed, or its figures are `marked` and decide nothing."""

    name: str
    status: str
    reason: str


@dataclass(frozen=True)
class Figure:
    """A figure and the bounds of its interval: the value itself if it is exact, infinite if
    unknown. A figure that was not measured is NaN, and `why` gives the reason.

    `gaps`: the rows that were left out of it.
    """

    value: float
    low: float
    high: float
    why: str = ""
    gaps: tuple[Gap, ...] = ()

    @property
    def is_missing(self) -> bool:
        return math.isnan(self.value)

    @property
    def is_exact(self) -> bool:
        return not self.low < self.high

    def __float__(self) -> float:
        return self.value

    def __bool__(self) -> bool:
        if self.is_missing:
            raise NotMeasuredError(self.why)
        raise ClaimError("compare the figure: above(), below() or within()")

    def above(self, limit: Number) -> Outcome:
        """Return whether the figure is larger than a number or another figure."""
        difference = self - limit
        return self.outcome(difference, difference.low > 0, difference.high <= 0)

    def below(self, limit: Number) -> Outcome:
        """Return whether the figure is smaller than a number or another figure."""
        difference = self - limit
        return self.outcome(difference, difference.high < 0, difference.low >= 0)

    def within(self, low: float, high: float) -> Outcome:
        """Return whether low <= figure <= high."""
        is_within = low <= self.low and self.high <= high
        is_outside = self.high < low or self.low > high
        return self.outcome(self, is_within, is_outside)

    def outcome(self, difference: Figure, is_true: bool, is_false: bool) -> Outcome:
        """Return the outcome of a comparison; `difference`: between the figure and the limit."""
        if difference.is_missing:
            return Outcome(None, difference.why, difference)
        compared = replace(self, gaps=difference.gaps)
        if is_true or is_false:
            return Outcome(is_true, "", compared)
        is_bounded = math.isfinite(difference.low) and math.isfinite(difference.high)
        return Outcome(None, OPEN if is_bounded else NO_INTERVAL, compared)

    def __add__(self, other: Number) -> Figure:
        return combine(operator.add, self, other)

    def __sub__(self, other: Number) -> Figure:
        return combine(operator.sub, self, other)

    def __rsub__(self, other: Number) -> Figure:
        return combine(operator.sub, other, self)

    def __mul__(self, other: Number) -> Figure:
        return combine(operator.mul, self, other)

    def __truediv__(self, other: Number) -> Figure:
        return combine(operator.truediv, self, other)

    def __rtruediv__(self, other: Number) -> Figure:
        return combine(operator.truediv, other, self)

    __radd__, __rmul__ = __add__, __mul__


Number = Figure | float | None
#: A column of a frame, or a list.
Column = Iterable[Number]


def missing(why: str, gaps: Iterable[Gap] = ()) -> Figure:
    return Figure(math.nan, math.nan, math.nan, why, tuple(gaps))


def gaps_of(figures: Iterable[Figure]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gap for figure in figures for gap in figure.gaps))


def as_figure(value: Any) -> Figure:
    """Return a number as an exact figure, and None or NaN as a missing one. Raises ClaimError."""
    if isinstance(value, Figure):
        return value
    if value is None:
        return missing(NO_VALUE)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ClaimError(f"expected a number, got {one_line(repr(value), 80)}")
    number = float(value)
    if math.isnan(number):
        return missing(NO_VALUE)
    return Figure(number, number, number)


def combine(function: Callable[[float, float], float], left: Number, right: Number) -> Figure:
    """Return the sum, difference, product or ratio of two figures, with its extremes as bounds."""
    a = as_figure(left)
    b = as_figure(right)
    gaps = gaps_of([a, b])
    if a.is_missing or b.is_missing:
        return missing(a.why or b.why, gaps)
    if function is operator.truediv and b.low <= 0 <= b.high:
        if b.value == 0:
            return missing(UNDEFINED, gaps)
        return Figure(a.value / b.value, -math.inf, math.inf, gaps=gaps)
    value = function(a.value, b.value)
    low = high = value
    for x in (a.low, a.high):
        for y in (b.low, b.high):
            corner = function(x, y)
            # a comparison with NaN is false: an unknown bound times 0, or minus another
            if corner < low:
                low = corner
            if corner > high:
                high = corner
    return Figure(value, low, high, gaps=gaps)


def log(number: Number) -> Figure:
    figure = as_figure(number)
    if figure.is_missing or figure.value <= 0:
        return missing(figure.why or UNDEFINED, figure.gaps)
    value = math.log(figure.value)
    low = math.log(figure.low) if figure.low > 0 else -math.inf
    high = math.log(figure.high)
    return Figure(value, low, high, gaps=figure.gaps)


# --- helpers of claims ---


def reduce(values: Column, function: Callable[[list[Figure]], Figure]) -> Figure:
    """Return a function of the measured figures of a column."""
    figures = [as_figure(value) for value in values]
    known = [figure for figure in figures if not figure.is_missing]
    gaps = gaps_of(figures)
    if known:
        return replace(function(known), gaps=gaps)
    if figures and figures[0].why != NO_VALUE:
        return missing(figures[0].why, gaps)
    return missing(f"no measured row has {getattr(values, 'name', 'it')}", gaps)


def interval(values: Any) -> Figure:
    """Return a number, or the figure of the only row, as a figure. Raises ClaimError for several
    rows."""
    if values is None or isinstance(values, Figure | numbers.Real):
        return as_figure(values)

    def only(figures: list[Figure]) -> Figure:
        if len(figures) == 1:
            return figures[0]
        raise ClaimError(
            f"interval() takes one row, but {len(figures)} are left; select one with where()"
        )

    return reduce(values, only)


def mean(values: Column) -> Figure:
    """Return the mean; the intervals are taken as independent."""

    def of_figures(figures: list[Figure]) -> Figure:
        center = sum(figure.value for figure in figures)
        below = math.hypot(*(figure.low - figure.value for figure in figures))
        above = math.hypot(*(figure.high - figure.value for figure in figures))
        return Figure(center, center - below, center + above) / len(figures)

    return reduce(values, of_figures)


def geomean(values: Column) -> Figure:
    """Return the geometric mean of positive figures; the intervals are taken as independent."""

    def of_figures(figures: list[Figure]) -> Figure:
        if any(figure.value <= 0 for figure in figures):
            return missing(UNDEFINED)
        center = mean([log(figure) for figure in figures])
        low = math.exp(center.low)
        high = math.exp(center.high)
        return Figure(math.exp(center.value), low, high)

    return reduce(values, of_figures)


def lowest(values: Column) -> Figure:
    """Return the lowest value, with the lowest of the bounds."""
    return extreme(values, min)


def highest(values: Column) -> Figure:
    """Return the highest value, with the highest of the bounds."""
    return extreme(values, max)


def extreme(values: Column, choose: Callable[[Iterable[float]], float]) -> Figure:
    def of_figures(figures: list[Figure]) -> Figure:
        value = choose(figure.value for figure in figures)
        low = choose(figure.low for figure in figures)
        high = choose(figure.high for figure in figures)
        return Figure(value, low, high)

    return reduce(values, of_figures)


def fraction(part: Number, whole: Number) -> Figure:
    """Return which fraction of a speedup a part of it explains: ln(part) ÷ ln(whole)."""
    return log(part) / log(whole)
