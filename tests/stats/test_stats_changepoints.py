"""The detector on simulated series with fixed seeds: false alarms, steps, and what only looks like
one."""

import itertools
import math

import numpy as np
import pytest

from effbench.stats.changepoints import (
    Findings,
    LevelChange,
    find_all,
    find_exact,
    mark_undone,
)
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


def positions(findings):
    return [change.at for change in findings.changes]


def changed(values, **more):
    return share(find_all(list(values), **more), lambda one: one.changes != ())


def is_near(at):
    """Whether the only change is at this position or next to it."""
    return lambda findings: [abs(change.at - at) <= 1 for change in findings.changes] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "sweeps"),
    [
        *((noise, N) for noise in (0.0005, 0.005, 0.03, 0.2)),
        *itertools.product((0.005, 0.03), (6, 7, 8, 12, 20, 200)),
    ],
)
def test_unchanged_series_raise_no_alarm(noise, sweeps):
    assert set(find_all(list(unchanged(noise, sweeps=sweeps)))) == {Findings()}


@pytest.mark.slow
@pytest.mark.parametrize("likeness", [0.3, 0.6])
def test_neighbours_that_are_alike_raise_no_alarm(likeness):
    values = unchanged(0.03 * math.sqrt(1 - likeness**2), seed=4)
    for place in range(1, N):
        values[:, place] += likeness * values[:, place - 1]
    assert changed(values) <= 0.02


@pytest.mark.parametrize("factor", [4, 10])
@pytest.mark.parametrize("at", [30, 45])
def test_a_machine_that_becomes_noisier_or_quieter_raises_no_alarm(factor, at):
    values = unchanged(0.003)
    values[:, at:] *= factor
    assert changed(values) <= 0.02 and changed(values[:, ::-1]) <= 0.02
    values[:, at:] += 0.2
    assert share(find_all(list(values)), is_near(at)) >= 0.95


@pytest.mark.parametrize("step", [0.03, 0.05, 0.1, -0.05])
@pytest.mark.parametrize("at", [3, 30, 55, 57])
def test_a_step_is_found_where_it_is(step, at):
    assert share(stepped(step, 0.005, at), is_near(at)) >= 0.98


def test_its_size_lies_in_its_interval():
    ratios = [one.changes[0].ratio for one in stepped(0.05, 0.005, 30, series=300) if one.changes]
    assert 0.92 <= share(ratios, lambda ratio: ratio.low <= 1.05 <= ratio.high) <= 0.98


@pytest.mark.parametrize(("step", "noise"), [(0.05, 0.03), (0.1, 0.03), (-0.1, 0.03), (0.03, 0.01)])
def test_its_place_lies_in_its_range(step, noise):
    found = [one.changes[0] for one in stepped(step, noise, 25) if len(one.changes) == 1]
    assert len(found) > 50 and all(one.earliest <= one.at <= one.latest for one in found)
    assert share(found, lambda one: one.earliest <= 25 <= one.latest) >= 0.95


def test_the_floor():
    values = unchanged(0.0005, 100)
    values[:, 30:] += math.log1p(0.015)
    assert changed(values) == 0 and changed(values, floor=0.01) == 1


def test_undone():
    values = unchanged()
    values[:, 20:40] += 0.1
    for findings in find_all(list(values)):
        first, second = findings.changes
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


@pytest.mark.parametrize("size", [0.1, 1.0, 20.0])
def test_two_odd_sweeps_beside_each_other(size):
    values = unchanged(seed=7)
    values[:, 20:22] += size
    assert changed(values) == 0


def test_four_odd_sweeps_of_one_level_are_no_change_and_three_in_a_row_are():
    values = unchanged(seed=7)
    values[:, [3, 9, 20, 30]] += 0.3
    assert changed(values[:, :40]) == 0
    values = unchanged(seed=7)
    values[:, 20:23] += 0.3
    assert share(find_all(list(values)), lambda one: positions(one) == [20, 23]) >= 0.9


@pytest.mark.parametrize("total", [0.03, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("noise", [0.0005, 0.005])
def test_a_slide_is_no_change(total, noise):
    assert changed(unchanged(noise, 100) + np.linspace(0, total, N)) == 0


def test_outliers_do_not_make_a_slide_a_change():
    values = unchanged(0.003) + np.linspace(0, 0.1, N)
    values[:, [7, 22, 48]] += 0.3
    assert changed(values) <= 0.02


@pytest.mark.parametrize("count", [1, 2])
def test_the_newest_values_are_unconfirmed(count):
    values = unchanged()
    values[:, -count:] += 0.1
    found = find_all(list(values))
    assert not any(map(positions, found))
    assert share(found, lambda one: one.recent is not None and one.recent.at == N - count) >= 0.98


@pytest.mark.parametrize(
    ("last", "at"),
    [
        ((0.1, -0.1), N - 1),
        ((0.015, 0.015), None),
        ((0.1, 0.015), None),
        ((0.0, 0.1), N - 1),
    ],
)
def test_which_of_the_newest_values_are_unconfirmed(last, at):
    values = unchanged(0.0005, 30)
    values[:, -2:] += last
    found = find_all(list(values))
    assert share(found, lambda one: (one.recent and one.recent.at) == at) >= 0.96


def test_an_imprecise_newest_value_is_no_change():
    assert find([*unchanged()[0][:20], 0.3], [0.005] * 20 + [0.2]).recent is None


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
    assert share(find_all(list(steps), errors.__getitem__), is_near(sweeps // 2)) > 0.9


@pytest.mark.parametrize("sweeps", [8, 20, 60])
def test_errors_that_differ_raise_no_alarm(sweeps):
    random = np.random.default_rng(6)
    for precise in (0.2, 0.5, 0.8):
        errors = np.where(random.random((200, sweeps)) < precise, 0.005, 0.08)
        # only the later ones are imprecise
        errors[:100] = np.where(np.arange(sweeps) < precise * sweeps, 0.005, 0.05)
        found = find_all(list(random.normal(0, errors)), errors.__getitem__)
        assert share(found, lambda one: one != Findings()) <= 0.005, precise


@pytest.mark.parametrize("count", [5, 40])
def test_a_lasting_level_after_single_outliers_is_a_change(count):
    values = unchanged(sweeps=20 + count)
    values[:, [5, 13]] += 0.1
    values[:, 20:] += 0.1
    assert share(find_all(list(values)), lambda one: positions(one) == [20]) >= 0.98
    fails = [place in (5, 13) or place >= 20 for place in range(20 + count)]
    assert positions(find_exact(fails)) == [20]


def test_a_sweep_that_is_known_to_be_poor_counts_less():
    values = np.where((np.arange(20) >= 10) & (np.arange(20) < 14), 0.05, 0.0)
    assert len(find(values, np.full(20, 0.005)).changes) == 2
    assert find(values, np.where(values > 0, 0.2, 0.005)).changes == ()
    for unknown in (math.nan, 0.0):
        assert find(values, np.full(20, unknown)) == find(values)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [1.0, 2.0],
        [0.0] * 5,
        [0.0] * 6,
        [*[0.0] * 4, 1.0],
        [-3.0] * 200,
        [0.0, 0.001, 1.0, 1.001, 0.999],
    ],
)
def test_few_and_equal_values(values):
    assert find(values) == Findings()


@pytest.mark.parametrize(
    ("values", "at", "ratio"),
    [
        ([0.0, 0.001, -0.001, 1.0, 1.001, 0.999], 3, pytest.approx(math.e, rel=0.01)),
        ([0.0] * 10 + [0.05] * 10, 10, pytest.approx(math.exp(0.05))),
        ([700.0] * 5 + [-700.0] * 5, 5, 0.0),
        ([-700.0] * 5 + [700.0] * 5, 5, math.inf),
    ],
)
def test_short_and_huge_steps(values, at, ratio):
    (change,) = find(values).changes
    assert (change.at, change.ratio.value) == (at, ratio)


def test_the_interval_is_welchs():
    (change,) = find([0.0, 0.001, -0.001, 1.0, 1.001, 0.999]).changes
    welch = log_difference(
        *(log_mean(np.exp([level, level + 0.001, level - 0.001])) for level in (1.0, 0.0))
    )
    assert (change.ratio.low, change.ratio.high) == pytest.approx(
        (welch.interval().low, welch.interval().high)
    )


def test_a_huge_newest_value():
    assert find([*[-700.0] * 9, 700.0]).recent.ratio.value == math.exp(709.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        find([0.0, bad, 0.0])


def test_series_of_different_lengths_do_not_disturb_each_other():
    random = np.random.default_rng(10)
    series = [
        random.normal(0, 0.01, n) + 0.1 * (np.arange(n) > n // 2)
        for n in (6, 9, 31, 60, 200, 12, 60)
    ]
    assert find_all(series) == [find(one) for one in series]


@pytest.mark.parametrize(
    ("values", "changes", "recent"),
    [
        ([], [], None),
        ([3] * 9, [], None),
        ([3, 3, 5, 5, 3, 3], [(2, 3, 5, 4), (4, 5, 3, None)], None),
        ([3, 3, 3, 5, 3, 3], [], None),
        ([3, 3, 5], [], (2, 3, 5)),
        ([3, 3, 5, 3], [], None),
        ([3, 3, 3, 5, 5, 3, 3, 5, 5, 5], [(3, 3, 5, 5), (5, 5, 3, 7), (7, 3, 5, None)], None),
        ([3, 5] * 6, [], None),
        ([5, 3, 3, 3], [], None),
        ([3, 3, 5, 5, 7, 7], [(2, 3, 5, None), (4, 5, 7, None)], None),
    ],
)
def test_exact_values(values, changes, recent):
    """Changes are (at, before, after, undone_at); the newest value alone is `recent`."""
    found = find_exact(values)
    assert [(one.at, one.before, one.after, one.undone_at) for one in found.changes] == changes
    assert found.recent == (recent and LevelChange(*recent, is_confirmed=False))


def test_a_change_may_undo_several():
    levels = [0.0, 0.03, 1.0, 0.015]
    changes = [LevelChange(at, *pair) for at, pair in enumerate(itertools.pairwise(levels), 1)]
    found = mark_undone(changes, math.log1p(0.02))
    assert [one.undone_at for one in found] == [3, 3, None]
