"""Means, ratios and medians with confidence intervals: the arithmetic.

The interval of a result's speedup: the top of `store/summary.py` lists its steps; the last one is
`LogEstimate.interval` here. The interval of the pairs within one trial is `median_interval`, which
`Timing.figure` (`measure/samples.py`) uses.

Statistics over trials use logarithms, because times are positive and their errors multiply. The
unit of analysis is the trial (a process) and not the call, because most of the variation is between
processes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

CONFIDENCE = 0.95
#: A mean over cells is reported as unclear if its upper bound exceeds this multiple of its lower
#: bound.
CLEAR = 4.0
#: `enough`: fraction of the target that is required at the first check, when the spread is least
#: known.
FIRST_LOOK = 0.5
LEAST_TRIALS = 5
#: Standard deviation of log times between compilations with different kernels: two differed by up
#: to 2.6 % on an H200, and by 5 to 19 % if autotuning chose among templates. It counts like
#: PRIOR_DF further degrees of freedom, because two or three compilations say little.
PRIOR_SD = 0.015
TUNED_SD = 0.08
PRIOR_DF = 3
#: End of the fingerprint of kernels of which some were chosen by autotuning.
TUNED = "-tuned"


@dataclass(frozen=True)
class Interval:
    """A mean, median or ratio with its confidence bounds, which are None if there are too few
    values."""

    value: float
    low: float | None = None
    high: float | None = None


def are_tuned(fingerprints: Iterable[str]) -> bool:
    """Return whether autotuning chose some of the kernels with these stored fingerprints."""
    return any(name.endswith(TUNED) for name in fingerprints)


@dataclass(frozen=True)
class LogEstimate:
    """A mean, usually the logarithm of a geometric mean or ratio, with its standard error (None:
    too few values).

    `below`, `above`: how much lower and higher the logarithm may be because marked values were
    measured on a disturbed host, or by how much the pairs of a single trial vary. Repetition does
    not reduce them, so the interval adds them to the statistical error.
    """

    value: float
    error: float | None
    df: float
    below: float = 0.0
    above: float = 0.0

    def half_width(self) -> float:
        """Return half of the interval of the logarithm, without the offsets."""
        if self.error is None:
            return 0.0
        return t_quantile(self.df) * self.error

    def interval(self) -> Interval:
        """Return the mean or ratio itself, with its confidence bounds."""
        value = _exp(self.value)
        if self.error is None and not self.below and not self.above:
            return Interval(value)
        half = self.half_width()
        return Interval(
            value,
            _exp(self.value - half - self.below),
            _exp(self.value + half + self.above),
        )


def is_clear(low: float | None, high: float | None) -> bool:
    """Return whether a mean with these bounds may be quoted. A mean without bounds may."""
    return low is None or high is None or not high > CLEAR * low


def log_mean(values: Iterable[float]) -> LogEstimate:
    """Return the mean logarithm of values, one per trial. Raises ValueError for no values and for a
    value that is not positive and finite."""
    return _log_mean(tuple(values))


@lru_cache(maxsize=64)  # a comparison needs the mean of the same values several times
def _log_mean(values: tuple[float, ...]) -> LogEstimate:
    are_valid = all(0 < value < math.inf for value in values)
    if not values or not are_valid:
        raise ValueError(f"a geometric mean requires positive, finite values, got {[*values]!r}")
    return mean_of([math.log(value) for value in values])


def mean_of(values: Sequence[float]) -> LogEstimate:
    """Return the mean of values, one per trial."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return LogEstimate(mean, None, 0)
    variance = _squares(values, mean) / (n - 1)
    return LogEstimate(mean, math.sqrt(variance / n), n - 1)


def _squares(values: Iterable[float], mean: float) -> float:
    """Return the sum of squared distances from a mean."""
    return math.fsum((value - mean) ** 2 for value in values)


def log_mean_of_compilations(
    values: Sequence[float],
    compilations: Sequence[Hashable],
    kernels: Iterable[str | None],
    sides: int = 1,
) -> LogEstimate:
    """Return the mean logarithm of values, one per trial, whose error includes the variation
    between compilations.

    `compilations`: the trials' compile caches. `kernels`: the fingerprints of all trials whose
    means are compared. If they are the same, or nothing compiles, a further compilation would give
    the same kernels, so this is `log_mean`. Otherwise it is the mean over compilations, with a
    moderated variance (Smyth 2004): the sample variance between compilations, combined with the
    expected one (TUNED_SD if some were autotuned, else PRIOR_SD) and the variance that the
    processes of a compilation cause. In simulations of 2 and 3 compilations, 5 and 10 trials and an
    SD of 1 and 5 % between processes, the 95 % interval of autotuned kernels covers 99 % or more
    with an SD of 0, 3 and 6 % between compilations, and 93 to 95 % with 12 %. `sides`: 2 for ratios
    of two sides that both compile. Fewer than two values have no error. Raises ValueError as
    `log_mean` does.
    """
    over_trials = log_mean(values)
    known = {name for name in kernels if name is not None}
    if len(values) < 2 or None in compilations or len(known) < 2:
        return over_trials
    groups: dict[Hashable, list[float]] = {}
    for value, compilation in zip(values, compilations, strict=True):
        groups.setdefault(compilation, []).append(math.log(value))
    sd = PRIOR_SD
    if are_tuned(known):
        sd = TUNED_SD
    estimate = _mean_of_groups(list(groups.values()), sides * sd**2)
    if len(groups) < len(values):
        return estimate
    # one trial per compilation tells nothing about the processes of one: the wider interval counts
    return max(estimate, over_trials, key=LogEstimate.half_width)


def _mean_of_groups(groups: Sequence[Sequence[float]], expected: float) -> LogEstimate:
    """Return the mean over groups of logarithms with a moderated variance; `expected`: the variance
    between groups that is expected."""
    means = []
    squares_within = 0.0
    df_within = 0
    for group in groups:
        mean = statistics.fmean(group)
        means.append(mean)
        squares_within += _squares(group, mean)
        df_within += len(group) - 1
    variance_within = squares_within / max(1, df_within)
    of_means = variance_within * statistics.fmean(1 / len(group) for group in groups)
    whole_mean = statistics.fmean(means)
    count = len(groups)
    df = PRIOR_DF + count - 1
    variance = (PRIOR_DF * (expected + of_means) + _squares(means, whole_mean)) / df
    return LogEstimate(whole_mean, math.sqrt(variance / count), df)


@lru_cache(maxsize=8192)  # tables of different metrics compare the same times
def stored_log_mean(
    value: float,
    low: float | None,
    high: float | None,
    n: int | None,
    compilations: int | None = None,
    df_per_trial: float = 1.0,
    hosts: int | None = None,
) -> LogEstimate:
    """Return the logarithm of a stored mean or ratio of `n` trials, with the error implied by its
    95 % bounds. `hosts`: number of hosts in a joined sweep, whose bounds are over hosts.

    Whether they include the variation between `compilations` is unknown, so the larger degrees of
    freedom count: too many give too large an error, too few would hide most of it.
    """
    log = math.log(value)
    if hosts is not None and hosts >= 2:
        n = hosts
        compilations = None
        df_per_trial = 1.0
    # NaN means unknown in a frame, and has no bounds either
    if n is None or low is None or high is None or n < 2 or not 0 < low <= high < math.inf:
        return LogEstimate(log, None, 0)
    df = df_per_trial * (int(n) - 1)
    if compilations is not None and compilations > 1:
        df = max(df, PRIOR_DF + compilations - 1)
    error = math.log(high / low) / 2 / t_quantile(df)
    return LogEstimate(log, error, df)


def log_difference(a: LogEstimate, b: LogEstimate) -> LogEstimate:
    """Return `a` - `b`, with Welch's standard error and Welch–Satterthwaite's degrees of freedom.
    The interval covers 94 to 96.5 % with equal numbers of trials on both sides."""
    return _sum([a, LogEstimate(-b.value, b.error, b.df, below=b.above, above=b.below)])


def mean_of_estimates(estimates: Sequence[LogEstimate]) -> LogEstimate:
    """Return the mean of independent estimates. Its error is None if the error of any estimate
    is."""
    total = _sum(estimates)
    number = len(estimates)
    error = None
    if total.error is not None:
        error = total.error / number
    below = total.below / number
    above = total.above / number
    return LogEstimate(total.value / number, error, total.df, below, above)


def mean_of_related_estimates(estimates: Sequence[LogEstimate]) -> LogEstimate:
    """Return the mean of estimates that share their errors, such as those of several cells on the
    same hosts: averaging does not reduce the errors."""
    mean = mean_of_estimates(estimates)
    if not mean.error:
        return mean
    error = statistics.fmean(estimate.error or 0.0 for estimate in estimates)
    df = min(estimate.df for estimate in estimates if estimate.error)
    return replace(mean, error=error, df=df)


def _sum(estimates: Sequence[LogEstimate]) -> LogEstimate:
    """Return the sum of independent estimates."""
    value = math.fsum(estimate.value for estimate in estimates)
    below = math.fsum(estimate.below for estimate in estimates)
    above = math.fsum(estimate.above for estimate in estimates)
    variance = 0.0
    denominator = 0.0
    for estimate in estimates:
        if estimate.error is None:
            return LogEstimate(value, None, 0, below, above)
        variance += estimate.error**2
        if estimate.error:
            denominator += estimate.error**4 / estimate.df
    df = math.fsum(estimate.df for estimate in estimates)
    if denominator:
        df = variance**2 / denominator
    return LogEstimate(value, math.sqrt(variance), df, below, above)


def is_less(a: LogEstimate, b: LogEstimate) -> bool:
    """Return whether `a` is significantly less than `b`: the 95 % interval of their ratio excludes
    1."""
    high = log_difference(a, b).interval().high
    return high is not None and high < 1.0


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median of a trial's samples, with the narrowest symmetric interval between two
    order statistics. The interval requires six samples. Raises ValueError for no samples."""
    ordered = sorted(map(float, samples))
    if not ordered:
        raise ValueError("no samples")
    median = statistics.median(ordered)
    rank = _median_rank(len(ordered))
    if not rank:
        return Interval(median)
    return Interval(median, ordered[rank - 1], ordered[-rank])


def enough(
    mean: LogEstimate,
    rounds: int,
    target: float,
) -> bool:
    """Return whether the 95 % interval of a mean over this many rounds is within ± `target` (0.01 =
    1 %), so that further rounds may be skipped.

    Before LEAST_TRIALS rounds this is False, and after exactly LEAST_TRIALS the target is halved,
    because stopping when an interval happens to be narrow reduces its coverage. The final interval
    covers at least 93.4 %.
    """
    if rounds < LEAST_TRIALS or mean.error is None:
        return False
    if rounds == LEAST_TRIALS:
        target *= FIRST_LOOK
    # the upper bound is always the more distant one
    return mean.half_width() <= math.log1p(target)


def t_quantile(df: float) -> float:
    """Return the two-sided quantile of Student's t with `df` > 0 degrees of freedom: P(|T| <=
    result) = CONFIDENCE."""
    return t_of(0.5 + CONFIDENCE / 2, df)


@lru_cache(maxsize=2048)
def t_of(probability: float, df: float) -> float:
    """Return the quantile of Student's t with `df` > 0 degrees of freedom: P(T <= result) =
    `probability`."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def t_tail(t: float, df: float) -> float:
    """Return P(|T| >= |t|) of Student's t with `df` degrees of freedom."""
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -abs(t)))


@lru_cache(maxsize=1024)
def _median_rank(n: int) -> int:
    """Return the largest k with P(k <= binomial(n, 1/2) <= n - k) >= CONFIDENCE, or 0 if no k has
    this property."""
    # without SciPy, because each trial calls this in a fresh process, which would load SciPy during
    # measurements
    low = n // 2
    high = n - low
    choices = math.lgamma(n + 1) - math.lgamma(low + 1) - math.lgamma(high + 1)
    pmf = math.exp(choices - n * math.log(2))
    covered = pmf
    if low != high:
        covered *= 2
    # outward from the centre: about sqrt(n) steps instead of n
    while covered < CONFIDENCE and low > 0:
        pmf *= low / (n - low + 1)
        low -= 1
        covered += 2 * pmf
    return low


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf
