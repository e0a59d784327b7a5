"""The detector on simulated series with fixed seeds: false alarms, steps, and what only looks like
one."""

import itertools
import math

import numpy as np
import pytest

from effbench.stats.changepoints import Alternation, Change, find_all, find_exact, mark_undone
from effbench.stats.intervals import log_difference, log_mean

N = 60


def find(values, errors=None):
    return find_all([values], None if errors is None else [errors].__getitem__)[0]


def unchanged(noise=0.005, series=300, sweeps=N, seed=1):
    return np.random.default_rng(seed).normal(0.0, noise, (series, sweeps))


def stepped(step, noise, at, series=100):
    values = unchanged(noise, series, seed=2)
    values[:, at:] += math.log1p(step)
    return find_all(list(values))


def share(found, test):
    return sum(map(test, found)) / len(found)


def changed(values, **more):
    return share(find_all(list(values), **more), lambda one: one.changes != ())


@pytest.mark.slow
def test_unchanged_series_raise_no_alarm():
    cases = [(noise, N) for noise in (0.0005, 0.005, 0.03, 0.2)]
    cases += [(noise, sweeps) for noise in (0.005, 0.03) for sweeps in (6, 7, 8, 12, 20, 200)]
    for noise, sweeps in cases:
        for one in find_all(list(unchanged(noise, sweeps=sweeps))):
            assert (one.changes, one.recent, one.alternation) == ((), None, None)
            assert sweeps != N or one.drift is None
    for likeness in (0.3, 0.6):  # of neighbours
        values = unchanged(0.03 * math.sqrt(1 - likeness**2), seed=4)
        for place in range(1, N):
            values[:, place] += likeness * values[:, place - 1]
        assert changed(values) <= 0.02


@pytest.mark.parametrize("factor", [4, 10])
def test_a_machine_that_becomes_noisier_or_quieter_raises_no_alarm(factor):
    for at in (30, 45):
        values = unchanged(0.003)
        values[:, at:] *= factor
        assert changed(values) <= 0.02 and changed(values[:, ::-1]) <= 0.02
        values[:, at:] += 0.2
        places = [[change.at for change in one.changes] for one in find_all(list(values))]
        assert sum(len(some) == 1 and abs(some[0] - at) <= 1 for some in places) >= 0.95 * len(
            places
        )


@pytest.mark.parametrize("step", [0.03, 0.05, 0.1, -0.05])
@pytest.mark.parametrize("at", [3, 30, 55, 57])
def test_a_step_is_found_where_it_is(step, at):
    found = stepped(step, 0.005, at)
    assert (
        share(found, lambda one: [abs(change.at - at) <= 1 for change in one.changes] == [True])
        >= 0.98
    )


def test_its_size_and_place_lie_in_their_intervals():
    found = [one.changes[0].ratio for one in stepped(0.05, 0.005, 30, series=300) if one.changes]
    assert 0.92 <= share(found, lambda ratio: ratio.low <= 1.05 <= ratio.high) <= 0.98
    for step, noise in ((0.05, 0.03), (0.1, 0.03), (-0.1, 0.03), (0.03, 0.01)):
        found = [one.changes[0] for one in stepped(step, noise, 25) if len(one.changes) == 1]
        assert len(found) > 50 and all(one.earliest <= one.at <= one.latest for one in found)
        assert share(found, lambda one: one.earliest <= 25 <= one.latest) >= 0.95


def test_undone_and_below_the_floor():
    values = unchanged(0.0005, 100)
    values[:, 30:] += math.log1p(0.015)
    assert changed(values) == 0 and changed(values, floor=0.01) == 1
    values = unchanged()
    values[:, 20:40] += 0.1
    for one in find_all(list(values)):
        first, second = one.changes
        assert abs(first.at - 20) <= 1 and abs(second.at - 40) <= 1
        assert (first.undone_at, second.undone_at) == (second.at, None)


def test_odd_sweeps():
    values = unchanged(seed=5)
    random = np.random.default_rng(6)
    for _ in range(4):
        values[np.arange(300), random.integers(0, N - 2, 300)] += random.choice(
            [0.1, 0.5, -0.3], 300
        )
    assert changed(values) <= 0.01
    for size in (0.1, 1.0, 20.0):  # two beside each other
        values = unchanged(seed=7)
        values[:, 20:22] += size
        assert changed(values) == 0
    values = unchanged(seed=7)
    values[:, [3, 9, 20, 30]] += 0.3
    assert not any(one.changes or one.alternation for one in find_all(list(values[:, :40])))
    values = unchanged(seed=7)
    values[:, 20:23] += 0.3  # but three that agree
    assert (
        share(find_all(list(values)), lambda one: [change.at for change in one.changes] == [20, 23])
        >= 0.9
    )


def test_a_short_or_small_drift_and_one_with_outliers():
    quiet = unchanged(0.0005, 30)
    for sweeps, total, expected in (
        (9, 0.1, None),
        (10, 0.1, 0.1),
        (60, 0.03, 0.03),
        (60, 0.015, None),
    ):
        for one in find_all(list(quiet[:, :sweeps] + np.linspace(0, total, sweeps))):
            assert one.changes == ()
            assert (one.drift and math.log(one.drift)) == (
                expected and pytest.approx(expected, abs=0.002)
            )
    values = unchanged(0.003) + np.linspace(0, 0.1, N)
    values[:, [7, 22, 48]] += 0.3
    found = find_all(list(values))
    assert share(found, lambda one: not one.changes and 1.09 < (one.drift or 0) < 1.12) >= 0.98


@pytest.mark.slow
def test_drift():
    for total in (0.05, 0.1, 0.3):
        values = unchanged() + np.linspace(0, total, N)
        assert changed(values) == 0
        drifts = [math.log(one.drift or 1) for one in find_all(list(values))]
        assert np.isclose(drifts, total, rtol=0, atol=0.02).mean() >= 0.98


def test_recent_and_flapping():
    for count in (1, 2):
        values = unchanged()
        values[:, -count:] += 0.1
        found = find_all(list(values))
        assert not any(one.changes for one in found)
        assert (
            share(found, lambda one, at=N - count: one.recent is not None and one.recent.at == at)
            >= 0.98
        )
    for last, at in (
        ((0.1, -0.1), N - 1),
        ((0.015, 0.015), None),
        ((0.1, 0.015), None),
        ((0.0, 0.1), N - 1),
    ):
        values = unchanged(0.0005, 30)
        values[:, -2:] += last
        assert (
            share(find_all(list(values)), lambda one, at=at: (one.recent and one.recent.at) == at)
            >= 0.96
        )
    assert find([*unchanged()[0][:20], 0.3], [0.005] * 20 + [0.2]).recent is None, (
        "the newest one is imprecise"
    )
    for run, sweeps, flaps in ((4, 20, True), (4, 16, False), (2, 12, True), (2, 11, False)):
        for one in find_all(
            list(unchanged(0.003, 30, sweeps) + 0.1 * (np.arange(sweeps) // run % 2))
        ):
            assert (one.alternation is not None) is flaps
    for run in (1, 2, 5, 7):
        for one in find_all(list(unchanged() + 0.1 * (np.arange(N) // run % 2))):
            assert one.changes == () and len(one.alternation.switches) == (N - 1) // run
            assert one.alternation.high - one.alternation.low == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("error", [0.03, 0.08])
@pytest.mark.parametrize("sweeps", [12, 20, 40])
def test_an_error_that_all_sweeps_share_hides_no_step(error, sweeps):
    """Intervals of compiled modes assume a spread between compilations, which a series may not
    have."""
    random = np.random.default_rng(5)
    steps = np.where(np.arange(sweeps) < sweeps // 2, 0.0, 0.04) + random.normal(
        0, 0.004, (50, sweeps)
    )
    errors = error * np.sqrt(random.chisquare(4, (50, sweeps)) / 4)
    found = find_all(list(steps), errors.__getitem__)
    assert (
        share(
            found,
            lambda one: [abs(change.at - sweeps // 2) <= 1 for change in one.changes] == [True],
        )
        > 0.9
    )
    assert not any(one.drift for one in found)


def test_errors_that_differ_raise_no_alarm():
    random = np.random.default_rng(6)
    for sweeps, precise in itertools.product((8, 20, 60), (0.2, 0.5, 0.8)):
        errors = np.where(random.random((200, sweeps)) < precise, 0.005, 0.08)
        # only the later ones are imprecise
        errors[:100] = np.where(np.arange(sweeps) < precise * sweeps, 0.005, 0.05)
        found = find_all(list(random.normal(0, errors)), errors.__getitem__)
        assert share(found, lambda one: bool(one.changes or one.recent)) <= 0.005, (sweeps, precise)


def test_a_lasting_level_after_single_outliers_is_a_change():
    for count in (5, 40):
        values = unchanged(sweeps=20 + count)
        values[:, [5, 13]] += 0.1
        values[:, 20:] += 0.1
        assert (
            share(find_all(list(values)), lambda one: [change.at for change in one.changes] == [20])
            >= 0.98
        )
        fails = [place in (5, 13) or place >= 20 for place in range(20 + count)]
        assert [change.at for change in find_exact(fails).changes] == [20]


def test_a_sweep_that_is_known_to_be_poor_counts_less():
    values = np.where((np.arange(20) >= 10) & (np.arange(20) < 14), 0.05, 0.0)
    assert len(find(values, np.full(20, 0.005)).changes) == 2
    assert find(values, np.where(values > 0, 0.2, 0.005)).changes == ()
    for unknown in (math.nan, 0.0):
        assert find(values, np.full(20, unknown)) == find(values)


def test_few_equal_and_huge_values():
    for values in (
        [],
        [1.0],
        [1.0, 2.0],
        [0.0] * 5,
        [0.0] * 6,
        [*[0.0] * 4, 1.0],
        [-3.0] * 200,
        [0.0, 0.001, 1.0, 1.001, 0.999],
    ):
        found = find(values)
        assert (found.changes, found.recent, found.alternation, found.drift) == (
            (),
            None,
            None,
            None,
        )
    for values, at, ratio in (
        ([0.0, 0.001, -0.001, 1.0, 1.001, 0.999], 3, pytest.approx(math.e, rel=0.01)),
        ([0.0] * 10 + [0.05] * 10, 10, pytest.approx(math.exp(0.05))),
        ([700.0] * 5 + [-700.0] * 5, 5, 0.0),
        ([-700.0] * 5 + [700.0] * 5, 5, math.inf),
    ):
        (change,) = find(values).changes
        assert (change.at, change.ratio.value) == (at, ratio)
    (change,) = find([0.0, 0.001, -0.001, 1.0, 1.001, 0.999]).changes
    welch = log_difference(
        *(log_mean(np.exp([level, level + 0.001, level - 0.001])) for level in (1.0, 0.0))
    )
    assert (change.ratio.low, change.ratio.high) == pytest.approx(
        (welch.interval().low, welch.interval().high)
    )
    assert (
        find([*[-700.0] * 9, 700.0]).recent.ratio.value
        == find(np.linspace(-700, 700, 20)).drift
        == math.exp(709.0)
    )
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="finite"):
            find([0.0, bad, 0.0])


def test_series_of_different_lengths_do_not_disturb_each_other():
    random = np.random.default_rng(10)
    series = [
        random.normal(0, 0.01, n) + 0.1 * (np.arange(n) > n // 2)
        for n in (6, 9, 31, 60, 200, 12, 60)
    ]
    assert find_all(series) == [find(one) for one in series]


def test_exact_values():
    """(values, changes as (at, before, after, undone_at), recent, alternation); the newest value
    alone is `recent`."""
    for values, changes, recent, alternation in (
        ([], [], None, None),
        ([3] * 9, [], None, None),
        ([3, 3, 5, 5, 3, 3], [(2, 3, 5, 4), (4, 5, 3, None)], None, None),
        ([3, 3, 3, 5, 3, 3], [], None, None),
        ([3, 3, 5], [], Change(2, 3, 5), None),
        ([3, 3, 5, 3], [], None, None),
        ([3, 3, 3, 5, 5, 3, 3, 5, 5, 5], [(3, 3, 5, 5), (5, 5, 3, 7), (7, 3, 5, None)], None, None),
        (
            [3, 3, 5, 5] * 2 + [3, 3],
            [],
            None,
            Alternation(3, 5, ((False,) * 2 + (True,) * 2) * 2 + (False,) * 2),
        ),
        ([3, 5, 3, 5, 7] * 4, [], None, None),  # too many others
        ([3, 5, 3, 3, 5, 3, 3, 3], [], None, None),  # too few of one
        (([3] * 9 + [5]) * 3 + [3] * 2, [], None, None),
        ([5, 3, 3, 3], [], None, None),
        ([3, 5] * 6, [], None, Alternation(3, 5, (False, True) * 6)),
        ([True, False] * 4, [], None, Alternation(False, True, (True, False) * 4)),
        ([3, 3, 5, 5, 7, 7], [(2, 3, 5, None), (4, 5, 7, None)], None, None),
    ):
        found = find_exact(values)
        assert [
            (one.at, one.before, one.after, one.undone_at) for one in found.changes
        ] == changes, values
        assert (found.recent, found.alternation) == (recent, alternation), values


def test_a_change_may_undo_several():
    levels = [0.0, 0.03, 1.0, 0.015]
    changes = [Change(at, *pair) for at, pair in enumerate(itertools.pairwise(levels), 1)]
    found = mark_undone(changes, math.log1p(0.02))
    assert [one.undone_at for one in found] == [3, 3, None]
