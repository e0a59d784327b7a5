"""The rules of other projects answer what they answer: checked against scipy and against worked examples."""

from __future__ import annotations

import math
import statistics

import numpy as np
import peers_rules as rules
import pytest
from scipy import stats

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)


def test_torchbench_alarms_beyond_seven_percent():
    assert rules.torchbench(100.0, 107.1)
    assert not rules.torchbench(100.0, 107.0)
    assert not rules.torchbench(100.0, 80.0)


@pytest.mark.parametrize("shift", [0.0, 0.4, 0.55, 0.7, 1.0])
def test_pyperf_is_the_pooled_t_test(shift):
    for _ in range(20):
        old, new = RANDOM.normal(10, 1, 30), RANDOM.normal(10 + shift, 1, 30)
        t, _ = stats.ttest_ind(new, old, equal_var=True)
        # 58 degrees of freedom: pyperf takes the value for 50
        assert rules.pyperf(old, new) == (t >= 2.009)


def test_pyperf_knows_small_samples_and_no_spread():
    for freedom in (1, 4, 18, 30):
        assert rules.pyperf_critical(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)
    assert rules.pyperf_critical(118) == 1.984
    assert rules.pyperf([1.0, 1.0], [2.0, 2.0]) and not rules.pyperf([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="different number"):
        rules.pyperf([1.0, 2.0], [1.0])


@pytest.mark.parametrize("n", [5, 12, 20])
def test_mann_whitney_is_exact_for_few_values(n):
    for shift in (0.0, 0.5, 1.0, 2.0):
        old, new = RANDOM.normal(0, 1, n), RANDOM.normal(shift, 1, n)
        expected = stats.mannwhitneyu(old, new, alternative="two-sided", method="exact").pvalue
        assert rules.mann_whitney(old, new) == pytest.approx(expected, rel=1e-9)


def test_mann_whitney_is_normal_for_many_values():
    old, new = RANDOM.normal(0, 1, 60), RANDOM.normal(0.4, 1, 60)
    expected = stats.mannwhitneyu(old, new, use_continuity=False, method="asymptotic").pvalue
    assert rules.mann_whitney(old, new) == pytest.approx(expected, rel=1e-9)


def test_mann_whitney_breaks_ties_the_least_significant_way():
    assert rules.mann_whitney([1.0] * 6, [1.0] * 6) == 1.0
    # one tie of six: as if it were in the wrong order
    tied = rules.mann_whitney([1, 2, 3, 4, 5, 6.0], [6, 7, 8, 9, 10, 11.0])
    assert tied == pytest.approx(rules.mann_whitney([1, 2, 3, 4, 5, 6.5], [6, 7, 8, 9, 10, 11.0]))


def test_asv_needs_both_the_factor_and_the_test():
    old = RANDOM.normal(100, 1, 20)
    assert not rules.asv(old, old * 1.09)  # significant, but too small
    assert rules.asv(old, old * 1.12)
    noisy = RANDOM.normal(100, 60, 20)
    assert statistics.median(noisy * 1.12) > 1.1 * statistics.median(noisy)
    assert not rules.asv(noisy, noisy * 1.12)  # large, but not significant
    with pytest.raises(ValueError, match="too few"):
        rules.asv([1.0] * 5, [2.0] * 5)


def test_conbench_z_by_hand():
    # means of those before: 10 (itself), 10, 10.5, 10.333 -> residuals 0, 1, -0.5, 0.6667
    history = [10.0, 11.0, 10.0, 11.0]
    deviation = statistics.stdev([0.0, 1.0, -0.5, 11 - 31 / 3])
    assert rules.conbench_z(history, 14.0) == pytest.approx((14 - 10.5) / deviation)
    assert rules.conbench(history, 14.0) == ((14 - 10.5) / deviation > 5)
    assert rules.conbench(history, 10.5 + 5.01 * deviation) and not rules.conbench(history, 10.5 + 4.99 * deviation)
    assert not rules.conbench(history, 1.0)
    assert rules.conbench_z([10.0], 11.0) is None and rules.conbench_z([10.0, 10.0], 11.0) is None


def test_conbench_looks_back_a_hundred_results():
    recent = list(RANDOM.normal(10, 1, 100))
    assert rules.conbench_z([1000.0, *recent], 12.0) == rules.conbench_z(recent, 12.0)


def test_conbench_alarms_once_a_step():
    series = [*RANDOM.normal(10, 0.05, 30), *RANDOM.normal(12, 0.05, 5)]
    assert rules.conbench_alarms(series) == [30]


def test_otava_says_which_interpreter_lacks_it(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named otava' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match="No module named otava"):
        rules.otava([[1.0, 2.0]], str(python))


def test_no_orderings_are_lost():
    for m, n in ((1, 1), (3, 4), (20, 20)):
        counts = rules._orderings(m, n)
        assert sum(counts) == math.comb(m + n, m) and counts == counts[::-1]
