"""Figures with their intervals, and how they are reckoned with: single ones (`Estimate`) and one a row (`Vector`).

Bounds of a sum, a product or a ratio are those of interval arithmetic: never too narrow. A comparison is true or false
where the intervals say so, and None where they overlap: what a measurement cannot decide stays undecided.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

#: True, False, or None where it cannot be decided.
Truth = bool | None


class _Absent:
    """What a row does not have: it failed, or nothing was measured of it. Not to be mixed up with an open truth."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


@dataclass(frozen=True)
class Estimate:
    """A figure and the bounds of its 95 % interval; both bounds are the figure itself where it is exact."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Estimate:
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Through a rising function; NaN, with no bounds, where it is not defined at the figure."""
        value = function(self.value)
        if math.isnan(value):
            return UNKNOWN
        low, high = function(self.low), function(self.high)
        return Estimate(value, -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high)


UNKNOWN = Estimate(math.nan, -math.inf, math.inf)


def as_estimate(value: Any) -> Estimate:
    """Raises TypeError for what is no number."""
    if isinstance(value, Estimate):
        return value
    if isinstance(value, bool | int | float):
        return Estimate.exact(float(value))
    raise TypeError(f"{value!r} is no number")


def combine(function: Callable[[float, float], float], a: Any, b: Any) -> Estimate:
    """`function` (+, -, ×, ÷ or power) of two numbers, its bounds over all corners.

    A division by what may be 0 has no bounds; what is not defined is NaN.
    """
    one, other = as_estimate(a), as_estimate(b)
    value = _safe(function, one.value, other.value)
    if math.isnan(value):
        return UNKNOWN
    if one.is_exact and other.is_exact:
        return Estimate.exact(value)
    if function is operator.truediv and other.low <= 0 <= other.high:
        return Estimate(value, -math.inf, math.inf)
    corners = [_safe(function, x, y) for x, y in product((one.low, one.high), (other.low, other.high))]
    if function is operator.mul:  # a bound at infinity is no bound, and 0 times it is 0
        corners = [0.0 if math.isnan(corner) else corner for corner in corners]
    if function is operator.pow:
        return Estimate(value, *_power_bounds(one, other, corners))
    found = [corner for corner in corners if not math.isnan(corner)]
    if not found or any(map(math.isnan, (one.low, one.high, other.low, other.high))):
        return Estimate(value, -math.inf, math.inf)
    return Estimate(value, min(found), max(found))


def _power_bounds(base: Estimate, exponent: Estimate, corners: list[float]) -> tuple[float, float]:
    """A power of what may be negative turns at 0 where the exponent is even, and is not defined between integers."""
    if any(map(math.isnan, corners)) or (base.low <= 0 and exponent.low < 0):
        return -math.inf, math.inf
    if base.low < 0 and not exponent.is_exact:
        return -math.inf, math.inf
    if base.low < 0 < base.high:
        corners = [*corners, 0.0]
    return min(corners), max(corners)


def _safe(function: Callable[[float, float], float], a: float, b: float) -> float:
    try:
        found = function(a, b)
    except ZeroDivisionError:
        return math.nan
    except OverflowError:  # of a power
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    return math.nan if isinstance(found, complex) else found


def less(a: Any, b: Any, or_equal: bool) -> Truth:
    """a < b (or a <= b), as far as the intervals tell."""
    one, other = as_estimate(a), as_estimate(b)
    if math.isnan(one.value) or math.isnan(other.value):
        return None
    if one.high < other.low or (or_equal and one.high <= other.low):
        return True
    if one.low > other.high or (not or_equal and one.low >= other.high):
        return False
    return None


def equal(a: Any, b: Any) -> Truth:
    """Numbers by their intervals, everything else as it is."""
    try:
        one, other = as_estimate(a), as_estimate(b)
    except TypeError:
        return a == b
    if math.isnan(one.value) or math.isnan(other.value):
        return None
    if one.is_exact and other.is_exact:
        return one.value == other.value
    return False if one.high < other.low or one.low > other.high else None


def both(truths: Iterable[Truth | _Absent]) -> Truth | _Absent:
    """False where any is false, else absent where any is, else None where any is."""
    found = list(truths)
    return next((truth for truth in (False, ABSENT, None) if any(one is truth for one in found)), True)


def either(truths: Iterable[Truth | _Absent]) -> Truth | _Absent:
    """True where any is true, else absent where any is, else None where any is."""
    found = list(truths)
    return next((truth for truth in (True, ABSENT, None) if any(one is truth for one in found)), False)


def negate(truth: Truth | _Absent) -> Truth | _Absent:
    return truth if truth is None or truth is ABSENT else not truth


@dataclass(frozen=True)
class Vector:
    """One value a row: estimates, texts, truths, or ABSENT."""

    values: tuple[Any, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def where(self, truths: Vector) -> Vector:
        """The values of the rows for which it is true. Raises TypeError for what is no condition on these rows."""
        same_length(self, truths)
        if not all(truth is None or truth is ABSENT or isinstance(truth, bool) for truth in truths):
            raise TypeError("a column takes a condition in brackets, such as speedup[bs <= 8]")
        return Vector(tuple(value for value, truth in zip(self, truths, strict=True) if truth is True))


def same_length(*vectors: Vector) -> None:
    if len({len(vector) for vector in vectors}) > 1:
        raise TypeError("the columns have different numbers of rows: select with the same condition on both sides")


def each(function: Callable[..., Any], *operands: Any, of_truths: bool = False) -> Any:
    """`function` row by row where any operand is a Vector, else once. What a row lacks, its outcome lacks, but for
    functions of truths, which know what ABSENT means."""
    vectors = [operand for operand in operands if isinstance(operand, Vector)]
    if not vectors:
        return function(*operands)
    same_length(*vectors)
    rows = zip(
        *(operand if isinstance(operand, Vector) else [operand] * len(vectors[0]) for operand in operands), strict=True
    )
    return Vector(
        tuple(ABSENT if not of_truths and any(one is ABSENT for one in row) else function(*row) for row in rows)
    )


# --- many into one ---


def geometric_mean(values: Sequence[Estimate]) -> Estimate:
    """Of positive figures, else NaN; the rows' intervals are combined as independent ones, in log space."""
    if not all(value.value > 0 for value in values):
        return UNKNOWN
    return mean([value.map(log) for value in values]).map(exp)


def mean(values: Sequence[Estimate]) -> Estimate:
    """The rows' intervals are combined as independent ones."""
    if not all(math.isfinite(value.value) for value in values):
        return UNKNOWN
    center = sum(value.value for value in values) / len(values)

    def half(bound: str) -> float:
        return math.hypot(*(getattr(value, bound) - value.value for value in values)) / len(values)

    return Estimate(center, center - half("low"), center + half("high"))


def total(values: Sequence[Estimate]) -> Estimate:
    return combine(operator.mul, mean(values), float(len(values)))


def quantile(values: Sequence[Estimate], share: float) -> Estimate:
    """Linear between ranks; each bound is the quantile of the rows' bounds."""
    if not 0 <= share <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {share:g}")

    if any(math.isnan(value.value) for value in values):
        return UNKNOWN

    def of(numbers: list[float]) -> float:
        ordered = sorted(numbers)
        at = share * (len(ordered) - 1)
        below = math.floor(at)
        above = min(below + 1, len(ordered) - 1)
        if at == below or ordered[below] == ordered[above]:  # also where both are infinite
            return ordered[below]
        return ordered[below] + (at - below) * (ordered[above] - ordered[below])

    return Estimate(*(of([getattr(value, bound) for value in values]) for bound in ("value", "low", "high")))


def share(truths: Sequence[Truth]) -> Estimate:
    """Of rows for which it is true; those that cannot be decided widen the interval both ways."""
    sure, open_ = sum(truth is True for truth in truths), sum(truth is None for truth in truths)
    return Estimate((sure + open_ / 2) / len(truths), sure / len(truths), (sure + open_) / len(truths))


# --- functions of one number, NaN where they are not defined ---


def log(value: float) -> float:
    if value <= 0:
        return -math.inf if value == 0 else math.nan
    return math.log(value)


def exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def sqrt(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


def absolute(value: Estimate) -> Estimate:
    if value.low < 0 < value.high:
        return Estimate(abs(value.value), 0.0, max(-value.low, value.high))
    low, high = sorted((abs(value.low), abs(value.high)))
    return Estimate(abs(value.value), low, high)
