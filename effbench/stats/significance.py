"""Tests of one figure of a cell: did it change, and what change would have been detected?

One figure a trial goes in, lower is better. All is done on logarithms: a floor of 2 % means a ratio above 1.02 or below
1 ÷ 1.02.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

from effbench.stats.intervals import LogEstimate, is_number, log_difference, log_mean, mean_of_logs, t_tail

FLOOR = 0.02
ALPHA = 0.05
POWER = 0.8
#: Of the standard normal distribution at POWER.
POWER_QUANTILE = 0.8416212335729143
#: Pairs below which nothing is confirmed.
LEAST_PAIRS = 5
#: Sweeps of one environment before this one that a noise threshold needs.
LEAST_SWEEPS = 6
#: Standard deviations of a sweep against the one before it that still pass for noise.
WIDTH = 3.0
#: A noise threshold beyond this would hide everything.
WIDEST = 0.5
#: Log differences and standard errors below this are rounding.
_ROUNDING = 1e-12
#: Nodes a side of the quadrature over the two sample variances: the result is right to 0.1 %.
_NODES = 16


class Comparison(NamedTuple):
    """`ratio` is after ÷ before (above 1: slower) with its 95 % bounds and a two-sided p-value; `error` and `df` are of
    its logarithm. All but `ratio` are None under two trials a side, or two pairs."""

    ratio: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    smallest_slowdown: float | None = None
    error: float | None = None
    df: float | None = None


def compare(before: Sequence[float], after: Sequence[float], floor: float = FLOOR) -> Comparison:
    """Compare one figure a trial of two sweeps by Welch's test. Raises ValueError as `geometric_mean` does."""
    old, new = log_mean(before), log_mean(after)
    difference = log_difference(new, old)
    if difference.error is None:
        return Comparison(difference.interval().value)
    return _comparison(difference, _smallest(old, new, floor))


def compare_pairs(before: Mapping[int, float], after: Mapping[int, float], floor: float = FLOOR) -> Comparison:
    """Compare two sides (round -> figure) that were measured in the same rounds by the ratios of each round: a drift of
    the machine affects both alike. Raises ValueError if no round has both, and as `geometric_mean` does."""
    rounds = sorted(before.keys() & after.keys())
    if not rounds:
        raise ValueError("no round has both sides")
    # the quotient of two figures may not fit a float although their logarithms do
    ratios = mean_of_logs([log_mean([after[n]]).value - log_mean([before[n]]).value for n in rounds])
    if ratios.error is None:
        return Comparison(ratios.interval().value)
    return _comparison(ratios, _smallest_paired(ratios, floor))


def confirms(low: float | None, pairs: int, floor: float = FLOOR) -> bool:
    """Return whether a re-run shows the slowdown: the whole paired interval, from `low` on, exceeds the floor, with at
    least LEAST_PAIRS pairs."""
    return pairs >= LEAST_PAIRS and low is not None and low > 1 + floor


def significant(p_values: Sequence[float | None], q: float = 0.05) -> list[bool]:
    """Return which tests are significant by Benjamini–Hochberg, so that at most a share `q` of these are expected to be
    false alarms. None (no test was possible) is no test."""
    tested = sorted(p for p in p_values if p is not None)
    # not scipy.stats.false_discovery_control, which gives the same: to load it takes longer than a whole comparison
    passing = (p for rank, p in enumerate(tested, 1) if p <= q * rank / len(tested))
    limit = max(passing, default=-1.0)
    return [p is not None and p <= limit for p in p_values]


def smallest_slowdown(sd_log: float, trials: int, floor: float = FLOOR) -> float:
    """Return the smallest relative slowdown (0.05 = 5 %, never below the floor) that is called slower in four cases of
    five, if two sweeps have `trials` (two or more) trials, whose log figures have a standard deviation of `sd_log`."""
    side = LogEstimate(0.0, sd_log / math.sqrt(trials), trials - 1)
    return _smallest(side, side, floor)


def noise_threshold(levels: Iterable[Sequence[float | None]]) -> float | None:
    """Return the relative change (0.03 = 3 %) that is noise between two sweeps of an unchanged cell; None if too few
    sweeps are known. `levels`: of each environment one figure a sweep, oldest first; the median absolute difference of
    neighbours in one environment counts, so that one step is no noise."""
    logs = [[math.log(value) for value in own if is_number(value) and value > 0] for own in levels]
    jumps = [abs(new - old) for own in logs for old, new in itertools.pairwise(own)]
    if len(jumps) < LEAST_SWEEPS - 1:
        return None
    # the median of |N(0, s)| is 0.6745 s
    return min(math.expm1(WIDTH * median(jumps) / 0.6745), WIDEST)


def _comparison(difference: LogEstimate, smallest: float) -> Comparison:
    ratio, error = difference.interval(), difference.error
    if error <= _ROUNDING:  # figures without spread
        p_value = 1.0 if abs(difference.value) <= _ROUNDING else 0.0
    else:
        p_value = t_tail(difference.value / error, difference.df)
    return Comparison(ratio.value, ratio.low, ratio.high, p_value, smallest, error, difference.df)


# --- power ---


def _smallest(before: LogEstimate, after: LogEstimate, floor: float) -> float:
    """Smallest relative slowdown called slower with probability POWER: the mean of a normal distribution's tail over a
    grid of the two sample variances, which decide where it begins."""
    error = math.hypot(before.error, after.error)
    if error <= _ROUNDING:
        return floor
    import numpy as np
    from scipy.special import stdtrit

    least = math.log1p(floor) / error
    (old, old_weights), (new, new_weights) = _variance_nodes(before.df), _variance_nodes(after.df)
    if least >= _most_critical(before.df, after.df):  # whatever the sample variances, the floor decides
        return _grown(least + POWER_QUANTILE, error)
    share = (before.error / error) ** 2
    a, b = share * old[:, None], (1 - share) * new[None, :]
    total = a + b
    df = total**2 / (a**2 / before.df + b**2 / after.df)
    critical = stdtrit(df, 1 - ALPHA / 2) * np.sqrt(total)
    return _least_found(critical.ravel(), np.outer(old_weights, new_weights).ravel(), error, floor)


def _smallest_paired(ratios: LogEstimate, floor: float) -> float:
    """The same for pairs that spread as these ratios do."""
    if ratios.error <= _ROUNDING:
        return floor
    import numpy as np
    from scipy.special import stdtrit

    variances, weights = _variance_nodes(ratios.df)
    critical = stdtrit(ratios.df, 1 - ALPHA / 2) * np.sqrt(variances)
    return _least_found(critical, weights, ratios.error, floor)


def _least_found(critical: Any, weights: Any, error: float, floor: float) -> float:
    """Solve by Newton's method; `critical`: the least significant differences, in standard errors, with weights."""
    import numpy as np
    from scipy.special import ndtr

    needed = np.maximum(critical, math.log1p(floor) / error)
    low, high = 0.0, float(needed.max()) + 10.0
    middle = float(needed @ weights) + POWER_QUANTILE
    while high - low > 1e-9 * high:
        beyond = middle - needed
        excess = float(ndtr(beyond) @ weights) - POWER
        low, high = (low, middle) if excess >= 0 else (middle, high)
        slope = float(np.exp(-(beyond**2) / 2) @ weights) / math.sqrt(2 * math.pi)
        step = excess / slope if slope else math.inf
        if abs(step) <= 1e-9 * middle:
            break
        middle = middle - step if low < middle - step < high else (low + high) / 2
    return _grown(middle, error)


def _grown(differences: float, error: float) -> float:
    """Return so many standard errors of a logarithm as a relative change."""
    exponent = differences * error
    return math.expm1(exponent) if exponent < 709.0 else math.inf


@lru_cache(maxsize=256)
def _most_critical(df_before: float, df_after: float) -> float:
    """An upper bound of the least significant differences: Welch's fewest degrees of freedom, the largest variance."""
    from scipy.special import stdtrit

    largest = max(float(_variance_nodes(df)[0].max()) for df in (df_before, df_after))
    return float(stdtrit(min(df_before, df_after), 1 - ALPHA / 2)) * math.sqrt(largest)


@lru_cache(maxsize=64)
def _variance_nodes(df: float) -> tuple:
    """Nodes and weights of the distribution of a sample variance ÷ the true one, by its quantiles."""
    import numpy as np
    from scipy.special import gammaincinv

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return gammaincinv(df / 2, (nodes + 1) / 2) * 2 / df, weights / 2
