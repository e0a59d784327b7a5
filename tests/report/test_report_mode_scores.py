"""Scores of a mode over all cells: values of textbooks, and intervals that were computed in another way."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from effbench.report.mode_scores import Spread, describe, mean_ratio, median, score, share


def row(speedup, low=None, high=None, status="ok", trials=5):
    return {"status": status, "speedup": speedup, "speedup_ci_low": low, "speedup_ci_high": high, "trials": trials}


def test_scores_of_a_mode():
    found = score([row(2.0, 1.9, 2.1), row(0.5, 0.45, 0.55), row(None, status="oom")])
    assert found.value == pytest.approx(1.0) and 0.9 < found.low < 1.0 < found.high < 1.1
    assert (found.passed, found.total, found.averaged) == (2, 3, 2)
    for rows, text in [
        ([row(2.0, 1.9, 2.1), row(0.5, 0.45, 0.55), row(None, status="oom")],
         f"1.00× ({found.low:.2f}–{found.high:.2f}), 2 of 3 ok"),
        ([row(2.0), row(8.0)], "4.00×, 2 of 2 ok"), ([row(math.nan, math.nan, math.nan)], "1 of 1 ok"),
        ([row(None, status="error")], "0 of 1 ok"), ([row(1.0, 1.0, 1.0)] * 2, "1.00×, 2 of 2 ok"),
    ]:  # fmt: skip
        assert describe(score(rows)) == text


def test_shares_have_wilsons_interval():
    for passed, total in [(8, 10), (0, 10), (10, 10), (81, 263), (1, 2), (1, 7), (62, 63), (3, 10_000)]:
        found, expected = share(passed, total), stats.binomtest(passed, total).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
        assert (found.value, found.n, found.spread) == (passed / total, total, Spread.INTERVAL)
    assert share(0, 0).spread is Spread.NONE and share(0, 0).value is None
    for passed in (-1, 4):
        with pytest.raises(ValueError, match="cannot have passed"):
            share(passed, 3)


@pytest.mark.parametrize("n", [3, 9, 40])
def test_ratios_have_the_t_interval_of_their_logarithms(n):
    logs = [random.Random(n).gauss(0.2, 0.3) + index * 0.01 for index in range(n)]
    low, high = stats.t.interval(0.95, n - 1, loc=sum(logs) / n, scale=stats.sem(logs))
    found = mean_ratio([*map(math.exp, logs), None, math.nan])
    assert (found.value, found.n, found.spread) == (pytest.approx(math.exp(sum(logs) / n)), n, Spread.INTERVAL)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high))


def test_ratios_without_an_interval_say_why():
    assert (mean_ratio([0.8]).spread, mean_ratio([0.8]).note("{:.2f}".format)) == (Spread.ALONE, "one cell")
    equal = mean_ratio([1.0] * 9)
    assert (equal.value, equal.low, equal.note("{:.2f}".format)) == (1.0, None, "the same in all 9")
    assert mean_ratio([0.8333333330, 0.8333333328, 0.8333333331]).spread is Spread.EQUAL  # rounded bytes
    # two ratios far apart: bounds from 0.009 to 57 are no news
    apart = mean_ratio([0.5, 1.0])
    assert (apart.spread, apart.low, apart.high) == (Spread.RANGE, 0.5, 1.0)
    assert apart.value == pytest.approx(math.sqrt(0.5))
    assert apart.note("{:.2f}".format) == "0.50 to 1.00, least and largest"
    nothing = mean_ratio([None, math.nan, math.inf, 0.0, -1.0])
    assert (nothing.value, nothing.spread, nothing.note(str)) == (None, Spread.NONE, "")


@pytest.mark.parametrize("n", [6, 7, 12, 30, 61])
def test_the_median_has_the_narrowest_interval_that_covers(n):
    values = [float(value) for value in random.Random(n).sample(range(1000), n)]
    found, ordered, rank = median(values), sorted(values), int(stats.binom.ppf(0.025, n, 0.5))
    assert (found.low, found.high, found.spread) == (ordered[rank - 1], ordered[n - rank], Spread.INTERVAL)


def test_few_seconds_have_a_range():
    found = median([2.0, 3.0, 9.0, 4.0, 1.0])
    assert (found.value, found.low, found.high, found.spread) == (3.0, 1.0, 9.0, Spread.RANGE)
    assert median([2.5]).spread is Spread.ALONE and median([2.5, 2.5]).spread is Spread.EQUAL
    assert median([]).spread is Spread.NONE and median([math.nan]).value is None
