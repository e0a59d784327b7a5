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

CONFIDENCE = 0.95


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
    """

    value: float | None
    averaged: int
    passed: int
    total: int

    @property
    def pass_rate(self) -> float | None:
        """Share of the models that are `ok` (0 to 1); None over no models."""
        return self.passed / self.total if self.total else None


def geometric_mean(values: Iterable[float], confidence: float = CONFIDENCE) -> GeometricMean:
    """Geometric mean with Student's t interval over the logarithms.

    `values` are one figure a trial (its median). Raises ValueError for none, or for one that is not positive and
    finite.
    """
    logs = _logs(values)
    n = len(logs)
    mean = math.fsum(logs) / n
    if n < 2:
        return GeometricMean(_exp(mean), None, None, n)
    half = t_quantile(n - 1, confidence) * math.sqrt(_variance(logs, mean) / n)
    return GeometricMean(_exp(mean), _exp(mean - half), _exp(mean + half), n)


def speedup(baseline: Iterable[float], values: Iterable[float], confidence: float = CONFIDENCE) -> Ratio:
    """`baseline` ÷ `values` as a ratio of geometric means, with Welch's interval in log space.

    Both are one figure a trial, in the same unit; above 1 means faster than the baseline. Degrees of freedom are
    Welch–Satterthwaite's; where neither side varies at all, the bounds are the value itself. Raises ValueError as
    `geometric_mean` does.
    """
    a, b = _logs(baseline), _logs(values)
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    ratio = mean_a - mean_b
    if len(a) < 2 or len(b) < 2:
        return Ratio(_exp(ratio), None, None)
    share_a, share_b = _variance(a, mean_a) / len(a), _variance(b, mean_b) / len(b)
    variance = share_a + share_b
    # scaled shares: squares of tiny variances would underflow to 0 ÷ 0
    if variance == 0.0:
        return Ratio(_exp(ratio), _exp(ratio), _exp(ratio))
    part_a, part_b = share_a / variance, share_b / variance
    df = 1.0 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    half = t_quantile(df, confidence) * math.sqrt(variance)
    return Ratio(_exp(ratio), _exp(ratio - half), _exp(ratio + half))


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


def mode_score(outcomes: Iterable[tuple[str, float | None]]) -> ModeScore:
    """Geometric mean over models of one mode's speedups, with its pass rate.

    `outcomes` holds (status, speedup) of each model. Only `ok` cells are averaged, all of them are counted: a failure
    lowers the pass rate instead of leaving the average silently.
    """
    total = passed = 0
    speedups: list[float] = []
    for status, value in outcomes:
        total += 1
        if status != "ok":
            continue
        passed += 1
        if value is not None and math.isfinite(value) and value > 0:
            speedups.append(value)
    return ModeScore(geometric_mean(speedups).value if speedups else None, len(speedups), passed, total)


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


def _logs(values: Iterable[float]) -> list[float]:
    logs = []
    for value in values:
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"a geometric mean needs positive, finite values, not {value!r}")
        logs.append(math.log(value))
    if not logs:
        raise ValueError("a geometric mean needs at least one value")
    return logs


def _variance(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf
