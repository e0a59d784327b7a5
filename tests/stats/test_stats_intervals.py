"""Estimators against closed forms and against scipy.stats; the stopping rule; compilations."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from effbench.stats import intervals
from effbench.stats.intervals import (
    LogEstimate,
    geometric_mean,
    log_difference,
    log_mean,
    log_mean_of_compilations,
    mean_of_estimates,
    median_interval,
    stored_log_mean,
    t_quantile,
)


def speedup(old, new):
    return log_difference(log_mean(old), log_mean(new)).interval()


def bounds(found):
    return pytest.approx((found.value, found.low, found.high))


def test_too_few_values_and_extreme_spreads():
    found = geometric_mean([3.0])
    assert (found.value, found.low, found.high) == (pytest.approx(3.0), None, None)
    assert speedup([2.0], [1.0, 1.1]).low is speedup([2.0, 2.1], [1.0]).high is None
    assert bounds(geometric_mean([2.0] * 5)) == (2.0, 2.0, 2.0)
    assert bounds(speedup([4.0] * 3, [2.0] * 3)) == (2.0, 2.0, 2.0)
    wide = geometric_mean([1e-300, 1e300])
    assert (wide.low, wide.high) == (0.0, math.inf)
    tiny = speedup([1.0, 1.0 + 4e-16], [1.0, 1.0 + 2e-16])
    assert tiny.low <= tiny.value <= tiny.high
    one_sided, own = speedup([2.0, 2.0, 2.0], [1.0, 1.1, 0.9]), geometric_mean([1.0, 1.1, 0.9])
    assert (one_sided.low, one_sided.high) == pytest.approx((2.0 / own.high, 2.0 / own.low))


def test_values_without_a_geometric_mean_are_refused():
    for bad in ([], [0.0], [1.0, -1.0], [math.nan], [1.0, math.inf]):
        with pytest.raises(ValueError, match="geometric mean"):
            geometric_mean(bad)


def test_median_rank_is_the_narrowest_that_covers():
    for n in (1, 2, 5, 6, 7, 8, 20, 31, 100, 999, 5000, 40_001):
        found = median_interval(range(1, n + 1))
        assert found.value == pytest.approx((n + 1) / 2)
        rank = int(stats.binom.ppf(0.025, n, 0.5))
        assert (found.low, found.high) == ((rank, n - rank + 1) if rank else (None, None))
    assert median_interval([5, 1, 4, 2, 3, 6]).low == 1.0
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize(("trials", "number"), [(2, 2), (3, 3), (5, 2), (10, 3)])
def test_stored_error_over_compilations_is_not_understated(trials, number):
    compilations = [n % number for n in range(trials)]
    known = log_mean_of_compilations([1 + 0.05 * n for n in compilations], compilations, {"a", "b"})
    bounds = known.interval()
    stored = stored_log_mean(bounds.value, bounds.low, bounds.high, trials, number)
    assert stored.error >= 0.999 * known.error
    assert stored.error == pytest.approx(known.error, rel=0.25) or trials == number


def with_interval(half, n):
    """`n` figures whose interval reaches to 1 ± `half` (above)."""
    logs = np.array({5: (-1, -1, 0, 1, 1), 6: (-1, -1, -1, 1, 1, 1)}[n], dtype=float)
    own = t_quantile(n - 1) * logs.std(ddof=1) / math.sqrt(n)
    return np.exp(logs * math.log1p(half) / own).tolist()


def enough(medians, target):
    return intervals.enough(log_mean(medians), len(medians), target)


def test_the_stopping_rule():
    assert enough(with_interval(0.0099, 6), 0.01) and not enough(with_interval(0.0101, 6), 0.01)
    # the first look is stricter
    assert enough(with_interval(0.0049, 5), 0.01) and not enough(with_interval(0.0051, 5), 0.01)
    # never before the least
    assert not enough([1.0] * 4, 0.5) and not enough([1.0], 0.5) and enough([1.0] * 5, 0.5)
    assert not enough([1e-300, 1e300] * 3, 0.5)


@pytest.mark.parametrize(
    ("compilations", "rounds"), [(2, 2), (3, 3), (2, 5), (2, 10), (3, 5), (3, 10)]
)
def test_an_interval_over_compilations_covers(compilations, rounds):
    numbers, rng = [round % compilations for round in range(rounds)], np.random.default_rng(1)

    def share(between, within, kernels):
        logs = rng.normal(0, between, (500, compilations))[:, numbers] + rng.normal(
            0, within, (500, rounds)
        )
        means = [
            intervals.log_mean_of_compilations(row, numbers, kernels)
            for row in np.exp(logs).tolist()
        ]
        return np.mean([abs(mean.value) <= t_quantile(mean.df) * mean.error for mean in means])

    for between, within in itertools.product((0.0, 0.03, 0.06, 0.12), (0.01, 0.05, 0.2)):
        assert share(between, within, ("a-tuned", "b")) >= (0.91 if between > 0.1 else 0.94), (
            between,
            within,
        )
    for between, within in itertools.product((0.0, 0.01, 0.02), (0.002, 0.01, 0.05)):
        assert share(between, within, "ab") >= 0.92, (between, within, "not autotuned")
    assert 0.92 <= share(0.0, 0.05, "a") <= 0.98, "the same kernels: a plain interval"
    assert share(0.12, 0.01, "a") < (0.85 if rounds > compilations else 1.0), (
        "it would be wrong for different ones"
    )


WIDE = LogEstimate(math.log(2.0), error=0.1, df=4, below=0.3, above=0.2)
NARROW = LogEstimate(math.log(1.0), error=0.05, df=4)


def test_offsets_of_marked_values_widen_the_interval_on_top_of_the_error():
    half = t_quantile(4) * 0.1
    found = WIDE.interval()
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 * math.exp(-half - 0.3))
    assert found.high == pytest.approx(2.0 * math.exp(half + 0.2))


def test_a_single_marked_value_has_an_interval_without_an_error():
    found = LogEstimate(math.log(2.0), error=None, df=0, below=math.log(2.0), above=0.0).interval()
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("below", "above", "is_widened"),
    [(0.0, 0.0, False), (0.1, 0.0, True), (0.0, 0.1, True), (0.1, 0.1, True)],
)
def test_an_estimate_with_any_offset_is_widened(below, above, is_widened):
    assert LogEstimate(0.0, None, 0, below, above).is_widened is is_widened


def test_a_difference_may_be_off_by_the_offsets_of_both_sides():
    other = LogEstimate(0.0, error=0.05, df=4, below=0.01, above=0.02)
    found = log_difference(WIDE, other)
    assert (found.below, found.above) == pytest.approx((0.3 + 0.02, 0.2 + 0.01))
    turned = log_difference(other, WIDE)
    assert (turned.below, turned.above) == pytest.approx((found.above, found.below))


@pytest.mark.parametrize("error", [0.1, 0.0, None])
def test_a_difference_keeps_the_offsets_whatever_the_error_is(error):
    found = log_difference(dataclasses.replace(WIDE, error=error), NARROW)
    assert (found.below, found.above) == (0.3, 0.2)


@pytest.mark.parametrize("error", [0.1, 0.0, None])
def test_the_offset_of_a_mean_is_the_mean_of_the_offsets(error):
    found = mean_of_estimates(
        [dataclasses.replace(WIDE, error=error), dataclasses.replace(NARROW, error=error)]
    )
    assert (found.below, found.above) == pytest.approx((0.15, 0.1))


@pytest.mark.parametrize("below", [0.0, 0.3])
def test_an_offset_leaves_the_value_and_the_error_alone(below):
    plain = log_difference(dataclasses.replace(WIDE, below=0.0, above=0.0), NARROW)
    found = log_difference(dataclasses.replace(WIDE, below=below, above=0.0), NARROW)
    assert (found.value, found.error, found.df) == (plain.value, plain.error, plain.df)
