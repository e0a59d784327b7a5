"""Means, ratios and medians with confidence intervals.

Across trials everything is done in log space: times are positive and their errors multiply. The unit of analysis is
the trial (one process), never the single call, since most of the spread is between processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

CONFIDENCE = 0.95
#: Degrees of freedom assumed for a stored Welch interval of n trials a side, per n - 1: they lie between 1 and 2.
_STORED_DF = 1.25
#: A mean over cells with bounds more than this many times apart is reported as unclear.
CLEAR = 4.0
#: `enough`: share of the target that counts at the first look, where the spread is least known.
FIRST_LOOK = 0.5
LEAST_TRIALS = 5


@dataclass(frozen=True)
class Interval:
    """A mean, median or ratio of `n` values with its confidence bounds; None if there are too few values."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class LogEstimate:
    """The logarithm of a geometric mean or ratio with its standard error (None: too few values)."""

    value: float
    error: float | None
    df: float

    def interval(self) -> Interval:
        """Return the mean or ratio of which this is the logarithm."""
        if self.error is None:
            return Interval(_exp(self.value))
        half = t_quantile(self.df) * self.error
        return Interval(_exp(self.value), _exp(self.value - half), _exp(self.value + half))


@dataclass(frozen=True)
class ModeScore:
    """A mode over several models: geometric mean of the speedups of the `averaged` models that have one, with
    confidence bounds; `passed` counts the `ok` models."""

    value: float | None
    averaged: int
    passed: int
    total: int
    low: float | None = None
    high: float | None = None

    @property
    def clear(self) -> bool:
        """False if the interval is too wide for the value to be quoted."""
        return is_clear(self.low, self.high)


class Outcome(NamedTuple):
    """One model in a mode: its status, and its speedup with its 95 % bounds from so many trials a side."""

    status: str
    speedup: float | None
    low: float | None = None
    high: float | None = None
    trials: int | None = None


def is_number(value: object) -> bool:
    """Return whether a value is a finite number. SQLite stores text in a numeric column if someone writes it there."""
    return isinstance(value, int | float) and math.isfinite(value)


def is_clear(low: float | None, high: float | None) -> bool:
    """Return whether a mean with these bounds may be quoted; one without bounds may."""
    return low is None or high is None or not high > CLEAR * low


def log_mean(values: Iterable[float]) -> LogEstimate:
    """Return the mean logarithm of one figure a trial. Raises ValueError as `geometric_mean` does."""
    values = list(values)
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"a geometric mean needs positive, finite values, not {values!r}")
    return mean_of_logs([math.log(value) for value in values])


def mean_of_logs(logs: Sequence[float]) -> LogEstimate:
    """Return the mean of at least one logarithm."""
    n = len(logs)
    mean = math.fsum(logs) / n
    if n < 2:
        return LogEstimate(mean, None, 0)
    variance = math.fsum((value - mean) ** 2 for value in logs) / (n - 1)
    return LogEstimate(mean, math.sqrt(variance / n), n - 1)


def stored_log_mean(
    value: float, low: float | None, high: float | None, n: int | None, df_per_trial: float = 1.0
) -> LogEstimate:
    """Return the logarithm of a stored mean or ratio of `n` trials, with the error that its 95 % bounds imply."""
    # written so that NaN, which stands for unknown in a frame, fails it too
    if low is None or high is None or n is None or not (n >= 2 and 0 < low <= high < math.inf):
        return LogEstimate(math.log(value), None, 0)
    df = df_per_trial * (int(n) - 1)
    return LogEstimate(math.log(value), math.log(high / low) / 2 / t_quantile(df), df)


def log_difference(a: LogEstimate, b: LogEstimate) -> LogEstimate:
    """Return `a` less `b`, with Welch's standard error and Welch–Satterthwaite's degrees of freedom."""
    if a.error is None or b.error is None:
        return LogEstimate(a.value - b.value, None, 0)
    error = math.hypot(a.error, b.error)
    if error == 0.0:
        return LogEstimate(a.value - b.value, 0.0, a.df + b.df)
    # scaled shares: fourth powers of tiny errors would underflow to 0 ÷ 0
    share_a, share_b = (a.error / error) ** 2, (b.error / error) ** 2
    return LogEstimate(a.value - b.value, error, 1.0 / (share_a**2 / a.df + share_b**2 / b.df))


def is_less(a: LogEstimate, b: LogEstimate) -> bool:
    """Return whether `a` is significantly less than `b`: the 95 % interval of their ratio excludes 1."""
    high = log_difference(a, b).interval().high
    return high is not None and high < 1.0


def geometric_mean(values: Iterable[float]) -> Interval:
    """Return the geometric mean of one figure a trial, with Student's t interval over the logarithms. Raises ValueError
    for no values and for a value that is not positive and finite."""
    mean = log_mean(values)
    found = mean.interval()
    return Interval(found.value, found.low, found.high, int(mean.df) + 1)


def speedup(baseline: Iterable[float], values: Iterable[float]) -> Interval:
    """Return `baseline` ÷ `values` (one figure a trial, above 1: faster) with Welch's interval in log space, which
    covers 94 to 96.5 % with equally many trials a side. Raises ValueError as `geometric_mean` does."""
    return log_difference(log_mean(baseline), log_mean(values)).interval()


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median of the samples of one trial with the narrowest symmetric interval of two order statistics,
    which needs six samples. Raises ValueError for no samples."""
    ordered = sorted(float(value) for value in samples)
    n = len(ordered)
    if not n:
        raise ValueError("no samples")
    value = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    rank = _median_rank(n)
    return Interval(value, ordered[rank - 1], ordered[n - rank], n) if rank else Interval(value, n=n)


def mode_score(outcomes: Iterable[Outcome | tuple]) -> ModeScore:
    """Return the geometric mean of one mode's speedups over its `ok` models, with a 95 % interval for these models.

    `outcomes`: an `Outcome` or a tuple of its first fields for each model. The interval needs bounds and two trials of
    every model; it covers 93 to 98.2 % with 3 trials or more.
    """
    models = [Outcome(*outcome) for outcome in outcomes]
    ok = [model for model in models if model.status == "ok"]
    averaged = [model for model in ok if model.speedup is not None and 0 < model.speedup < math.inf]
    if not averaged:
        return ModeScore(None, 0, len(ok), len(models))
    estimates = [stored_log_mean(one.speedup, one.low, one.high, one.trials, _STORED_DF) for one in averaged]
    found = mean_of_estimates(estimates).interval()
    return ModeScore(found.value, len(averaged), len(ok), len(models), found.low, found.high)


def mean_of_estimates(estimates: Sequence[LogEstimate]) -> LogEstimate:
    """Return the mean of independent estimates; its error is None if one of theirs is."""
    value = math.fsum(one.value for one in estimates) / len(estimates)
    if any(one.error is None for one in estimates):
        return LogEstimate(value, None, 0)
    largest = max(one.error for one in estimates)
    if largest == 0.0:
        return LogEstimate(value, 0.0, math.fsum(one.df for one in estimates))
    # scaled: squares of tiny errors would underflow to 0 ÷ 0
    variances = [(one.error / largest) ** 2 for one in estimates]
    variance = math.fsum(variances)
    df = variance**2 / math.fsum(v**2 / one.df for v, one in zip(variances, estimates, strict=True))
    return LogEstimate(value, largest * math.sqrt(variance) / len(estimates), df)


def enough(medians: Sequence[float], target: float) -> bool:
    """Return whether the 95 % interval of the geometric mean of these rounds lies within ± `target` (0.01 = 1 %), so
    that further rounds may be skipped.

    After LEAST_TRIALS rounds half of that is required, and before them it is False: stopping because an interval
    happens to be narrow makes it cover less. The final interval still covers 93.4 % at worst.
    """
    if len(medians) < LEAST_TRIALS:
        return False
    found = geometric_mean(medians)
    allowed = target * FIRST_LOOK if len(medians) == LEAST_TRIALS else target
    # of the two bounds the upper one is farther off
    return found.high <= found.value * (1 + allowed)


@lru_cache(maxsize=1024)
def t_quantile(df: float) -> float:
    """Two-sided quantile of Student's t: P(|T| <= result) = CONFIDENCE, with `df` > 0 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + CONFIDENCE / 2))


def t_tail(t: float, df: float) -> float:
    """P(|T| >= |t|) of Student's t."""
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -abs(t)))


@lru_cache(maxsize=1024)
def _median_rank(n: int) -> int:
    """Largest k for which P(k <= binomial(n, 1/2) <= n - k) reaches CONFIDENCE; 0 if there is none."""
    # not by SciPy: every trial calls this in a fresh process, which would load it while it measures
    low, high = n // 2, n - n // 2
    pmf = math.exp(math.lgamma(n + 1) - math.lgamma(low + 1) - math.lgamma(high + 1) - n * math.log(2))
    covered = pmf if low == high else 2 * pmf
    # outward from the centre: about sqrt(n) steps instead of n
    while covered < CONFIDENCE and low > 0:
        pmf *= low / (n - low + 1)
        low -= 1
        covered += 2 * pmf
    return low


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf
