"""Two sweeps against each other: what can be said of one figure of a cell, and what could have been.

Pure: one figure a trial in, `Comparison` out. Lower is better. All is done on logarithms, so changes are symmetric: a
floor of 2 % means a ratio above 1.02 or below 1 ÷ 1.02.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from effbench.analysis.statistics import LogDifference, LogMean, log_difference, log_mean

FLOOR = 0.02
ALPHA = 0.05
POWER = 0.8
#: Log differences and standard errors below this are rounding.
_ROUNDING = 1e-12
#: Nodes a side of the quadrature over the two sample variances: the result is right to 0.1 %.
_NODES = 16


class Verdict(StrEnum):
    """How a cell's figure changed from one sweep to another."""

    SAME = "same"  # a change beyond the floor is excluded
    FASTER = "faster"
    SLOWER = "slower"
    AMBIGUOUS = "ambiguous"  # neither shown nor excluded
    BROKEN = "broken"  # its status fell a class (effbench.analysis.statuses)
    FIXED = "fixed"
    NEW = "new"
    MISSING = "missing"


@dataclass(frozen=True)
class Comparison:
    """`ratio` is after ÷ before (above 1: slower), `low` and `high` its Welch 95 % bounds.

    `p_value` is Welch's, two-sided, on logarithms. `smallest_slowdown` (0.05 = 5 %) is what such trials would have
    called slower in four cases of five. `error` and `df`: standard error of the ratio's logarithm and its degrees of
    freedom. All but `ratio` and `verdict` are None under two trials a side.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    verdict: Verdict
    smallest_slowdown: float | None
    error: float | None = None
    df: float | None = None


def compare(before: Sequence[float], after: Sequence[float], floor: float = FLOOR, alpha: float = ALPHA) -> Comparison:
    """Compare one figure a trial of two sweeps, in the same unit, lower being better.

    The verdict is that of `verdict_of` with p < `alpha`. Unchanged figures are called faster or slower as often as the
    interval of `speedup` misses: at an `alpha` of 5 % and equally many trials a side in 3.5 to 6 % of the cases with 3
    trials and 4.5 to 5.5 % with 5, and in fewer where the floor is wide against the noise. A difference between the
    sessions counts as a change: no number of trials averages it out. Raises ValueError as `geometric_mean` does, and
    for a `floor` or `alpha` that is none.
    """
    _check(floor, alpha)
    old, new = log_mean(before), log_mean(after)
    difference = log_difference(new, old)
    ratio = difference.ratio()
    if difference.error is None:
        return Comparison(ratio.value, None, None, None, Verdict.AMBIGUOUS, None)
    p_value = p_value_of(difference)
    verdict = verdict_of(ratio.value, ratio.low, ratio.high, p_value < alpha, floor)
    smallest = _smallest(old, new, floor, POWER, alpha)
    return Comparison(ratio.value, ratio.low, ratio.high, p_value, verdict, smallest, difference.error, difference.df)


def verdict_of(ratio: float, low: float | None, high: float | None, significant: bool, floor: float = FLOOR) -> Verdict:
    """The verdict on a ratio after ÷ before, its 95 % bounds, and whether it differs from 1 by a test of the caller's.

    `slower` or `faster` where it does, and by more than `floor`; `same` where the bounds exclude any change beyond
    `floor`; `ambiguous` otherwise, and where there are no bounds.
    """
    if low is None or high is None:
        return Verdict.AMBIGUOUS
    if significant and ratio > 1 + floor:
        return Verdict.SLOWER
    if significant and ratio < 1 / (1 + floor):
        return Verdict.FASTER
    if low >= 1 / (1 + floor) and high <= 1 + floor:
        return Verdict.SAME
    return Verdict.AMBIGUOUS


def benjamini_hochberg(p_values: Sequence[float | None], q: float = 0.05) -> list[bool]:
    """Which of the tests are significant, so that at most a share `q` of these are expected to be false alarms.

    None (no test was possible) is never significant and does not count as a test. Raises ValueError for a p-value or
    `q` outside 0 to 1.
    """
    tested = sorted(p for p in p_values if p is not None)
    if not all(0 <= value <= 1 for value in [q, *tested]):
        raise ValueError("p-values and q lie between 0 and 1")
    passing = (p for rank, p in enumerate(tested, 1) if p <= q * rank / len(tested))
    limit = max(passing, default=-1.0)
    return [p is not None and p <= limit for p in p_values]


def smallest_slowdown(
    sd_log: float, trials: int, floor: float = FLOOR, power: float = POWER, alpha: float = ALPHA
) -> float:
    """The smallest relative slowdown (0.05 = 5 %) that `compare` calls slower with probability `power`.

    Two sweeps of `trials` trials each, whose log figures have a standard deviation of `sd_log` between processes on
    both sides. Never below the floor. A correction over many cells, as Benjamini–Hochberg's, needs more than this.
    Raises ValueError for a negative `sd_log`, under two `trials`, a `power` outside 0.5 to 1, and a `floor` or `alpha`
    that is none.
    """
    _check(floor, alpha)
    if not 0 <= sd_log < math.inf:
        raise ValueError(f"a standard deviation is finite and not negative, unlike {sd_log!r}")
    if trials < 2:
        raise ValueError(f"a comparison needs at least two trials a side, not {trials}")
    if not 0.5 <= power < 1:
        raise ValueError(f"a power lies between 0.5 and 1, unlike {power!r}")
    side = LogMean(0.0, sd_log / math.sqrt(trials), trials)
    return _smallest(side, side, floor, power, alpha)


def smallest_paired(ratios: LogMean, floor: float = FLOOR, power: float = POWER, alpha: float = ALPHA) -> float:
    """The smallest relative slowdown called slower with probability `power` by pairs that spread as these ratios do."""
    error = ratios.error
    if error is None:
        raise ValueError("a comparison needs at least two pairs")
    if error <= _ROUNDING:
        return floor
    import numpy as np
    from scipy.special import stdtrit

    variances, weights = _variance_nodes(ratios.n - 1)
    critical = stdtrit(ratios.n - 1, 1 - alpha / 2) * np.sqrt(variances)
    return _least_found(critical, weights, error, floor, power)


def _check(floor: float, alpha: float) -> None:
    if not 0 <= floor < math.inf:
        raise ValueError(f"a floor is finite and not negative, unlike {floor!r}")
    if not 0 < alpha < 1:
        raise ValueError(f"a significance level lies between 0 and 1, unlike {alpha!r}")


def p_value_of(difference: LogDifference) -> float:
    """Two-sided p-value of a difference with a standard error; of figures without spread 0 or 1."""
    if difference.error <= _ROUNDING:
        return 1.0 if abs(difference.value) <= _ROUNDING else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(difference.df, -abs(difference.value) / difference.error))


def _smallest(before: LogMean, after: LogMean, floor: float, power: float, alpha: float) -> float:
    """Smallest relative slowdown called slower with probability `power`, if the standard errors are the true ones.

    The difference of the means is normal, and independent of the two sample variances, which decide how large it must
    be to be called slower. So the power is the mean, over those variances, of a normal distribution's tail.
    """
    error = math.hypot(before.error, after.error)
    if error <= _ROUNDING:
        return floor
    least = math.log1p(floor) / error
    if least >= _most_critical(before.n, after.n, alpha):  # whatever the sample variances, the floor decides
        return _grown(least + _normal_quantile(power), error)
    critical, weights = _critical((before.error / error) ** 2, before.n, after.n, alpha)
    return _least_found(critical, weights, error, floor, power)


def _least_found(critical: Any, weights: Any, error: float, floor: float, power: float) -> float:
    """By Newton's method within bounds: `critical` are the least significant differences, in standard errors, with
    their weights."""
    import numpy as np
    from scipy.special import ndtr

    needed = np.maximum(critical, math.log1p(floor) / error)
    low, high = 0.0, float(needed.max()) + 10.0
    middle = float(needed @ weights) + _normal_quantile(power)
    while high - low > 1e-9 * high:
        beyond = middle - needed
        excess = float(ndtr(beyond) @ weights) - power
        low, high = (low, middle) if excess >= 0 else (middle, high)
        slope = float(np.exp(-(beyond**2) / 2) @ weights) / math.sqrt(2 * math.pi)
        step = excess / slope if slope else math.inf
        if abs(step) <= 1e-9 * middle:
            break
        middle = middle - step if low < middle - step < high else (low + high) / 2
    return _grown(middle, error)


def _grown(differences: float, error: float) -> float:
    """So many standard errors of a logarithm as a relative change."""
    exponent = differences * error
    return math.expm1(exponent) if exponent < 709.0 else math.inf


@lru_cache(maxsize=64)
def _normal_quantile(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))


@lru_cache(maxsize=256)
def _most_critical(n_before: int, n_after: int, alpha: float) -> float:
    """What no element of `_critical` exceeds, whatever the share: the fewest degrees of freedom that Welch's formula
    gives, and the largest variance."""
    from scipy.special import stdtrit

    (old, _), (new, _) = _variance_nodes(n_before - 1), _variance_nodes(n_after - 1)
    largest = max(float(old.max()), float(new.max()))
    return float(stdtrit(min(n_before, n_after) - 1, 1 - alpha / 2)) * math.sqrt(largest)


def _critical(share: float, n_before: int, n_after: int, alpha: float) -> tuple:
    """Least significant differences in true standard errors, and how probable each is.

    Over a grid of the two sample variances; `share` is that of `before` in the true variance of the difference.
    """
    import numpy as np
    from scipy.special import stdtrit

    (old, old_weights), (new, new_weights) = _variance_nodes(n_before - 1), _variance_nodes(n_after - 1)
    a, b = share * old[:, None], (1 - share) * new[None, :]
    total = a + b
    df = total**2 / (a**2 / (n_before - 1) + b**2 / (n_after - 1))
    critical = stdtrit(df, 1 - alpha / 2) * np.sqrt(total)
    return critical.ravel(), np.outer(old_weights, new_weights).ravel()


@lru_cache(maxsize=64)
def _variance_nodes(df: int) -> tuple:
    """Nodes and weights of the distribution of a sample variance ÷ the true one, by its quantiles."""
    import numpy as np
    from scipy.special import gammaincinv

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return gammaincinv(df / 2, (nodes + 1) / 2) * 2 / df, weights / 2
