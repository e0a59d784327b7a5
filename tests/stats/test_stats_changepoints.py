"""The detector on simulated series with fixed seeds: false alarms, steps, and what only looks like one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from effbench.stats.changepoints import Alternation, Change, find_all, find_exact

N = 60


def find(values, errors=None):
    return find_all([values], None if errors is None else [errors])[0]


def unchanged(noise, series=300, sweeps=N, seed=1):
    return np.random.default_rng(seed).normal(0.0, noise, (series, sweeps))


def stepped(step, noise, at, series=100, sweeps=N, seed=2):
    values = unchanged(noise, series, sweeps, seed)
    values[:, at:] += math.log1p(step)
    return values


def share(found, test):
    return sum(map(test, found)) / len(found)


def changed(found):
    return share(found, lambda one: bool(one.changes))


class TestUnchanged:
    @pytest.mark.parametrize(
        "noise, sweeps",
        [(noise, N) for noise in (0.0005, 0.005, 0.03, 0.2)]
        + [(noise, sweeps) for noise in (0.005, 0.03) for sweeps in (6, 7, 8, 12, 20, 200)],
    )
    @pytest.mark.slow
    def test_no_false_alarm(self, noise, sweeps):
        for one in find_all(list(unchanged(noise, sweeps=sweeps))):
            assert (one.changes, one.recent, one.alternation) == ((), None, None)
            assert sweeps != N or one.drift is None

    @pytest.mark.parametrize("likeness", [0.3, 0.6])
    @pytest.mark.slow
    def test_neighbours_that_are_alike(self, likeness):
        noise = unchanged(0.03 * math.sqrt(1 - likeness**2), seed=4)
        for place in range(1, N):
            noise[:, place] += likeness * noise[:, place - 1]
        assert changed(find_all(list(noise))) <= 0.02


class TestSteps:
    @pytest.mark.parametrize("step", [0.03, 0.05, 0.1, -0.05])
    @pytest.mark.parametrize("at", [3, 30, 55, 57])
    def test_found_where_it_is(self, step, at):
        found = find_all(list(stepped(step, 0.005, at)))
        assert share(found, lambda one: [abs(change.at - at) <= 1 for change in one.changes] == [True]) >= 0.98

    def test_its_size_lies_in_its_interval(self):
        found = [one.changes[0].ratio for one in find_all(list(stepped(0.05, 0.005, 30, series=300))) if one.changes]
        assert 0.92 <= sum(ratio.low <= 1.05 <= ratio.high for ratio in found) / len(found) <= 0.98

    def test_below_the_floor_is_none(self):
        assert changed(find_all(list(stepped(0.015, 0.0005, 30)))) == 0
        assert changed(find_all(list(stepped(0.015, 0.0005, 30)), floor=0.01)) == 1

    def test_undone(self):
        values = unchanged(0.005)
        values[:, 20:40] += 0.1
        for one in find_all(list(values)):
            first, second = one.changes
            assert abs(first.at - 20) <= 1 and abs(second.at - 40) <= 1
            assert first.undone_at == second.at and second.undoes == first.at
            assert first.undoes is None and second.undone_at is None

    def test_short_series(self):
        assert find([0.0, 0.001, -0.001, 1.0, 1.001, 0.999]).changes[0].at == 3
        assert find([0.0, 0.001, 1.0, 1.001, 0.999]).changes == ()


class TestWhatIsNone:
    def test_odd_sweeps(self):
        values = unchanged(0.005, seed=5)
        random = np.random.default_rng(6)
        for _ in range(4):
            values[np.arange(300), random.integers(0, N - 2, 300)] += random.choice([0.1, 0.5, -0.3], 300)
        found = find_all(list(values))
        assert changed(found) <= 0.01

    def test_two_odd_sweeps_beside_each_other_and_three_that_agree(self):
        for size in (0.1, 1.0, 20.0):
            values = unchanged(0.005, seed=7)
            values[:, 20:22] += size
            assert changed(find_all(list(values))) == 0
        values = unchanged(0.005, seed=7)
        values[:, 20:23] += 0.3
        assert share(find_all(list(values)), lambda one: [change.at for change in one.changes] == [20, 23]) >= 0.9

    @pytest.mark.parametrize("total", [0.05, 0.1, 0.3])
    @pytest.mark.slow
    def test_drift(self, total):
        found = find_all(list(unchanged(0.005) + np.linspace(0, total, N)))
        assert changed(found) == 0
        assert share(found, lambda one: one.drift is not None and abs(math.log(one.drift) - total) < 0.02) >= 0.98

    def test_recent(self):
        for count in (1, 2):
            values = unchanged(0.005)
            values[:, -count:] += 0.1
            found = find_all(list(values))
            assert changed(found) == 0
            assert share(found, lambda one, count=count: one.recent is not None and one.recent.at == N - count) >= 0.98

    @pytest.mark.parametrize("run", [1, 2, 5, 7])
    def test_flapping(self, run):
        values = unchanged(0.005) + 0.1 * (np.arange(N) // run % 2)
        for one in find_all(list(values)):
            assert one.changes == ()
            assert len(one.alternation.switches) == (N - 1) // run
            assert one.alternation.high - one.alternation.low == pytest.approx(0.1, abs=0.01)


class TestErrors:
    def test_a_sweep_that_is_known_to_be_poor_counts_less(self):
        values, errors = np.zeros(20), np.full(20, 0.005)
        values[10:14] += 0.05
        assert len(find(values, errors).changes) == 2
        errors[10:14] = 0.2
        assert find(values, errors).changes == ()


class TestAnyInput:
    @pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 5, [0.0] * 6, [-3.0] * 200])
    def test_nothing_to_find(self, values):
        found = find(values)
        assert (found.changes, found.recent, found.alternation, found.drift) == ((), None, None, None)

    def test_zero_variance(self):
        (change,) = find([0.0] * 10 + [0.05] * 10).changes
        assert change.at == 10
        assert change.ratio.low == change.ratio.value == change.ratio.high == pytest.approx(math.exp(0.05))

    def test_huge_steps(self):
        (change,) = find([700.0] * 5 + [-700.0] * 5).changes
        assert change.at == 5 and change.ratio.value == 0.0
        (change,) = find([-700.0] * 5 + [700.0] * 5).changes
        assert change.ratio.value == math.inf

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_what_was_not_measured_must_be_left_out(self, bad):
        with pytest.raises(ValueError, match="finite"):
            find([0.0, bad, 0.0])

    def test_together_or_alone(self):
        """Series of different lengths do not disturb each other."""
        random = np.random.default_rng(10)
        series = [random.normal(0, 0.01, n) + 0.1 * (np.arange(n) > n // 2) for n in (6, 9, 31, 60, 200, 12, 60)]
        assert find_all(series) == [find(one) for one in series]


class TestWhereabouts:
    """The range in which a change is said to lie."""

    @pytest.mark.parametrize("step, noise", [(0.05, 0.03), (0.1, 0.03), (-0.1, 0.03), (0.03, 0.01)])
    def test_it_holds_the_truth_in_95_of_100(self, step, noise):
        at = 25
        found = [one.changes[0] for one in find_all(list(stepped(step, noise, at))) if len(one.changes) == 1]
        assert len(found) > 50
        assert all(one.earliest <= one.at <= one.latest for one in found)
        assert share(found, lambda one: one.earliest <= at <= one.latest) >= 0.95


def test_exact_values():
    """(values, changes as (at, before, after, undone_at), recent, alternation); the newest value alone is `recent`."""
    for values, changes, recent, alternation in (
        ([], [], None, None),
        ([3], [], None, None),
        ([3] * 9, [], None, None),
        ([3, 3, 5, 5], [(2, 3, 5, None)], None, None),
        ([3, 3, 5, 5, 3, 3], [(2, 3, 5, 4), (4, 5, 3, None)], None, None),
        ([3, 3, 3, 5, 3, 3], [], None, None),
        ([3, 3, 5], [], Change(2, 3, 5), None),
        ([5, 3, 3, 3], [], None, None),
        ([3, 5] * 6, [], None, Alternation(3, 5, (False, True) * 6)),
        ([True, False] * 4, [], None, Alternation(False, True, (True, False) * 4)),
        ([3, 3, 5, 5, 7, 7], [(2, 3, 5, None), (4, 5, 7, None)], None, None),
    ):
        found = find_exact(values)
        assert [(one.at, one.before, one.after, one.undone_at) for one in found.changes] == changes, values
        assert (found.recent, found.alternation) == (recent, alternation), values
