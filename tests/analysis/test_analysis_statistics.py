"""Estimators against closed forms, against scipy.stats, and as intervals that must cover what they promise."""

import math

import numpy as np
import pytest
from scipy import stats

from effbench.analysis.statistics import (
    GeometricMean,
    Outcome,
    geometric_mean,
    median_interval,
    mode_score,
    speedup,
    t_quantile,
)


def test_geometric_mean_closed_form():
    found = geometric_mean([1.0, 4.0])
    # logs 0 and log 4: mean log 2, standard error log 2, t(1, 97.5 %) = tan(0.475 pi)
    half = math.tan(0.475 * math.pi) * math.log(2)
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 * math.exp(-half))
    assert found.high == pytest.approx(2.0 * math.exp(half))
    assert found.n == 2


def test_geometric_mean_agrees_with_scipy():
    values = np.random.default_rng(1).lognormal(0.3, 0.2, 7)
    logs = np.log(values)
    low, high = stats.t.interval(0.95, 6, loc=logs.mean(), scale=stats.sem(logs))
    found = geometric_mean(values)
    assert found.value == pytest.approx(stats.gmean(values))
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))


def test_one_value_has_no_interval():
    found = geometric_mean([3.0])
    assert (found.value, found.low, found.high, found.n) == (pytest.approx(3.0), None, None, 1)
    assert speedup([2.0], [1.0, 1.1]).low is None
    assert speedup([2.0, 2.1], [1.0]).high is None
    assert speedup([2.0], [1.0]).value == pytest.approx(2.0)


def test_no_spread_gives_a_point():
    assert geometric_mean([2.0] * 5) == GeometricMean(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0), 5)
    found = speedup([4.0] * 3, [2.0] * 3)
    assert (found.value, found.low, found.high) == (pytest.approx(2.0),) * 3


def test_wide_spread_gives_infinity_instead_of_an_overflow():
    found = geometric_mean([1e-300, 1e300])
    assert found.low == 0.0
    assert found.high == math.inf


@pytest.mark.parametrize("bad", [[], [0.0], [1.0, -1.0], [math.nan], [1.0, math.inf]])
def test_what_has_no_geometric_mean_is_refused(bad):
    with pytest.raises(ValueError, match="geometric mean"):
        geometric_mean(bad)
    with pytest.raises(ValueError, match="geometric mean"):
        speedup(bad, [1.0])


@pytest.mark.parametrize("sizes", [(2, 2), (3, 8), (5, 5), (10, 2)])
def test_speedup_agrees_with_welch_of_scipy(sizes):
    rng = np.random.default_rng(sum(sizes))
    a, b = rng.lognormal(1.0, 0.3, sizes[0]), rng.lognormal(0.5, 0.02, sizes[1])
    reference = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    found = speedup(a, b)
    assert found.value == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(reference.low), pytest.approx(reference.high))


def test_speedup_with_one_side_without_spread_has_the_other_sides_interval():
    found = speedup([2.0, 2.0, 2.0], [1.0, 1.1, 0.9])
    own = geometric_mean([1.0, 1.1, 0.9])
    assert found.low == pytest.approx(2.0 / own.high)
    assert found.high == pytest.approx(2.0 / own.low)


def test_tiny_variance_does_not_underflow():
    found = speedup([1.0, 1.0 + 4e-16], [1.0, 1.0 + 2e-16])
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("df", [1, 2.5, 4, 30, 1e6])
def test_t_quantile(df):
    assert t_quantile(df, 0.95) == pytest.approx(stats.t.ppf(0.975, df))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 8, 20, 31, 100, 999, 5000, 40_001])
def test_median_rank_is_the_narrowest_that_covers(n):
    found = median_interval(range(1, n + 1))
    assert found.value == pytest.approx((n + 1) / 2)

    def coverage(k):
        return stats.binom.cdf(n - k, n, 0.5) - stats.binom.cdf(k - 1, n, 0.5)

    if coverage(1) < 0.95:
        assert (found.low, found.high) == (None, None)
        return
    rank = int(found.low)
    assert found.high == n - rank + 1
    assert coverage(rank) >= 0.95 - 1e-9
    assert 2 * (rank + 1) > n + 1 or coverage(rank + 1) < 0.95 + 1e-9


def test_median_interval_takes_samples_in_any_order_and_refuses_none():
    assert median_interval([5, 1, 4, 2, 3, 6]).low == 1.0
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_mode_score_counts_failures_and_averages_ok_only():
    found = mode_score([("ok", 2.0), ("ok", 8.0), ("oom", None), ("degraded", 5.0), ("ok", None)])
    assert found.value == pytest.approx(4.0)
    assert (found.averaged, found.passed, found.total) == (2, 3, 5)
    assert found.pass_rate == pytest.approx(0.6)
    nothing = mode_score([])
    assert (nothing.value, nothing.pass_rate) == (None, None)


def test_mode_score_of_one_model_is_its_stored_interval():
    found = mode_score([Outcome("ok", 2.0, 1.6, 2.5, 5), ("error", None)])
    assert (found.value, found.low, found.high) == (pytest.approx(2.0), pytest.approx(1.6), pytest.approx(2.5))
    assert (found.passed, found.total) == (1, 2)


def test_mode_score_adds_the_variances_of_its_models():
    """Four models known equally well: half the standard error, and a smaller quantile."""
    one = (2.0, 2.0 / 1.1, 2.0 * 1.1, 5)
    found = mode_score([("ok", *one)] * 4)
    half = math.log(1.1) / 2 * t_quantile(20) / t_quantile(5)
    assert (found.value, found.averaged) == (pytest.approx(2.0), 4)
    assert (found.low, found.high) == (pytest.approx(2 * math.exp(-half)), pytest.approx(2 * math.exp(half)))


def test_mode_score_is_as_unsure_as_its_worst_model():
    exact = ("ok", 1.0, 1.0, 1.0, 5)
    found = mode_score([exact, ("ok", 4.0, 3.0, 16 / 3, 5)])
    assert (found.value, found.low, found.high) == (
        pytest.approx(2.0),
        pytest.approx(math.sqrt(3)),
        pytest.approx(math.sqrt(16 / 3)),
    )
    alone = mode_score([exact, exact])
    assert (alone.value, alone.low, alone.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "bounds",
    [
        (),
        (None, None, 5),
        (1.5, 2.5, None),
        (1.5, 2.5, 1),
        (math.nan, math.nan, 5),
        (0.0, math.inf, 5),
        (1.5, 2.5, math.nan),
    ],
)
def test_mode_score_has_no_interval_where_one_model_has_none(bounds):
    found = mode_score([("ok", 2.0, 1.5, 2.5, 5), ("ok", 2.0, *bounds)])
    assert (found.value, found.low, found.high) == (pytest.approx(2.0), None, None)


def test_mode_score_needs_no_interval_of_what_it_does_not_average():
    assert mode_score([("ok", 2.0, 1.6, 2.5, 5), ("degraded", 3.0), ("ok", None)]).low == pytest.approx(1.6)
    assert mode_score([("oom", None)]).low is None


def test_median_interval_covers_the_median_of_a_skewed_distribution():
    rng = np.random.default_rng(21)
    draws = rng.lognormal(0.0, 1.0, (1500, 40))
    hits = sum(found.low <= 1.0 <= found.high for found in map(median_interval, draws))
    assert 0.94 <= hits / len(draws) <= 0.985  # discrete: at least the nominal, up to sampling error
