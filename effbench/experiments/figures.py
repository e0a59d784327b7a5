"""Figures with 95 % intervals, conditions with three values, and the functions that combine them in
claims.

Sums, products and ratios get their bounds by interval arithmetic, which is never too narrow. A
comparison is true or false if the intervals decide it, and open if they overlap. NaN marks a row
without the figure.
"""

from __future__ import annotations

import math
import numbers
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partialmethod, wraps
from itertools import product
from typing import Any, ClassVar

from effbench.errors import UsageError
from effbench.printable import one_line

OPEN = "the interval leaves it open"
NO_INTERVAL = "the figure has no interval: a single trial of a cell says nothing of its spread"
UNDEFINED = (
    "the figure is not defined (a division by 0, or a logarithm or geometric mean of values ≤ 0)"
)

#: Index labels of the rows that lacked a requested figure, since `judge` last emptied this set.
no_figure: set[Any] = set()


class ClaimError(UsageError):
    """A claim uses something that does not exist."""


@dataclass(eq=False)
class Truth:
    """A condition. `holds`: True, False, or None (open; `why` gives the reason). `missing`: nothing
    was measured.

    Combine conditions with `&`, `|` and `~`, as in pandas.
    """

    holds: bool | None
    why: str = ""
    missing: ClassVar[bool] = False

    def __bool__(self) -> bool:
        how = "combine conditions with &, |, ~, between(), all_of() and any_of()"
        raise ClaimError(
            f"a condition may be open: {how}; of a column: all_of(x > 1 for x in figures(column))"
        )

    def __and__(self, other: Any) -> Truth:
        return all_of([self, other])

    def __or__(self, other: Any) -> Truth:
        return any_of([self, other])

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Truth:
        return self if self.holds is None else Truth(not self.holds)


def truth(value: Any) -> Truth:
    """Return a Truth, a bool or None (missing) as a condition. Raises ClaimError for anything
    else."""
    if isinstance(value, Truth):
        return value
    if value is None:
        return Missing("it has no value")
    if type(value).__name__ not in ("bool", "bool_"):  # bool_ is NumPy's
        raise ClaimError(f"expected a condition such as value > 1, got {one_line(repr(value), 80)}")
    return Truth(bool(value))


def all_of(truths: Iterable[Any]) -> Truth:
    """Return false if any condition is false, else open if any is open or the list is empty, else
    true."""
    conditions = [truth(item) for item in truths]
    if not conditions:
        return truths if isinstance(truths, Missing) else Missing("nothing was measured of it")
    if any(item.holds is False for item in conditions):
        return Truth(False)
    undecided = [item for item in conditions if item.holds is None]
    return max(undecided, key=lambda item: item.missing) if undecided else Truth(True)


def any_of(truths: Iterable[Any]) -> Truth:
    """Return true if any condition is true, else open if any is open, else false."""
    return truths if isinstance(truths, Missing) else ~all_of([~truth(item) for item in truths])


def as_figure(value: Any) -> Figure:
    """Return a number as a figure. Raises ClaimError for anything else."""
    if isinstance(value, Figure):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return Figure(float(value))
    raise ClaimError(f"expected a number, got {one_line(repr(value), 80)}")


def less(a: Any, b: Any) -> Truth:
    """Return whether a < b, as far as the intervals decide it."""
    for value in (a, b):
        if isinstance(value, Missing):
            return value
    a, b = as_figure(a), as_figure(b)
    if math.isnan(a.value) or math.isnan(b.value):
        return Truth(None, UNDEFINED)
    if a.high < b.low or a.low >= b.high:
        return Truth(a.high < b.low)
    bounded = all(math.isfinite(bound) for bound in (a.low, a.high, b.low, b.high))
    return Truth(None, OPEN if bounded else NO_INTERVAL)


def combine(a: Any, function: Callable[[float, float], float], b: Any) -> Any:
    """Return the sum, difference, product or ratio of two numbers with its extremes; NaN if a row
    lacks one of them."""
    for value in (a, b):
        if isinstance(value, Missing) or (isinstance(value, float) and math.isnan(value)):
            return value
    a, b = as_figure(a), as_figure(b)
    divides = function is operator.truediv
    value = math.nan if divides and b.value == 0 else function(a.value, b.value)
    if math.isnan(value):
        return UNKNOWN
    if a.is_exact and b.is_exact:
        return Figure(value)
    if divides and b.low <= 0 <= b.high:
        return Figure(value, -math.inf, math.inf)
    corners = [function(x, y) for x, y in product((a.low, a.high), (b.low, b.high))]
    if function is operator.mul:  # an infinite bound means unknown, so 0 times it is 0
        corners = [0.0 if math.isnan(corner) else corner for corner in corners]
    known = [corner for corner in corners if not math.isnan(corner)]
    return Figure(value, min(known), max(known))


class Figure:
    """A number and the bounds of its interval; both bounds are the number itself if it is exact."""

    def __init__(self, value: float, low: float | None = None, high: float | None = None) -> None:
        self.value = float(value)
        self.low = self.value if low is None else float(low)
        self.high = self.value if high is None else float(high)

    def __repr__(self) -> str:
        return (
            f"{self.value:g}" if self.is_exact else f"{self.value:g} [{self.low:g}, {self.high:g}]"
        )

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def after(self, function: Callable[[float, float], float], other: Any) -> Any:
        return combine(other, function, self)

    __add__, __radd__ = partialmethod(combine, operator.add), partialmethod(after, operator.add)
    __sub__, __rsub__ = partialmethod(combine, operator.sub), partialmethod(after, operator.sub)
    __mul__, __rmul__ = partialmethod(combine, operator.mul), partialmethod(after, operator.mul)
    __truediv__, __rtruediv__ = (
        partialmethod(combine, operator.truediv),
        partialmethod(after, operator.truediv),
    )

    def __neg__(self) -> Any:
        return self * -1

    __lt__ = less

    def __gt__(self, other: Any) -> Truth:
        return less(other, self)

    def __le__(self, other: Any) -> Truth:
        return ~(self > other)

    def __ge__(self, other: Any) -> Truth:
        return ~(self < other)

    def __eq__(self, other: Any) -> Any:
        return (self <= other) & (self >= other)

    __hash__ = object.__hash__


class Missing(Figure, Truth):
    """A figure, fact or condition that was not measured. Everything computed from it is missing for
    the same reason."""

    missing = True

    def __init__(self, reason: str) -> None:
        Figure.__init__(self, math.nan, -math.inf, math.inf)
        Truth.__init__(self, None, reason)

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Missing:
        return self

    __call__ = __getitem__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


UNKNOWN = Figure(math.nan, -math.inf, math.inf)


def between(value: Any, low: Any, high: Any) -> Truth:
    """Return whether low <= value <= high."""
    value = as_figure(value)
    return (value >= low) & (value <= high)


def rising(function: Callable[[float], float], value: Any) -> Figure:
    """Return an increasing function of a figure and of its bounds."""
    value = as_figure(value)
    if isinstance(value, Missing):
        return value
    result, low, high = (function(bound) for bound in (value.value, value.low, value.high))
    if math.isnan(result):
        return UNKNOWN
    return Figure(result, -math.inf if math.isnan(low) else low, high)


def log(value: Any) -> Figure:
    return rising(lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan, value)


def exp(value: Any) -> Figure:
    return rising(lambda x: math.inf if x > 700 else math.exp(x), value)


# --- many into one ---


def figures(values: Any) -> list[Figure]:
    """Return the figures of a column or a list, without missing ones."""
    if hasattr(values, "index") and hasattr(values, "dropna"):
        no_figure.update(values.index[values.isna()])
        values = values.dropna()
    return [
        as_figure(value) for value in values if value is not None and not isinstance(value, Missing)
    ]


def reduction(function: Callable[[list[Figure]], Figure]) -> Callable[[Any], Figure]:
    """Turn a function of a list of figures into a function of a column or a list, which may be
    empty."""

    @wraps(function)
    def reduced(values: Any) -> Figure:
        if isinstance(values, Missing):
            return values
        given = figures(values)
        name = getattr(values, "name", None) or "it"
        return function(given) if given else Missing(f"no measured row has {name}")

    return reduced


@reduction
def mean(values: list[Figure]) -> Figure:
    """Return the mean; the intervals are taken as independent."""
    if not all(math.isfinite(figure.value) for figure in values):
        return UNKNOWN
    center = sum(figure.value for figure in values) / len(values)
    below = math.hypot(*(figure.low - figure.value for figure in values)) / len(values)
    above = math.hypot(*(figure.high - figure.value for figure in values)) / len(values)
    return Figure(center, center - below, center + above)


@reduction
def geomean(values: list[Figure]) -> Figure:
    """Return the geometric mean of positive figures; the intervals are taken as independent."""
    return (
        exp(mean([log(figure) for figure in values]))
        if all(v.value > 0 for v in values)
        else UNKNOWN
    )


def of_bounds(function: Callable[[list[float]], float]) -> Callable[[Any], Figure]:
    """Turn a function of numbers into a function of figures, which applies it to the values and to
    both bounds."""

    @reduction
    def reduced(values: list[Figure]) -> Figure:
        if any(math.isnan(figure.value) for figure in values):
            return UNKNOWN
        return Figure(
            *(
                function([getattr(figure, bound) for figure in values])
                for bound in ("value", "low", "high")
            )
        )

    return reduced


lowest, median, highest = of_bounds(min), of_bounds(statistics.median), of_bounds(max)


@reduction
def only(values: list[Figure]) -> Figure:
    """Return the figure of the only row. Raises ClaimError for several rows."""
    if len(values) != 1:
        raise ClaimError(
            f"only() takes one row, but {len(values)} are left; select one with where()"
        )
    return values[0]


# --- facts of checks ---


class Facts(dict):
    """The facts of a check, read as attributes or by key. Numbers, and mappings of value, low and
    high, are figures; booleans are conditions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if name in self:
            return fact_value(super().__getitem__(name))
        if isinstance(reason := self.get("unsupported"), str):
            return Missing(f"unsupported: {reason}")
        if self.get("succeeded") is False:
            return Missing(
                f"{self.get('error_type') or 'error'}: {self.get('error') or 'no reason recorded'}"
            )
        raise ClaimError(
            f"the check returned no {name!r}; it has {', '.join(map(str, self)) or 'nothing'}"
        )

    def each(self, name: str) -> list[Any]:
        """Return the fact `name` of every part that has it."""
        return [
            fact_value(part[name])
            for part in self.values()
            if isinstance(part, Mapping) and name in part
        ]


def fact_value(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return truth(value)
    if isinstance(value, int | float):
        return Figure(value)
    if isinstance(value, Mapping):
        return Figure(**value) if value.keys() == {"value", "low", "high"} else Facts(value)
    return [fact_value(item) for item in value] if isinstance(value, list) else value
