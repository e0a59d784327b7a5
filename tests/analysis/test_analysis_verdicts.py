"""Verdicts on hand-made data, and as a detector: false alarms and power by seeded simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from effbench.analysis.verdicts import (
    Verdict,
    benjamini_hochberg,
    compare,
    smallest_slowdown,
    verdict_of,
)

QUIET = [1.000, 1.001, 0.999, 1.0005, 0.9995]
NOISY = [1.0, 1.3, 0.8, 1.1, 0.9]


def times(values, factor):
    return [value * factor for value in values]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (QUIET, QUIET, Verdict.SAME),
        (QUIET, times(QUIET, 1.01), Verdict.SAME),  # significant, and within the floor
        (QUIET, times(QUIET, 1.03), Verdict.SLOWER),
        (QUIET, times(QUIET, 0.97), Verdict.FASTER),
        (QUIET, times(QUIET, 1.0195), Verdict.AMBIGUOUS),  # the interval reaches beyond the floor
        (NOISY, NOISY, Verdict.AMBIGUOUS),  # no change seen, none excluded
        (NOISY, times(NOISY, 1.1), Verdict.AMBIGUOUS),
        (NOISY, times(NOISY, 3.0), Verdict.SLOWER),
        ([2.0], [5.0], Verdict.AMBIGUOUS),
        ([2.0], [5.0, 5.1], Verdict.AMBIGUOUS),
    ],
)
def test_verdicts(before, after, verdict):
    assert compare(before, after).verdict is verdict
    mirrored = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}
    assert compare(after, before).verdict is mirrored.get(verdict, verdict)


def test_ratio_interval_and_p_value_are_welchs():
    rng = np.random.default_rng(1)
    before, after = rng.lognormal(0.0, 0.2, 4), rng.lognormal(0.2, 0.05, 7)
    found = compare(before, after)
    reference = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
    interval = reference.confidence_interval(0.95)
    assert found.ratio == pytest.approx(stats.gmean(after) / stats.gmean(before))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(reference.pvalue)


def test_under_two_trials_a_side_nothing_is_known_but_the_ratio():
    found = compare([2.0], [3.0, 3.0])
    assert (found.ratio, found.verdict) == (pytest.approx(1.5), Verdict.AMBIGUOUS)
    assert (found.low, found.high, found.p_value, found.smallest_slowdown) == (None,) * 4


def test_figures_without_spread_are_exact():
    same, more = compare([3.0] * 3, [3.0] * 5), compare([3.0] * 3, [3.3] * 5)
    assert (same.verdict, same.p_value, same.smallest_slowdown) == (Verdict.SAME, 1.0, pytest.approx(0.02))
    assert (more.verdict, more.p_value, more.low) == (Verdict.SLOWER, 0.0, pytest.approx(1.1))


def test_floor_and_alpha_are_the_callers():
    after = times(QUIET, 1.03)
    assert compare(QUIET, after, floor=0.05).verdict is Verdict.SAME
    assert compare(QUIET, after, floor=0.0).verdict is Verdict.SLOWER
    assert compare(QUIET, after, alpha=1e-12).verdict is Verdict.AMBIGUOUS
    assert compare(QUIET, after, floor=0.05).smallest_slowdown >= 0.05


@pytest.mark.parametrize("bad", [[], [0.0, 1.0], [-1.0, 1.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_what_has_no_geometric_mean_is_refused(bad):
    for sides in ((bad, QUIET), (QUIET, bad)):
        with pytest.raises(ValueError, match="geometric mean"):
            compare(*sides)


@pytest.mark.parametrize("wrong", [{"floor": -0.01}, {"floor": math.nan}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_a_floor_or_level_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match=r"floor|significance level"):
        compare(QUIET, QUIET, **wrong)
    with pytest.raises(ValueError, match=r"floor|significance level"):
        smallest_slowdown(0.01, 5, **wrong)


def test_the_decision_may_be_anothers():
    assert verdict_of(1.05, 1.01, 1.09, significant=True) is Verdict.SLOWER
    assert verdict_of(1.05, 1.01, 1.09, significant=False) is Verdict.AMBIGUOUS
    assert verdict_of(0.95, 0.91, 0.99, significant=True) is Verdict.FASTER
    assert verdict_of(1.0, 0.99, 1.01, significant=False) is Verdict.SAME
    assert verdict_of(1.0, 0.97, 1.01, significant=False) is Verdict.AMBIGUOUS
    assert verdict_of(1.5, None, None, significant=False) is Verdict.AMBIGUOUS


def test_verdicts_are_their_words():
    assert {str(verdict) for verdict in Verdict} == {
        "same", "faster", "slower", "ambiguous", "broken", "fixed", "new", "missing",
    }  # fmt: skip


def test_benjamini_hochberg_agrees_with_scipy():
    rng = np.random.default_rng(2)
    for size in (1, 5, 40):
        p_values = (rng.random(size) ** 3).tolist()
        expected = stats.false_discovery_control(p_values) <= 0.05
        assert benjamini_hochberg(p_values) == expected.tolist()


def test_benjamini_hochberg_by_hand():
    # 0.03 alone would fail its own rank's limit, but a larger one passes: all below it do
    assert benjamini_hochberg([0.03, 0.9, 0.034, 0.036, 0.01], q=0.05) == [True, False, True, True, True]
    assert benjamini_hochberg([0.04, None, 0.2]) == [False, False, False]
    assert benjamini_hochberg([None, 0.04]) == [False, True]
    assert benjamini_hochberg([]) == []
    for bad in ([-0.1], [1.1], [math.nan]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            benjamini_hochberg(bad)


def test_benjamini_hochberg_holds_its_false_discovery_rate():
    """40 cells, of which 8 changed: of the alarms at most one in twenty is false, on average."""
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(2000):
        changed = np.arange(40) < 8
        p_values = 2 * stats.norm.sf(np.abs(rng.normal(3.0 * changed, 1.0)))
        alarms = np.array(benjamini_hochberg(p_values.tolist()))
        shares.append((alarms & ~changed).sum() / max(alarms.sum(), 1))
    assert np.mean(shares) <= 0.05


def verdict_shares(seed, sds, trials, slowdown=0.0, runs=3000):
    rng = np.random.default_rng(seed)
    before = rng.lognormal(0.0, sds[0], (runs, trials)).tolist()
    after = rng.lognormal(math.log1p(slowdown), sds[1], (runs, trials)).tolist()
    verdicts = [compare(a, b).verdict for a, b in zip(before, after, strict=True)]
    return {verdict: verdicts.count(verdict) / runs for verdict in Verdict}


@pytest.mark.parametrize("trials", [3, 5, 10])
@pytest.mark.parametrize(
    ("sds", "at_most"), [((0.005, 0.005), 0.005), ((0.02, 0.02), 0.05), ((0.2, 0.2), 0.05), ((0.2, 0.02), 0.065)]
)
@pytest.mark.slow
def test_false_alarms_are_rare(sds, at_most, trials):
    shares = verdict_shares(trials, sds, trials)
    assert shares[Verdict.FASTER] + shares[Verdict.SLOWER] <= at_most


@pytest.mark.slow
def test_quiet_cells_are_called_the_same_and_noisy_ones_never():
    assert verdict_shares(1, (0.002, 0.002), 5)[Verdict.SAME] > 0.99
    assert verdict_shares(2, (0.2, 0.2), 5)[Verdict.SAME] < 0.001


@pytest.mark.parametrize("trials", [3, 5, 10])
@pytest.mark.parametrize("sd", [0.002, 0.02, 0.2])
@pytest.mark.slow
def test_the_smallest_slowdown_is_found_in_four_cases_of_five(sd, trials):
    slowdown = smallest_slowdown(sd, trials)
    assert slowdown >= 0.02
    shares = verdict_shares(trials, (sd, sd), trials, slowdown)
    assert shares[Verdict.SLOWER] == pytest.approx(0.8, abs=0.02)


def test_the_smallest_slowdown_behaves():
    assert smallest_slowdown(0.0, 5) == 0.02
    assert smallest_slowdown(0.0, 5, floor=0.05) == 0.05
    assert smallest_slowdown(0.2, 5) == pytest.approx(0.517, abs=0.001)
    assert smallest_slowdown(0.2, 20) < smallest_slowdown(0.2, 5) < smallest_slowdown(0.2, 3)
    assert smallest_slowdown(0.02, 5) < smallest_slowdown(0.02, 5, power=0.95)
    assert smallest_slowdown(0.02, 5) < smallest_slowdown(0.02, 5, alpha=0.001)
    assert smallest_slowdown(500.0, 2) == math.inf


def test_the_smallest_slowdown_without_a_floor_is_that_of_the_noncentral_t():
    """With many trials a side Welch's test is Student's."""
    trials, sd = 100, 0.05
    error = sd * math.sqrt(2 / trials)
    df = 2 * (trials - 1)
    found = math.log1p(smallest_slowdown(sd, trials, floor=0.0))
    assert stats.nct.sf(stats.t.ppf(0.975, df), df, found / error) == pytest.approx(0.8, abs=0.001)


@pytest.mark.parametrize(
    "wrong", [{"sd_log": -0.1}, {"sd_log": math.nan}, {"trials": 1}, {"power": 0.4}, {"power": 1.0}]
)
def test_a_smallest_slowdown_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=r"standard deviation|two trials|power"):
        smallest_slowdown(**({"sd_log": 0.1, "trials": 5} | wrong))


@pytest.mark.parametrize(("sds", "sizes"), [((0.2, 0.005), (5, 5)), ((0.02, 0.05), (10, 4))])
@pytest.mark.slow
def test_a_comparison_prints_what_its_own_trials_would_have_found(sds, sizes):
    """Trials whose sample spread is the true one: the slowdown that they print is found in four cases of five."""

    def exact(sd, n):
        logs = np.linspace(-1.0, 1.0, n)
        return np.exp(logs * sd / logs.std(ddof=1)).tolist()

    slowdown = compare(exact(sds[0], sizes[0]), exact(sds[1], sizes[1])).smallest_slowdown
    rng, runs = np.random.default_rng(9), 3000
    before = rng.lognormal(0.0, sds[0], (runs, sizes[0])).tolist()
    after = rng.lognormal(math.log1p(slowdown), sds[1], (runs, sizes[1])).tolist()
    found = [compare(a, b).verdict is Verdict.SLOWER for a, b in zip(before, after, strict=True)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.02)
