"""Scores of a mode over all cells: values of textbooks, and intervals that were computed in another way."""

from __future__ import annotations

import math
import random

import pytest

from effbench.analysis.mode_scores import Spread, describe, mean_ratio, median, score, share

Z = 1.959963984540054


def by_bisection(passed: int, total: int, low: float, high: float) -> float:
    """Where |seen - p| = z·√(p(1 - p)/n) between two shares of which one is inside and the other outside."""

    def outside(p: float) -> bool:
        return abs(passed / total - p) > Z * math.sqrt(p * (1 - p) / total)

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if outside(middle) == outside(low) else (low, middle)
    return (low + high) / 2


def density(t: float, df: int) -> float:
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    return scale * (1 + t * t / df) ** (-(df + 1) / 2)


def covered(t: float, df: int, steps: int = 4000) -> float:
    """P(|T| <= t), by Simpson's rule."""
    width = t / steps
    inner = sum((4 if step % 2 else 2) * density(step * width, df) for step in range(1, steps))
    return 2 * width / 3 * (density(0, df) + inner + density(t, df))


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


def test_shares():
    for passed, total, low, high in [
        (8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0), (81, 263, 0.25526, 0.36618),
    ]:  # fmt: skip
        found = share(passed, total)
        assert (found.low, found.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
        assert (found.value, found.n, found.spread) == (passed / total, total, Spread.INTERVAL)
    for passed, total in [(1, 2), (1, 7), (58, 63), (62, 63), (3, 10_000)]:
        found, seen = share(passed, total), passed / total
        assert found.low == pytest.approx(by_bisection(passed, total, 1e-12, seen), abs=1e-9)
        assert found.high == pytest.approx(by_bisection(passed, total, 1 - 1e-12, seen), abs=1e-9)
    assert share(0, 0).spread is Spread.NONE and share(0, 0).value is None
    for passed in (-1, 4):
        with pytest.raises(ValueError, match="cannot have passed"):
            share(passed, 3)


def test_a_share_covers_what_it_says():
    """On average over true shares, computed from the binomial law without sampling."""
    n, found = 40, []
    bounds = [(one.low, one.high) for one in (share(k, n) for k in range(n + 1))]
    for step in range(1, 200):
        p = step / 200
        found.append(sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)
                         if bounds[k][0] <= p <= bounds[k][1]))  # fmt: skip
    assert 0.945 <= sum(found) / len(found) <= 0.965 and min(found) > 0.83


@pytest.mark.parametrize("n", [3, 9, 40])
def test_ratios_have_the_t_interval_of_their_logarithms(n):
    values = [math.exp(random.Random(n).gauss(0.2, 0.3) + index * 0.01) for index in range(n)]
    logs = [math.log(value) for value in values]
    mean = sum(logs) / n
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / (n - 1) / n) if n > 1 else 0
    found = mean_ratio([*values, None, math.nan])
    assert (found.value, found.n, found.spread) == (pytest.approx(math.exp(mean)), n, Spread.INTERVAL)
    t = (math.log(found.high) - mean) / error
    assert (mean - math.log(found.low)) / error == pytest.approx(t)
    assert covered(t, n - 1) == pytest.approx(0.95, abs=1e-6)


def test_a_known_t_interval():
    # logs 0, 0.1, 0.2: mean 0.1, standard error 0.1/√3, t(2) = 4.302653
    found = mean_ratio([math.exp(0.2), 1.0, math.exp(0.1)])
    assert math.log(found.high) == pytest.approx(0.1 + 0.4302653 / math.sqrt(3), abs=1e-6)


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
    found, ordered = median(values), sorted(values)

    def chance(rank: int) -> float:
        """That the median lies between the values of this rank from below and from above."""
        return sum(math.comb(n, k) for k in range(rank, n - rank + 1)) / 2**n

    rank = max(rank for rank in range(1, n // 2 + 1) if chance(rank) >= 0.95)
    assert (found.low, found.high, found.spread) == (ordered[rank - 1], ordered[n - rank], Spread.INTERVAL)


def test_few_seconds_have_a_range():
    found = median([2.0, 3.0, 9.0, 4.0, 1.0])
    assert (found.value, found.low, found.high, found.spread) == (3.0, 1.0, 9.0, Spread.RANGE)
    assert median([2.5]).spread is Spread.ALONE and median([2.5, 2.5]).spread is Spread.EQUAL
    assert median([]).spread is Spread.NONE and median([math.nan]).value is None
