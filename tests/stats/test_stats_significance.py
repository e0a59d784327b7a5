"""Tests on hand-made data, and as a detector: false alarms and power by seeded simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from effbench.comparison.verdicts import Verdict, verdict_of
from effbench.stats import significance
from effbench.stats.intervals import t_quantile
from effbench.stats.significance import (
    ALPHA,
    LEAST_SWEEPS,
    WIDEST,
    compare_pairs,
    confirms,
    noise_threshold,
    significant,
    smallest_slowdown,
)


def compare(before, after, **options):
    return significance.compare(dict(enumerate(before)), dict(enumerate(after)), **options)


def verdict(found, floor=0.02):
    return verdict_of(
        found.ratio,
        found.low,
        found.high,
        found.p_value is not None and found.p_value < ALPHA,
        floor,
    )


def test_ratio_interval_and_p_value_are_welchs():
    for sizes in ((4, 7), (2, 2), (5, 5), (10, 2)):
        rng = np.random.default_rng(sum(sizes))
        before, after = rng.lognormal(0.0, 0.2, sizes[0]), rng.lognormal(0.2, 0.05, sizes[1])
        found = compare(before, after)
        reference = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
        interval = reference.confidence_interval(0.95)
        assert found.ratio == pytest.approx(stats.gmean(after) / stats.gmean(before))
        assert (math.log(found.low), math.log(found.high)) == pytest.approx(
            (interval.low, interval.high)
        )
        assert found.p_value == pytest.approx(reference.pvalue)
    # few or exact trials
    found = compare([2.0], [3.0, 3.0])
    assert (found.ratio, found.low, found.p_value, found.smallest_slowdown) == (
        pytest.approx(1.5),
        None,
        None,
        None,
    )
    same, more = compare([3.0] * 3, [3.0] * 5), compare([3.0] * 3, [3.3] * 5)
    assert (same.p_value, same.smallest_slowdown, more.p_value) == (1.0, pytest.approx(0.02), 0.0)


def test_false_discovery_control():
    # 0.03 alone would fail its own rank's limit, but a larger one passes: all below it do
    assert significant([0.03, 0.9, 0.034, 0.036, 0.01], q=0.05) == [True, False, True, True, True]
    assert significant([None, 0.04]) == [False, True] and significant([]) == []
    rng = np.random.default_rng(2)
    for size in (1, 5, 40):
        p_values = (rng.random(size) ** 3).tolist()
        assert significant(p_values) == (stats.false_discovery_control(p_values) <= 0.05).tolist()


DRIFT = {number: 1.0 + 0.1 * number for number in range(6)}


def drifting(factor, wobble=0.001):
    return {
        number: value * factor * (1 + wobble * (-1) ** number) for number, value in DRIFT.items()
    }


def test_the_interval_is_students_over_the_logarithms_of_the_pairs():
    found = compare_pairs({0: 1.0, 1: 2.0, 2: 4.0, 3: 9.0}, {0: 1.1, 1: 2.4, 2: 5.2, 4: 0.01})
    logs = np.log([1.1, 1.2, 1.3])  # rounds of one side only are skipped
    assert found.ratio == pytest.approx(math.exp(logs.mean()))
    assert found.low == pytest.approx(math.exp(logs.mean() - t_quantile(2) * stats.sem(logs)))
    assert found.df == 2
    one = compare_pairs({3: 1.0}, {3: 2.0})
    assert (one.ratio, one.low, one.p_value) == (2.0, None, None)
    for rounds, said in (({1: 1.0}, "no round has both"), ({0: math.nan}, "positive, finite")):
        with pytest.raises(ValueError, match=said):
            compare_pairs({0: 1.0}, rounds)


def test_a_confirmed_slowdown_lies_beyond_the_floor_with_its_whole_interval():
    clear, near = compare_pairs(DRIFT, drifting(1.05)), compare_pairs(DRIFT, drifting(1.0205))
    assert verdict(near) is Verdict.SLOWER
    assert confirms(clear.low, 5) and not confirms(near.low, 5) and not confirms(None, 5)
    assert not confirms(clear.low, 4) and not confirms(clear.low, 5, floor=0.06)


def test_noise_threshold():
    # every neighbour differs by 1 %: spread 1 % ÷ 0.6745, three of them
    assert noise_threshold([[1.0, 1.01] * 5]) == pytest.approx(
        math.expm1(3 * math.log(1.01) / 0.6745)
    )
    quiet = [1.0, 1.001] * 5
    expected = pytest.approx(noise_threshold([quiet]), rel=1e-6)
    twice = [2 * value for value in quiet]
    assert noise_threshold([[*quiet, *twice]]) == expected, "one step is no noise"
    assert noise_threshold([quiet, twice]) == expected, "nor are two environments that differ"
    assert noise_threshold([[3.0] * 10]) == 0
    assert noise_threshold([[1.0, 9.0] * 5]) == WIDEST
    # it needs enough sweeps
    assert (
        noise_threshold(
            [[1.0, 2.0] * (LEAST_SWEEPS // 2) + [None, math.inf, math.nan, 0.0, -1.0, "1.0"]]
        )
        > 0
    )
    levels = [1.0, 2.0] * LEAST_SWEEPS
    for few in (
        [levels[: LEAST_SWEEPS - 1]],
        [[]],
        [],
        [[1.0, 2.0, 1.0]] * 2,
        [[level] for level in levels],
    ):
        assert noise_threshold(few) is None
    assert noise_threshold([[1.0, 2.0, 1.0], [1.0, 2.0, 1.0, 2.0]]) > 0


def verdict_shares(seed, sds, trials, slowdown=0.0, runs=3000):
    rng = np.random.default_rng(seed)
    before = rng.lognormal(0.0, sds[0], (runs, trials)).tolist()
    after = rng.lognormal(math.log1p(slowdown), sds[1], (runs, trials)).tolist()
    verdicts = [verdict(compare(a, b)) for a, b in zip(before, after, strict=True)]
    return {one: verdicts.count(one) / runs for one in Verdict}


@pytest.mark.slow
def test_false_alarms_are_rare():
    for trials in (3, 5, 10):
        for sds, at_most in (
            ((0.005,) * 2, 0.005),
            ((0.02,) * 2, 0.05),
            ((0.2,) * 2, 0.05),
            ((0.2, 0.02), 0.065),
        ):
            shares = verdict_shares(trials, sds, trials)
            assert shares[Verdict.FASTER] + shares[Verdict.SLOWER] <= at_most, (trials, sds)
    assert verdict_shares(1, (0.002, 0.002), 5)[Verdict.SAME] > 0.99
    assert verdict_shares(2, (0.2, 0.2), 5)[Verdict.SAME] < 0.001


@pytest.mark.slow
def test_the_smallest_slowdown_is_found_in_four_cases_of_five():
    for trials in (3, 5, 10):
        for sd in (0.002, 0.02, 0.2):
            shares = verdict_shares(trials, (sd, sd), trials, smallest_slowdown(sd, trials))
            assert shares[Verdict.SLOWER] == pytest.approx(0.8, abs=0.02), (trials, sd)


def test_the_smallest_slowdown_behaves():
    assert (smallest_slowdown(0.0, 5, floor=0.05), smallest_slowdown(500.0, 2)) == (0.05, math.inf)
    assert smallest_slowdown(0.2, 20) < smallest_slowdown(0.2, 5) < smallest_slowdown(0.2, 3)
    # with many trials a side Welch's test is Student's: without a floor it is that of the
    # noncentral t
    trials, sd = 100, 0.05
    error, df = sd * math.sqrt(2 / trials), 2 * (trials - 1)
    found = math.log1p(smallest_slowdown(sd, trials, floor=0.0))
    assert stats.nct.sf(stats.t.ppf(0.975, df), df, found / error) == pytest.approx(0.8, abs=0.001)
