"""Test whether a figure of a cell has changed, and which change could have been detected.

Each trial gives one value; lower is better. The tests use logarithms: a floor of 2 % means a ratio
above 1.02 or below 1 ÷ 1.02.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import median
from typing import TYPE_CHECKING

from effbench.stats.intervals import (
    LogEstimate,
    is_number,
    log_difference,
    log_mean,
    log_mean_of_compilations,
    t_tail,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOOR = 0.02
ALPHA = 0.05
POWER = 0.8
#: Quantile of the standard normal distribution at POWER.
POWER_QUANTILE = 0.8416212335729143
#: Minimum number of pairs to confirm a slowdown, and the number that shows 5 % in most launch-bound
#: cells.
LEAST_PAIRS, MOST_PAIRS = 5, 20
#: The minimum number of duets, whose ratios vary by 1 to 3 % instead of 20 %: with 3 to 20 duets
#: and a stop as soon as the interval is decided, fewer than 1 % of unchanged cells look slower
#: (benchmarks/duets.py).
LEAST_DUETS = 3
#: Minimum number of sweeps, in the same environment, for a noise threshold.
LEAST_SWEEPS = 6
#: Width of the noise threshold, in standard deviations of the difference between consecutive
#: sweeps.
WIDTH = 3.0
#: Maximum noise threshold; a larger one would hide every change.
WIDEST = 0.5
#: Differences of logarithms and standard errors below this are rounding errors.
_ROUNDING = 1e-12
#: Nodes per side of the quadrature over the two sample variances; the result is accurate to 0.1 %.
_NODES = 16


@dataclass(frozen=True)
class Comparison:
    """The result of a test. `ratio`: after ÷ before (above 1: slower), with 95 % bounds and a
    two-sided p-value. `error`, `df`: of its logarithm. `sides`: means before and after. With fewer
    than two trials per side, or two pairs, all but `ratio` are None."""

    ratio: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    error: float | None = None
    df: float = 0.0
    sides: tuple[LogEstimate, LogEstimate] | None = None
    floor: float = FLOOR

    @cached_property
    def smallest_slowdown(self) -> float | None:
        """The smallest slowdown that such trials show with probability POWER; it takes longer than
        the test."""
        return None if self.sides is None else _smallest(*self.sides, self.floor)


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
) -> Comparison:
    """Compare two sweeps, each round -> value of its trial, by Welch's test. Raises ValueError as
    `geometric_mean` does."""
    old = _log_mean(before, compiled.before, compiled.kernels)
    new = _log_mean(after, compiled.after, compiled.kernels)
    return _comparison(log_difference(new, old), (old, new), floor)


def _log_mean(
    values: Mapping[int, float], caches: Mapping[int, int | None], kernels: Collection[str]
) -> LogEstimate:
    used = [caches.get(number) for number in values]
    return log_mean_of_compilations([*values.values()], used, kernels)


def compare_pairs(
    before: Mapping[int, float],
    after: Mapping[int, float],
    floor: float = FLOOR,
    compiled: Compilations = NOTHING_COMPILES,
) -> Comparison:
    """Compare two sides, measured in the same rounds, by the ratio in each round. A drift of the
    machine affects both sides equally. Raises ValueError if no round has both, and as
    `geometric_mean` does."""
    rounds = sorted(before.keys() & after.keys())
    if not rounds:
        raise ValueError("no round has both sides")
    quotients = []
    for number in rounds:
        # a difference of logarithms, because a quotient may overflow
        value = log_mean([after[number]]).value - log_mean([before[number]]).value
        quotients.append(math.exp(max(-700.0, min(value, 700.0))))
    caches = [(compiled.before.get(number), compiled.after.get(number)) for number in rounds]
    compiling = sum(None not in side for side in zip(*caches, strict=True))
    kernels = compiled.kernels if compiling else ()
    ratios = log_mean_of_compilations(quotients, caches, kernels, compiling)
    return _comparison(ratios, (ratios, LogEstimate(0.0, 0.0, ratios.df)), floor)


def confirms(low: float | None, pairs: int, floor: float = FLOOR, least: int = LEAST_PAIRS) -> bool:
    """Return whether at least `least` pairs show a slowdown: the interval's lower bound `low`
    exceeds the floor."""
    return pairs >= least and low is not None and low > 1 + floor


def is_decided(low: float | None, high: float | None, floor: float = FLOOR) -> bool:
    """Return whether the bounds of a ratio are all inside the floor, or all beyond it."""
    if low is None or high is None:
        return False
    is_inside = low >= 1 / (1 + floor) and high <= 1 + floor
    is_beyond = low > 1 + floor or high < 1 / (1 + floor)
    return is_inside or is_beyond


def significant(p_values: Sequence[float | None], q: float = 0.05) -> list[bool]:
    """Return which tests are significant by Benjamini–Hochberg, so that the expected fraction of
    false alarms among them is at most `q`. None means that no test was possible."""
    tested = sorted(p for p in p_values if p is not None)
    # scipy.stats.false_discovery_control gives the same, but loading it takes longer than a whole
    # comparison
    passing = (p for rank, p in enumerate(tested, 1) if p <= q * rank / len(tested))
    limit = max(passing, default=-1.0)
    return [p is not None and p <= limit for p in p_values]


def smallest_slowdown(sd_log: float, trials: int, floor: float = FLOOR) -> float:
    """Return the smallest relative slowdown (0.05 = 5 %, at least the floor) that is detected with
    probability POWER.

    Both sweeps have `trials` trials (at least two), and the logarithms have a standard deviation of
    `sd_log`."""
    side = LogEstimate(0.0, sd_log / math.sqrt(trials), trials - 1)
    return _smallest(side, side, floor)


def noise_threshold(levels: Iterable[Sequence[float | None]]) -> float | None:
    """Return the largest relative change (0.03 = 3 %) that counts as noise between two sweeps of an
    unchanged cell, or None if there are too few sweeps. `levels`: for each environment, one value
    per sweep, oldest first. The threshold follows from the median absolute difference of
    consecutive sweeps, which a single step hardly affects."""
    logs = [
        [math.log(value) for value in series if is_number(value) and value > 0] for series in levels
    ]
    jumps = [abs(new - old) for series in logs for old, new in itertools.pairwise(series)]
    if len(jumps) < LEAST_SWEEPS - 1:
        return None
    # the median of |N(0, s)| is 0.6745 s
    return min(math.expm1(WIDTH * median(jumps) / 0.6745), WIDEST)


def _comparison(
    difference: LogEstimate, sides: tuple[LogEstimate, LogEstimate], floor: float
) -> Comparison:
    ratio, error = difference.interval(), difference.error
    if error is None:
        return Comparison(ratio.value)
    if error > _ROUNDING:
        p_value = t_tail(difference.value / error, difference.df)
    else:  # values without spread
        p_value = float(abs(difference.value) <= _ROUNDING)
    return Comparison(
        ratio.value, ratio.low, ratio.high, p_value, error, difference.df, sides, floor
    )


# --- power ---


def _smallest(before: LogEstimate, after: LogEstimate, floor: float) -> float:
    """Return the smallest relative slowdown that is detected with probability POWER. The
    probability is the tail of a normal distribution beyond a limit, averaged over the two sample
    variances, which determine the limit."""
    old_error, new_error = before.error or 0.0, after.error or 0.0
    error = math.hypot(old_error, new_error)
    if error <= _ROUNDING:
        return floor
    import numpy as np
    from scipy.special import ndtr

    least = math.log1p(floor) / error
    old, new = _variance_nodes(before.df), _variance_nodes(after.df)
    weights = np.outer(old.weights, new.weights)
    fraction = (old_error / error) ** 2
    old_variance = fraction * old.nodes[:, None]
    new_variance = (1 - fraction) * new.nodes[None, :]
    variance = old_variance + new_variance
    inverse_df = (old_variance**2 / before.df + new_variance**2 / after.df) / variance**2
    limits = _t_limits(before.df, after.df)
    quantiles = np.interp(inverse_df, limits.nodes, limits.weights)
    # the smallest significant differences, in standard errors
    needed = np.maximum(quantiles * np.sqrt(variance), least)
    low, high = least, float(needed.max()) + POWER_QUANTILE
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if float((ndtr(middle - needed) * weights).sum()) >= POWER:
            high = middle
        else:
            low = middle
    return math.expm1(high * error) if high * error < 709.0 else math.inf


@dataclass(frozen=True)
class Nodes:
    """Points of a function or a distribution, and its value or weight there."""

    nodes: NDArray[np.float64]
    weights: NDArray[np.float64]


@lru_cache(maxsize=64)
def _t_limits(before_df: float, after_df: float) -> Nodes:
    """Return reciprocals of all possible degrees of freedom, ascending, and the limits of Student's
    t there. Linear interpolation between these is accurate to 1e-6."""
    import numpy as np
    from scipy.special import stdtrit

    reciprocals = np.linspace(1 / (before_df + after_df), 1 / min(before_df, after_df), 1000)
    return Nodes(reciprocals, stdtrit(1 / reciprocals, 1 - ALPHA / 2))


@lru_cache(maxsize=64)
def _variance_nodes(df: float) -> Nodes:
    """Return quadrature nodes and weights for the distribution of a sample variance ÷ the true
    variance."""
    import numpy as np
    from scipy.special import gammaincinv

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return Nodes(gammaincinv(df / 2, (nodes + 1) / 2) * 2 / df, weights / 2)
