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


class ClaimError(UsageError):
    """A claim uses something that does not exist."""


class NotMeasuredError(Exception):
    """A claim needs a figure or a fact that was not measured."""


@dataclass(frozen=True)
class Outcome:
    """Whether a statement holds: True, False, or None if this is open, and then `why`.

    `figure`: the figure that was compared. `is_measured`: False if there was nothing to compare.
    """

    holds: bool | None
    why: str = ""
    figure: Figure | None = None
    is_measured: bool = True

    def __bool__(self) -> bool:
        raise ClaimError(
            "the interval may leave a comparison open, so it is neither true nor false: return it;"
            " for several statements return Answer({text: comparison})"
        )


@dataclass(frozen=True)
class Figure:
    """A figure and the bounds of its interval: the value itself if it is exact, infinite if unknown.

    A figure that was not measured is NaN, and `why` gives the reason. `gaps`: labels of the rows
    that were left out of it, because they lack the figure.
    """

    value: float
    low: float
    high: float
    why: str = ""
    gaps: tuple[str, ...] = ()

    @property
    def is_missing(self) -> bool:
        return math.isnan(self.value)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def __bool__(self) -> bool:
        if self.is_missing:
            raise NotMeasuredError(self.why)
        raise ClaimError("compare the figure: above(), below() or within()")

    def exact(self) -> float:
        """Return the value of a count. Raises NotMeasuredError."""
        if self.is_missing:
            raise NotMeasuredError(self.why)
        return self.value

    def above(self, limit: Number) -> Outcome:
        """Return whether the figure is larger than a number or another figure."""
        other = as_figure(limit)
        is_above = other.high < self.low
        return self.outcome(is_above, other.low >= self.high, other)

    def below(self, limit: Number) -> Outcome:
        """Return whether the figure is smaller than a number or another figure."""
        other = as_figure(limit)
        is_below = self.high < other.low
        return self.outcome(is_below, self.low >= other.high, other)

    def within(self, low: float, high: float) -> Outcome:
        """Return whether low <= figure <= high."""
        is_within = low <= self.low and self.high <= high
        return self.outcome(is_within, self.high < low or self.low > high, self)

    def outcome(self, is_true: bool, is_false: bool, other: Figure) -> Outcome:
        compared = replace(self, gaps=merge(self.gaps, other.gaps))
        for figure in (self, other):
            if figure.is_missing:
                return Outcome(None, figure.why, compared, figure.why == UNDEFINED)
        if is_true or is_false:
            return Outcome(is_true, figure=compared)
        bounds = (self.low, self.high, other.low, other.high)
        is_bounded = all(math.isfinite(bound) for bound in bounds)
        return Outcome(None, OPEN if is_bounded else NO_INTERVAL, compared)

    def __add__(self, other: Number) -> Figure:
        return combine(operator.add, self, other)

    def __radd__(self, other: Number) -> Figure:
        return combine(operator.add, other, self)

    def __sub__(self, other: Number) -> Figure:
        return combine(operator.sub, self, other)

    def __rsub__(self, other: Number) -> Figure:
        return combine(operator.sub, other, self)

    def __mul__(self, other: Number) -> Figure:
        return combine(operator.mul, self, other)

    def __rmul__(self, other: Number) -> Figure:
        return combine(operator.mul, other, self)

    def __truediv__(self, other: Number) -> Figure:
        return combine(operator.truediv, self, other)

    def __rtruediv__(self, other: Number) -> Figure:
        return combine(operator.truediv, other, self)


Number = Figure | float | None
#: A column of a frame, or a list.
Column = Iterable[Number]


def missing(why: str, gaps: Iterable[str] = ()) -> Figure:
    return Figure(math.nan, -math.inf, math.inf, why, tuple(gaps))


def merge(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *second]))


def as_figure(value: Any) -> Figure:
    """Return a number as an exact figure, and None or NaN as a missing one. Raises ClaimError."""
    if isinstance(value, Figure):
        return value
    if value is None:
        return missing(NO_VALUE)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        return missing(NO_VALUE) if math.isnan(number) else Figure(number, number, number)
    raise ClaimError(f"expected a number, got {one_line(repr(value), 80)}")


def combine(function: Callable[[float, float], float], left: Number, right: Number) -> Figure:
    """Return the sum, difference, product or ratio of two figures, with its extremes as bounds."""
    a, b = as_figure(left), as_figure(right)
    gaps = merge(a.gaps, b.gaps)
    if a.is_missing or b.is_missing:
        return missing(a.why or b.why, gaps)
    if function is operator.truediv and b.low <= 0 <= b.high:
        if b.value == 0:
            return missing(UNDEFINED, gaps)
        return Figure(a.value / b.value, -math.inf, math.inf, gaps=gaps)
    value = function(a.value, b.value)
    corners = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    # an unknown bound times 0, or minus another unknown one
    known = [corner for corner in corners if not math.isnan(corner)] or [value]
    return Figure(value, min(known), max(known), gaps=gaps)


def log(figure: Figure) -> Figure:
    """Return the logarithm of a figure; missing unless the value is positive."""
    if figure.is_missing or figure.value <= 0:
        return missing(figure.why or UNDEFINED, figure.gaps)
    low = math.log(figure.low) if figure.low > 0 else -math.inf
    return replace(figure, value=math.log(figure.value), low=low, high=math.log(figure.high))


# --- helpers of claims ---


def summarise(values: Column, function: Callable[[list[Figure]], Figure]) -> Figure:
    """Return a function of the measured figures of a column, and the labels of the other rows."""
    labelled = values.items() if hasattr(values, "items") else [("", value) for value in values]
    figures, gaps, why = [], [], "nothing was measured"
    for label, value in labelled:
        figure = as_figure(value)
        gaps += figure.gaps
        if not figure.is_missing:
            figures.append(figure)
            continue
        why = figure.why
        if label:
            gaps.append(label)
    if not figures:
        name = getattr(values, "name", None)
        return missing(f"no measured row has {name}" if name else why, gaps)
    return replace(function(figures), gaps=merge(gaps, ()))


def interval(values: Any) -> Figure:
    """Return a number, or the figure of the only row, as a figure. Raises ClaimError for several
    rows."""
    if values is None or isinstance(values, Figure | numbers.Real):
        return as_figure(values)
    return summarise(values, only_figure)


def only_figure(figures: list[Figure]) -> Figure:
    if len(figures) != 1:
        raise ClaimError(
            f"interval() takes one row, but {len(figures)} are left; select one with where()"
        )
    return figures[0]


def mean(values: Column) -> Figure:
    """Return the mean; the intervals are taken as independent."""
    return summarise(values, mean_of_figures)


def mean_of_figures(figures: list[Figure]) -> Figure:
    center = sum(figure.value for figure in figures) / len(figures)
    below = math.hypot(*(figure.low - figure.value for figure in figures)) / len(figures)
    above = math.hypot(*(figure.high - figure.value for figure in figures)) / len(figures)
    return Figure(center, center - below, center + above)


def geomean(values: Column) -> Figure:
    """Return the geometric mean of positive figures; the intervals are taken as independent."""
    return summarise(values, geomean_of_figures)


def geomean_of_figures(figures: list[Figure]) -> Figure:
    if any(figure.value <= 0 for figure in figures):
        return missing(UNDEFINED)
    center = mean_of_figures([log(figure) for figure in figures])
    return Figure(math.exp(center.value), math.exp(center.low), math.exp(center.high))


def lowest(values: Column) -> Figure:
    """Return the lowest value, with the lowest of the bounds."""
    return summarise(values, lambda figures: extreme(min, figures))


def highest(values: Column) -> Figure:
    """Return the highest value, with the highest of the bounds."""
    return summarise(values, lambda figures: extreme(max, figures))


def extreme(choose: Callable[[Iterable[float]], float], figures: list[Figure]) -> Figure:
    return Figure(
        choose(figure.value for figure in figures),
        choose(figure.low for figure in figures),
        choose(figure.high for figure in figures),
    )


def fraction(part: Number, whole: Number) -> Figure:
    """Return which fraction of a speedup a part of it explains: ln(part) ÷ ln(whole)."""
    return log(as_figure(part)) / log(as_figure(whole))
