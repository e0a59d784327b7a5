"""Test whether a figure of a cell has changed (`compare`, `compare_pairs`), and which change could
have been detected (`smallest_slowdown`).

Each trial gives one value; lower is better. The tests use logarithms: a floor of 2 % means a ratio
above 1.02 or below 1 ÷ 1.02.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from effbench.stats.intervals import (
    LogEstimate,
    log_difference,
    log_mean_of_compilations,
    t_of,
    t_quantile,
    t_tail,
)

FLOOR = 0.02
ALPHA = 0.05
POWER = 0.8
#: Minimum number of pairs to confirm a slowdown, and the number that shows 5 % in most launch-bound
#: cells.
LEAST_PAIRS = 5
MOST_PAIRS = 20
#: The minimum number of duets, whose ratios vary by 1 to 3 % instead of 20 %: with 3 to 20 duets
#: and a stop as soon as the interval is decided, fewer than 1 % of unchanged cells look slower
#: (benchmarks/duets.py).
LEAST_DUETS = 3
#: Differences of logarithms and standard errors below this are rounding errors.
_ROUNDING = 1e-12
#: A quotient of two figures may underflow or overflow.
_SMALLEST = 1e-300


@dataclass(frozen=True)
class RatioTest:
    """The result of a test. `ratio`: after ÷ before (above 1: slower), with 95 % bounds and a
    two-sided p-value. `difference`: its logarithm. `smallest_slowdown`: the smallest one that such
    trials show with probability POWER. `before`, `after`: means of the sides, None for pairs. With
    fewer than two trials per side, or two pairs, only the ratio and the means are known."""

    ratio: float
    difference: LogEstimate
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    smallest_slowdown: float | None = None
    before: float | None = None
    after: float | None = None

    @classmethod
    def of(cls, difference: LogEstimate, floor: float) -> RatioTest:
        """Return the test of whether the logarithm of a ratio differs from 0."""
        ratio = difference.interval()
        error = difference.error
        if error is None:
            return cls(ratio.value, difference)
        p_value = float(abs(difference.value) <= _ROUNDING)  # of values without spread
        if error > _ROUNDING:
            p_value = t_tail(difference.value / error, difference.df)
        return cls(
            ratio.value,
            difference,
            low=ratio.low,
            high=ratio.high,
            p_value=p_value,
            smallest_slowdown=smallest_slowdown(error, difference.df, floor),
        )


@dataclass(frozen=True)
class Compilations:
    """What two sides compiled: of each side, round -> compile cache, and the `kernels` of all their
    trials as `log_mean_of_compilations` takes them."""

    before: Mapping[int, int | None] = field(default_factory=dict)
    after: Mapping[int, int | None] = field(default_factory=dict)
    kernels: Collection[str] = ()


NOTHING_COMPILES = Compilations()


def compare(
    before: Mapping[int, float],
    after: Mapping[int, float],
    floor: float = FLOOR,
    compiled: Compilations = NOTHING_COMPILES,
) -> RatioTest:
    """Compare two sweeps, each round -> value of its trial, by Welch's test. Raises ValueError as
    `log_mean` does."""
    old = _log_mean(before, compiled.before, compiled.kernels)
    new = _log_mean(after, compiled.after, compiled.kernels)
    test = RatioTest.of(log_difference(new, old), floor)
    return replace(test, before=old.interval().value, after=new.interval().value)


def _log_mean(
    values: Mapping[int, float],
    caches: Mapping[int, int | None],
    kernels: Collection[str],
) -> LogEstimate:
    of_values = [caches.get(number) for number in values]
    return log_mean_of_compilations(list(values.values()), of_values, kernels)


def compare_pairs(
    before: Mapping[int, float],
    after: Mapping[int, float],
    floor: float = FLOOR,
    compiled: Compilations = NOTHING_COMPILES,
) -> RatioTest:
    """Compare two sides, measured in the same rounds, by the ratio in each round. A drift of the
    machine affects both sides equally. Raises ValueError if no round has both, and as
    `log_mean` does."""
    rounds = sorted(before.keys() & after.keys())
    if not rounds:
        raise ValueError("no round has both sides")
    quotients = []
    for number in rounds:
        quotient = after[number] / before[number]
        quotients.append(min(max(quotient, _SMALLEST), 1 / _SMALLEST))
    old_caches = [compiled.before.get(number) for number in rounds]
    new_caches = [compiled.after.get(number) for number in rounds]
    compiling_sides = 0
    for caches in (old_caches, new_caches):
        if None not in caches:
            compiling_sides += 1
    ratios = log_mean_of_compilations(
        quotients,
        list(zip(old_caches, new_caches, strict=True)),
        compiled.kernels if compiling_sides else (),
        compiling_sides,
    )
    return RatioTest.of(ratios, floor)


def is_decided(
    low: float | None,
    high: float | None,
    floor: float,
    only_slowdowns: bool = False,
) -> bool:
    """Return whether the bounds of a ratio are all inside the floor, or all beyond it.
    `only_slowdowns`: whether they show or exclude a slowdown beyond it."""
    if low is None or high is None:
        return False
    most = 1 + floor
    if low <= most < high:
        return False
    return only_slowdowns or not low < 1 / most <= high


def significant(p_values: Sequence[float | None], q: float = 0.05) -> list[bool]:
    """Return which tests are significant by Benjamini–Hochberg, so that the expected fraction of
    false alarms among them is at most `q`. None means that no test was possible."""
    tested = sorted(p for p in p_values if p is not None)
    # scipy.stats.false_discovery_control gives the same, but loading it takes longer than a whole
    # comparison
    limit = -1.0
    for rank, p_value in enumerate(tested, 1):
        if p_value <= q * rank / len(tested):
            limit = p_value
    return [p is not None and p <= limit for p in p_values]


def smallest_slowdown(
    error: float,
    df: float,
    floor: float = FLOOR,
) -> float:
    """Return the smallest relative slowdown (0.05 = 5 %, at least the floor) that is both
    significant and beyond the floor with probability POWER. `error`, `df`: standard error and
    degrees of freedom of the logarithm of such a ratio."""
    if error <= _ROUNDING:
        return floor
    least = max(math.log1p(floor), t_quantile(df) * error)
    needed = least + t_of(POWER, df) * error
    if needed >= 709.0:
        return math.inf
    return math.expm1(needed)
