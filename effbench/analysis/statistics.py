"""Estimators and intervals.

Across trials everything is done in log space: times are positive and their errors multiply. The unit of analysis is
the trial (one process), never the single call: pooled calls give far too narrow intervals, since most of the spread
is between processes.

`scipy.special` is imported where a quantile is needed: reading a database must not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

CONFIDENCE = 0.95
#: Degrees of freedom taken for a stored Welch interval, per trial of one side less one (see `mode_score`).
_STORED_DF = 1.25
#: A mean over cells is quoted without its interval, so it must hold within a factor of 2 either way: with bounds more
#: than this many times apart it is reported as unclear.
CLEAR = 4.0


@dataclass(frozen=True)
class GeometricMean:
    """Geometric mean of `n` values, with its confidence bounds (None under two values); same unit as the values."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Ratio:
    """Ratio of two geometric means, with its confidence bounds (None if either side has under two values)."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MedianInterval:
    """Median of `n` samples; the bounds are two of the samples (None where `n` is too small for the confidence)."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class ModeScore:
    """A mode over several models: geometric mean of the speedups, and how many models passed.

    `value` is None where no model gave a speedup; `averaged` counts those that did; `passed` counts the `ok` ones.
    `low` and `high` are confidence bounds for this very set of models; None where not known.
    """

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

    @property
    def pass_rate(self) -> float | None:
        """Share of the models that are `ok` (0 to 1); None over no models."""
        return self.passed / self.total if self.total else None


class Outcome(NamedTuple):
    """What one model gave in a mode: its status, and its speedup with the 95 % bounds as `speedup` found them.

    `trials` counts the trials of a side; where the two sides differ, the larger count is the cautious one.
    """

    status: str
    speedup: float | None
    low: float | None = None
    high: float | None = None
    trials: int | None = None


@dataclass(frozen=True)
class LogMean:
    """Mean of the logarithms of `n` values, with its standard error (None under two values)."""

    value: float
    error: float | None
    n: int


@dataclass(frozen=True)
class LogDifference:
    """Difference of two `LogMean`: its standard error and degrees of freedom are None under two values a side."""

    value: float
    error: float | None
    df: float | None

    def ratio(self, confidence: float = CONFIDENCE) -> Ratio:
        """The ratio that it is the logarithm of, with its bounds."""
        if self.error is None:
            return Ratio(_exp(self.value), None, None)
        half = t_quantile(self.df, confidence) * self.error
        return Ratio(_exp(self.value), _exp(self.value - half), _exp(self.value + half))


def is_number(value: object) -> bool:
    """A finite one. SQLite keeps a text in a column of numbers, if someone writes it there."""
    return isinstance(value, int | float) and math.isfinite(value)


def is_clear(low: float | None, high: float | None) -> bool:
    """Return whether a mean with these bounds may be quoted; one without bounds may."""
    return low is None or high is None or not high > CLEAR * low


def stored_log_mean(value: float, low: float | None, high: float | None, n: int | None) -> LogMean:
    """Return the LogMean that a stored geometric mean of `n` trials and its 95 % bounds came from."""
    # written so that NaN, which stands for unknown in a frame, fails it too
    known = low is not None and high is not None and n is not None and n >= 2 and 0 < low <= high < math.inf
    error = math.log(high / low) / 2 / t_quantile(n - 1) if known else None
    return LogMean(math.log(value), error, int(n) if known else 1)


def is_less(a: LogMean, b: LogMean) -> bool:
    """Return whether `a` is significantly less than `b`: the 95 % interval of their ratio excludes 1. False if either
    has too few trials for an interval."""
    high = log_difference(a, b).ratio().high
    return high is not None and high < 1.0


def log_mean(values: Iterable[float]) -> LogMean:
    """Mean logarithm of one figure a trial. Raises ValueError as `geometric_mean` does."""
    return mean_of_logs(_logs(values))


def mean_of_logs(logs: Sequence[float]) -> LogMean:
    """Mean of at least one logarithm."""
    n = len(logs)
    mean = math.fsum(logs) / n
    if n < 2:
        return LogMean(mean, None, n)
    variance = math.fsum((value - mean) ** 2 for value in logs) / (n - 1)
    return LogMean(mean, math.sqrt(variance / n), n)


def log_difference(a: LogMean, b: LogMean) -> LogDifference:
    """`a` less `b`, with Welch's standard error and Welch–Satterthwaite's degrees of freedom."""
    if a.error is None or b.error is None:
        return LogDifference(a.value - b.value, None, None)
    error = math.hypot(a.error, b.error)
    if error == 0.0:
        return LogDifference(a.value - b.value, 0.0, a.n + b.n - 2.0)
    # scaled shares: fourth powers of tiny errors would underflow to 0 ÷ 0
    share_a, share_b = (a.error / error) ** 2, (b.error / error) ** 2
    df = 1.0 / (share_a**2 / (a.n - 1) + share_b**2 / (b.n - 1))
    return LogDifference(a.value - b.value, error, df)


def geometric_mean(values: Iterable[float], confidence: float = CONFIDENCE) -> GeometricMean:
    """Geometric mean with Student's t interval over the logarithms.

    `values` are one figure a trial (its median). The interval holds where the levels of processes are roughly
    log-normal. Where they fall into two groups (one process in five 30 % slower) it covers far less: 48 % with 3
    trials, 67 % with 5, 89 % with 10, because few trials often see one group only. Raises ValueError for none, or for
    one that is not positive and finite.
    """
    mean = log_mean(values)
    if mean.error is None:
        return GeometricMean(_exp(mean.value), None, None, mean.n)
    half = t_quantile(mean.n - 1, confidence) * mean.error
    return GeometricMean(_exp(mean.value), _exp(mean.value - half), _exp(mean.value + half), mean.n)


def speedup(baseline: Iterable[float], values: Iterable[float], confidence: float = CONFIDENCE) -> Ratio:
    """`baseline` ÷ `values` as a ratio of geometric means, with Welch's interval in log space.

    Both are one figure a trial, in the same unit; above 1 means faster than the baseline. Where neither side varies at
    all, the bounds are the value itself. Raises ValueError as `geometric_mean` does.

    With equally many trials a side (3 or more) the 95 % interval covers 94 to 96.5 %, however the spreads differ. It
    covers less where one side has few trials and an SD 1.5 to 4 times the other's: 93.3 % at 5 against 3 trials, 92.7 %
    at 10 against 3, 88 % at 10 against 2.
    """
    return log_difference(log_mean(baseline), log_mean(values)).ratio(confidence)


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> MedianInterval:
    """Median of the samples of one trial, with the narrowest symmetric order-statistic interval.

    Distribution-free: [x_(k), x_(n-k+1)] holds the median with P(k <= B <= n-k), B binomial(n, 1/2). Bounds are None
    where even the extremes do not reach the confidence (under 6 samples at 95 %). Raises ValueError for no samples.
    """
    ordered = sorted(float(value) for value in samples)
    n = len(ordered)
    if not n:
        raise ValueError("no samples")
    value = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    rank = _median_rank(n, confidence)
    if rank is None:
        return MedianInterval(value, None, None, n)
    return MedianInterval(value, ordered[rank - 1], ordered[n - rank], n)


def mode_score(outcomes: Iterable[Outcome | tuple]) -> ModeScore:
    """Geometric mean over models of one mode's speedups, with its pass rate and 95 % interval.

    `outcomes` holds an `Outcome`, or a tuple of its first fields, for each model. Only `ok` cells are averaged, all of
    them are counted: a failure lowers the pass rate instead of leaving the average silently.

    The interval is that of these models, not of models at large: the squared standard errors of the m log-speedups add
    and are divided by m². It needs bounds and at least two trials of every averaged model. A stored interval does not
    tell its degrees of freedom, which lie between n - 1 (one side is all the noise) and 2(n - 1) (both alike) for n
    trials a side; 1.25 (n - 1) is taken for all. In simulations of 1 to 20 models the interval covers 94 to 96 % with
    10 trials and 93.5 to 96.5 % with 5; with 3 it covers 93 to 98.2 %, and with 2 up to 99.8 %, the more the more
    one side dominates.
    """
    total = passed = 0
    averaged: list[Outcome] = []
    for outcome in outcomes:
        model = Outcome(*outcome)
        total += 1
        if model.status != "ok":
            continue
        passed += 1
        if model.speedup is not None and math.isfinite(model.speedup) and model.speedup > 0:
            averaged.append(model)
    if not averaged:
        return ModeScore(None, 0, passed, total)
    mean = math.fsum(math.log(model.speedup) for model in averaged) / len(averaged)
    half = half_width([_stored_error(model) for model in averaged])
    bounds = (None, None) if half is None else (_exp(mean - half), _exp(mean + half))
    return ModeScore(_exp(mean), len(averaged), passed, total, *bounds)


@lru_cache(maxsize=1024)
def t_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t: P(|T| <= result) = confidence, with `df` > 0 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + confidence / 2))


@lru_cache(maxsize=1024)
def _median_rank(n: int, confidence: float) -> int | None:
    """Largest k (from 1) for which P(k <= binomial(n, 1/2) <= n - k) reaches the confidence."""
    low, high = n // 2, n - n // 2
    log_pmf = math.lgamma(n + 1) - math.lgamma(low + 1) - math.lgamma(high + 1) - n * math.log(2)
    pmf = math.exp(log_pmf)
    covered = pmf if low == high else 2 * pmf
    # outward from the centre: about sqrt(n) steps instead of n
    while covered < confidence:
        pmf *= low / (n - low + 1)
        low -= 1
        if low < 1:
            return None
        covered += 2 * pmf
    return low if low >= 1 else None


def _stored_error(model: Outcome) -> tuple[float, float] | None:
    """Standard error of the log-speedup and its degrees of freedom, as far as its stored bounds tell them."""
    low, high, trials = model.low, model.high, model.trials
    # written so that NaN, which stands for unknown in a frame, fails it too
    if low is None or high is None or trials is None or not (0 < low <= high < math.inf and trials >= 2):
        return None
    df = _STORED_DF * (trials - 1)
    return math.log(high / low) / 2 / t_quantile(df), df


def half_width(errors: Sequence[tuple[float, float] | None]) -> float | None:
    """Half the 95 % interval of the mean of independent figures, of which `errors` holds (standard error, df); None
    where one of them is not known."""
    if any(error is None for error in errors):
        return None
    largest = max(error for error, _ in errors)
    if largest == 0.0:
        return 0.0
    # scaled: squares of tiny errors would underflow to 0 ÷ 0
    variances = [(error / largest) ** 2 for error, _ in errors]
    variance = math.fsum(variances)
    df = variance**2 / math.fsum(v**2 / df for v, (_, df) in zip(variances, errors, strict=True))
    return t_quantile(df) * largest * math.sqrt(variance) / len(errors)


def _logs(values: Iterable[float]) -> list[float]:
    logs = []
    for value in values:
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"a geometric mean needs positive, finite values, not {value!r}")
        logs.append(math.log(value))
    if not logs:
        raise ValueError("a geometric mean needs at least one value")
    return logs


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf
