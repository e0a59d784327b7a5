"""Tests on hand-made data, and as a detector: false alarms and power by seeded simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from effbench.analysis.verdicts import Change, Verdict
from effbench.stats import significance
from effbench.stats.intervals import t_quantile
from effbench.stats.significance import (
    ALPHA,
    FLOOR,
    compare_pairs,
    significant,
    smallest_slowdown,
)


def compare(before, after):
    return significance.compare(dict(enumerate(before)), dict(enumerate(after)))


@pytest.mark.parametrize("sizes", [(4, 7), (2, 2), (10, 2)])
def test_ratio_interval_and_p_value_are_welchs(sizes):
    rng = np.random.default_rng(sum(sizes))
    before = rng.lognormal(0.0, 0.2, sizes[0])
    after = rng.lognormal(0.2, 0.05, sizes[1])
    found = compare(before, after)
    reference = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
    low, high = reference.confidence_interval(0.95)
    assert found.ratio == pytest.approx(stats.gmean(after) / stats.gmean(before))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.p_value == pytest.approx(reference.pvalue)


def test_few_and_exact_trials():
    found = compare([2.0], [3.0, 3.0])
    assert found.ratio == pytest.approx(1.5)
    assert found.low is found.p_value is found.smallest_slowdown is None
    same = compare([3.0] * 3, [3.0] * 5)
    assert (same.p_value, same.smallest_slowdown) == pytest.approx((1.0, 0.02))
    assert compare([3.0] * 3, [3.3] * 5).p_value == 0.0


@pytest.mark.parametrize("size", [0, 1, 5, 40])
def test_false_discovery_control(size):
    p_values = (np.random.default_rng(2).random(size) ** 3).tolist()
    expected = []
    if p_values:
        expected = (stats.false_discovery_control(p_values) <= 0.05).tolist()
    assert significant(p_values) == expected
    assert significant([None, *p_values]) == [False, *expected]


def test_the_interval_is_students_over_the_logarithms_of_the_pairs():
    before = {
        0: 1.0,
        1: 2.0,
        2: 4.0,
        3: 9.0,
    }
    after = {
        0: 1.1,
        1: 2.4,
        2: 5.2,
        4: 0.01,
    }  # rounds of one side only are skipped
    found = compare_pairs(before, after)
    logs = np.log([1.1, 1.2, 1.3])
    assert found.ratio == pytest.approx(math.exp(logs.mean()))
    half_width = t_quantile(2) * stats.sem(logs)
    assert found.low == pytest.approx(math.exp(logs.mean() - half_width))


def test_rounds_that_make_no_pair():
    with pytest.raises(ValueError, match="no round has both"):
        compare_pairs({0: 1.0}, {1: 1.0})


def verdict_shares(seed, sds, trials, slowdown=0.0, runs=3000):
    rng = np.random.default_rng(seed)
    before = rng.lognormal(0.0, sds[0], (runs, trials)).tolist()
    after = rng.lognormal(math.log1p(slowdown), sds[1], (runs, trials)).tolist()
    verdicts = []
    for old, new in zip(before, after, strict=True):
        found = compare(old, new)
        change = Change(
            "a",
            "a",
            "latency_ms",
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            limit=FLOOR,
        )
        verdicts.append(change.verdict_by(found.p_value < ALPHA))
    return {verdict: verdicts.count(verdict) / runs for verdict in Verdict}


@pytest.mark.slow
@pytest.mark.parametrize("trials", [3, 10])
@pytest.mark.parametrize(
    ("sds", "at_most"),
    [
        ((0.005, 0.005), 0.005),
        ((0.2, 0.2), 0.05),
        ((0.2, 0.02), 0.065),
    ],
)
def test_false_alarms_are_rare(trials, sds, at_most):
    shares = verdict_shares(trials, sds, trials)
    assert shares[Verdict.FASTER] + shares[Verdict.SLOWER] <= at_most


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "at_least"), [(3, 0.65), (5, 0.74), (10, 0.74)])
@pytest.mark.parametrize("sd", [0.002, 0.02, 0.2])
def test_the_smallest_slowdown_is_found_in_about_four_cases_of_five(trials, at_least, sd):
    """Fewer with three trials: the test of a comparison has fewer degrees of freedom if both sides
    differ in their spread."""
    slowdown = smallest_slowdown(sd * math.sqrt(2 / trials), 2 * (trials - 1))
    shares = verdict_shares(
        trials,
        (sd, sd),
        trials,
        slowdown,
    )
    assert at_least <= shares[Verdict.SLOWER] <= 0.86


def test_the_smallest_slowdown_is_at_least_the_floor():
    assert smallest_slowdown(0.0, 5, floor=0.05) == 0.05
    assert smallest_slowdown(500.0, 2) == math.inf
