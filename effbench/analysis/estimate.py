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
        """Through a monotone function."""
        low, high = sorted((function(self.low), function(self.high)))
        return Estimate(function(self.value), low, high)


def as_estimate(value: Any) -> Estimate:
    """Raises TypeError for what is no number."""
    if isinstance(value, Estimate):
        return value
    if isinstance(value, bool | int | float):
        return Estimate.exact(float(value))
    raise TypeError(f"{value!r} is no number")


def _safe(function: Callable[[float, float], float], a: float, b: float) -> float:
    try:
        return function(a, b)
    except ZeroDivisionError:
        return math.nan
    except OverflowError:
        return math.inf


def combine(function: Callable[[float, float], float], a: Any, b: Any) -> Estimate:
    """`function` of two numbers, its bounds over all corners. A division by what may be 0 has no bounds."""
    one, other = as_estimate(a), as_estimate(b)
    if function is operator.truediv and other.low <= 0 <= other.high:
        return Estimate(_safe(function, one.value, other.value), -math.inf, math.inf)
    corners = [_safe(function, x, y) for x, y in product((one.low, one.high), (other.low, other.high))]
    return Estimate(_safe(function, one.value, other.value), min(corners), max(corners))


def less(a: Any, b: Any, or_equal: bool) -> Truth:
    """a < b (or a <= b), as far as the intervals tell."""
    one, other = as_estimate(a), as_estimate(b)
    if math.isnan(one.value) or math.isnan(other.value):
        return None
    if one.is_exact and other.is_exact:
        return one.value <= other.value if or_equal else one.value < other.value
    if one.high < other.low:
        return True
    if one.low > other.high:
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


def both(truths: Iterable[Truth]) -> Truth:
    """False where any is false, else None where any is."""
    found = list(truths)
    return False if False in found else None if None in found else True


def either(truths: Iterable[Truth]) -> Truth:
    found = list(truths)
    return True if True in found else None if None in found else False


def negate(truth: Truth) -> Truth:
    return None if truth is None else not truth


@dataclass(frozen=True)
class Vector:
    """One value a row: estimates, texts, truths, or None where a row has no such figure."""

    values: tuple[Any, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def where(self, truths: Vector) -> Vector:
        """The values of the rows for which it is true."""
        return Vector(tuple(value for value, truth in zip(self, truths, strict=True) if truth is True))

    def numbers(self) -> list[Estimate]:
        """All that are there. Raises TypeError for texts."""
        return [as_estimate(value) for value in self if value is not None]


def each(function: Callable[..., Any], *operands: Any, of_truths: bool = False) -> Any:
    """`function` row by row where any operand is a Vector, else once. A row that lacks an operand gives None, but for
    functions of truths, which know what None means."""
    vectors = [operand for operand in operands if isinstance(operand, Vector)]
    if not vectors:
        return function(*operands)
    length = len(vectors[0])
    if any(len(vector) != length for vector in vectors):
        raise TypeError("the columns have different numbers of rows: select with the same condition on both sides")
    rows = zip(*(operand if isinstance(operand, Vector) else [operand] * length for operand in operands), strict=True)
    return Vector(tuple(None if None in row and not of_truths else function(*row) for row in rows))


# --- many into one ---


def geometric_mean(values: Sequence[Estimate]) -> Estimate:
    """Of positive figures; the rows' intervals are combined as independent ones, in log space."""
    if any(value.value <= 0 or value.low <= 0 for value in values):
        raise ValueError("a geometric mean needs figures above 0")
    logs = [math.log(value.value) for value in values]
    center = math.fsum(logs) / len(logs)

    def half(bound: str) -> float:
        widths = (math.log(getattr(value, bound)) - log for value, log in zip(values, logs, strict=True))
        return math.sqrt(math.fsum(width**2 for width in widths)) / len(logs)

    return Estimate(math.exp(center), math.exp(center - half("low")), math.exp(center + half("high")))


def mean(values: Sequence[Estimate]) -> Estimate:
    """The rows' intervals are combined as independent ones."""
    center = math.fsum(value.value for value in values) / len(values)

    def half(bound: str) -> float:
        return math.sqrt(math.fsum((getattr(value, bound) - value.value) ** 2 for value in values)) / len(values)

    return Estimate(center, center - half("low"), center + half("high"))


def total(values: Sequence[Estimate]) -> Estimate:
    found = mean(values)
    return Estimate(*(len(values) * bound for bound in (found.value, found.low, found.high)))


def quantile(values: Sequence[Estimate], share: float) -> Estimate:
    """Linear between ranks; each bound is the quantile of the rows' bounds."""
    if not 0 <= share <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {share:g}")

    def of(numbers: list[float]) -> float:
        ordered = sorted(numbers)
        at = share * (len(ordered) - 1)
        below = math.floor(at)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (at - below) * (ordered[above] - ordered[below])

    return Estimate(*(of([getattr(value, bound) for value in values]) for bound in ("value", "low", "high")))


def share(truths: Sequence[Truth]) -> Estimate:
    """Of rows for which it is true; those that cannot be decided widen the interval both ways."""
    sure, open_ = sum(truth is True for truth in truths), sum(truth is None for truth in truths)
    return Estimate((sure + open_ / 2) / len(truths), sure / len(truths), (sure + open_) / len(truths))
