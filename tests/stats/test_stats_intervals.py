"""Estimators against closed forms and against scipy.stats; the stopping rule; compilations."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from effbench.stats import intervals
from effbench.stats.intervals import (
    LogEstimate,
    log_difference,
    log_mean,
    log_mean_of_compilations,
    mean_of_estimates,
    mean_of_related_estimates,
    median_interval,
    stored_log_mean,
    t_quantile,
)


def speedup(old, new):
    return log_difference(log_mean(old), log_mean(new)).interval()


def bounds(found):
    return pytest.approx((found.value, found.low, found.high))


def test_too_few_values_have_no_interval():
    found = log_mean([3.0]).interval()
    assert found.value == pytest.approx(3.0)
    assert found.low is found.high is None
    assert speedup([2.0], [1.0, 1.1]).low is None


def test_extreme_spreads():
    assert bounds(log_mean([2.0] * 5).interval()) == (2.0, 2.0, 2.0)
    assert bounds(speedup([4.0] * 3, [2.0] * 3)) == (2.0, 2.0, 2.0)
    assert bounds(log_mean([1e-300, 1e300]).interval()) == (1.0, 0.0, math.inf)
    tiny = speedup([1.0, 1.0 + 4e-16], [1.0, 1.0 + 2e-16])
    assert tiny.low <= tiny.value <= tiny.high


def test_a_side_without_spread():
    one_sided = speedup([2.0, 2.0, 2.0], [1.0, 1.1, 0.9])
    own = log_mean([1.0, 1.1, 0.9]).interval()
    assert one_sided.low == pytest.approx(2.0 / own.high)
    assert one_sided.high == pytest.approx(2.0 / own.low)


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [0.0],
        [math.nan],
        [1.0, math.inf],
    ],
)
def test_values_without_a_geometric_mean_are_refused(bad):
    with pytest.raises(ValueError, match="geometric mean"):
        log_mean(bad)


@pytest.mark.parametrize("n", [1, 5, 6, 7, 20, 31, 999, 40_001])
def test_median_rank_is_the_narrowest_that_covers(n):
    found = median_interval(range(1, n + 1))
    assert found.value == pytest.approx((n + 1) / 2)
    rank = int(stats.binom.ppf(0.025, n, 0.5))
    expected = (rank, n - rank + 1) if rank else (None, None)
    assert (found.low, found.high) == expected


def test_a_median_of_nothing():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize(("trials", "number"), [(2, 2), (5, 2), (10, 3)])
def test_stored_error_over_compilations_is_not_understated(trials, number):
    compilations = [n % number for n in range(trials)]
    times = [1 + 0.05 * n for n in compilations]
    known = log_mean_of_compilations(times, compilations, {"a", "b"})
    found = known.interval()
    stored = stored_log_mean(
        found.value,
        found.low,
        found.high,
        trials,
        number,
    )
    assert stored.error >= 0.999 * known.error
    assert stored.error == pytest.approx(known.error, rel=0.25) or trials == number


def with_interval(half, n):
    """`n` figures whose interval reaches to 1 ± `half` (above)."""
    signs = {5: (-1, -1, 0, 1, 1), 6: (-1, -1, -1, 1, 1, 1)}
    logs = np.array(signs[n], dtype=float)
    error = logs.std(ddof=1) / math.sqrt(n)
    own = t_quantile(n - 1) * error
    return np.exp(logs * math.log1p(half) / own).tolist()


@pytest.mark.parametrize(
    ("medians", "target", "enough"),
    [
        (with_interval(0.0099, 6), 0.01, True),
        (with_interval(0.0101, 6), 0.01, False),
        # the first look is stricter
        (with_interval(0.0049, 5), 0.01, True),
        (with_interval(0.0051, 5), 0.01, False),
        # never before the least
        ([1.0] * 4, 0.5, False),
        ([1e-300, 1e300] * 3, 0.5, False),
    ],
)
def test_the_stopping_rule(medians, target, enough):
    assert intervals.enough(log_mean(medians), len(medians), target) is enough


def coverage(compilations, rounds, between, within, kernels):
    """The fraction of 500 means whose interval over compilations covers the truth."""
    numbers = [number % compilations for number in range(rounds)]
    rng = np.random.default_rng(1)
    choices = rng.normal(0, between, (500, compilations))[:, numbers]
    logs = choices + rng.normal(0, within, (500, rounds))
    covered = 0
    for values in np.exp(logs).tolist():
        mean = log_mean_of_compilations(values, numbers, kernels)
        covered += abs(mean.value) <= mean.half_width()
    return covered / 500


@pytest.mark.parametrize(
    ("compilations", "rounds"),
    [
        (2, 2),
        (2, 10),
        (3, 5),
    ],
)
@pytest.mark.parametrize(
    ("kernels", "between", "within", "least"),
    [
        (("a-tuned", "b"), 0.03, 0.01, 0.94),
        (("a-tuned", "b"), 0.03, 0.2, 0.94),
        (("a-tuned", "b"), 0.12, 0.05, 0.91),
        ("ab", 0.02, 0.01, 0.92),
        ("ab", 0.0, 0.05, 0.92),
        ("a", 0.0, 0.05, 0.92),  # the same kernels: a plain interval
    ],
)
def test_an_interval_over_compilations_covers(
    compilations, rounds, kernels, between, within, least
):
    assert coverage(compilations, rounds, between, within, kernels) >= least


def test_a_plain_interval_would_be_wrong_for_different_kernels():
    assert coverage(2, 10, 0.12, 0.01, "a") < 0.85


# --- marked values ---


WIDE = LogEstimate(
    math.log(2.0),
    error=0.1,
    df=4,
    below=0.3,
    above=0.2,
)
NARROW = LogEstimate(math.log(1.0), error=0.05, df=4)


def test_offsets_of_marked_values_widen_the_interval_on_top_of_the_error():
    half = t_quantile(4) * 0.1
    found = WIDE.interval()
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 * math.exp(-half - 0.3))
    assert found.high == pytest.approx(2.0 * math.exp(half + 0.2))


@pytest.mark.parametrize("error", [0.1, None])
def test_a_difference_may_be_off_by_the_offsets_of_both_sides(error):
    other = LogEstimate(
        0.0,
        error=0.05,
        df=4,
        below=0.01,
        above=0.02,
    )
    found = log_difference(dataclasses.replace(WIDE, error=error), other)
    assert found.value == pytest.approx(math.log(2.0))
    assert found.below == pytest.approx(0.3 + 0.02)
    assert found.above == pytest.approx(0.2 + 0.01)


@pytest.mark.parametrize("error", [0.1, None])
def test_the_offset_of_a_mean_is_the_mean_of_the_offsets(error):
    estimates = [dataclasses.replace(one, error=error) for one in (WIDE, NARROW)]
    found = mean_of_estimates(estimates)
    assert (found.below, found.above) == pytest.approx((0.15, 0.1))


@pytest.mark.parametrize("errors", [(0.1, 0.1), (0.1, 0.2)], ids=["equal", "different"])
@pytest.mark.parametrize("dfs", [(2, 9), (9, 2)])
def test_a_mean_of_related_estimates_is_as_uncertain_as_the_least_certain_of_them(errors, dfs):
    estimates = [LogEstimate(0.0, *parts) for parts in zip(errors, dfs, strict=True)]
    found = mean_of_related_estimates(estimates)
    assert (found.error, found.df) == (pytest.approx(sum(errors) / 2), 2)


def test_related_estimates_without_errors():
    assert mean_of_related_estimates([LogEstimate(0.0, 0.0, 3)] * 2).error == 0.0
    unknown = [LogEstimate(0.0, 0.1, 3), LogEstimate(0.0, None, 0)]
    assert mean_of_related_estimates(unknown).error is None
