"""Successive elimination on made-up times."""

import math
import random

import pytest

from effbench.stats.elimination import CLOSE, FAR, PROCESS_SD, UNWATCHED_FAR, moderated, race
from effbench.stats.significance import ALPHA


def times(ratios, sd, draw, rounds=3):
    """Log-normal times of a candidate per ratio to the first one."""
    return {
        name: [ratio * math.exp(draw.gauss(0, sd)) for _ in range(rounds)]
        for name, ratio in enumerate(ratios)
    }


def state_of(measured, variation=None, rounds=3, far=FAR):
    return race(measured, variation or dict.fromkeys(measured, 0.0), len(measured), rounds, far)


def outcomes(number, sd, far=FAR, races=500):
    """Fractions of races among candidates that differ by 0 to 50 %: the best one was eliminated; it
    is over with one that is slower by more than CLOSE; it is over."""
    draw, seen = random.Random(number), []
    for _ in range(races):
        ratios = [1.0, *(draw.uniform(1.0, 1.5) for _ in range(number - 1))]
        state = state_of(times(ratios, sd, draw), far=far)
        is_wrong = state.is_over and ratios[state.leader] > CLOSE
        seen.append((0 in state.eliminated, is_wrong, state.is_over))
    return [sum(column) / races for column in zip(*seen, strict=True)]


@pytest.mark.parametrize("sd", [0.005, PROCESS_SD])
@pytest.mark.parametrize("number", [2, 6])
def test_the_best_of_several_that_are_equal_is_seldom_eliminated(sd, number):
    draw = random.Random(number)
    lost = sum(0 in state_of(times([1.0] * number, sd, draw)).eliminated for _ in range(400))
    assert lost <= 400 * ALPHA


@pytest.mark.parametrize(("ratio", "ended"), [(2.0, {1}), (1.5, {1, 2}), (1.2, {1, 2, 3})])
def test_clearly_slower_ones_are_eliminated_early(ratio, ended):
    draw = random.Random(1)
    for _ in range(50):
        state = state_of(times([1.0, ratio, ratio, 1.0], 0.01, draw))
        assert {1, 2} <= state.eliminated.keys() and set(state.eliminated.values()) <= ended


@pytest.mark.parametrize("sd", [0.02, 0.07])
def test_a_race_is_seldom_over_with_a_mode_that_is_clearly_slower(sd):
    lost, wrong, over = outcomes(6, sd)
    assert max(lost, wrong) <= ALPHA
    assert over > 0.4, "no error is possible without a decision"


def test_the_spread_of_a_host_that_is_not_watched_requires_a_larger_distance():
    lost, wrong, _ = outcomes(6, 0.2, UNWATCHED_FAR)
    near_lost, near_wrong, _ = outcomes(6, 0.2)
    assert near_lost > 3 * ALPHA and near_wrong > 1.5 * ALPHA
    assert lost < near_lost / 2 and wrong < 1.5 * ALPHA


@pytest.mark.parametrize(
    ("measured", "is_over"),
    [
        ({"a": [1.0], "b": [2.0]}, True),
        ({"a": [1.0], "b": [1.2]}, True),
        ({"a": [1.0, 1.1], "b": [1.1, 1.0]}, False),
        ({"a": [1.0], "b": [1.0]}, False),
    ],
)
def test_when_a_race_is_over(measured, is_over):
    assert state_of(measured).is_over is is_over


def test_a_tie():
    state = state_of({"a": [1.0, 1.001], "b": [1.001, 1.0], "c": [3.0]})
    assert state.is_over and state.is_tie and state.eliminated == {"c": 1}


def test_a_race_ends_if_little_can_be_gained():
    state = state_of({"a": [1.0, 1.01], "b": [1.04, 1.06]})
    assert state.is_over and not state.is_tie and not state.eliminated and 0 < state.risk <= ALPHA


def test_figures_that_do_not_count():
    state = state_of({"a": [1.0, 1.0], "b": [None, None], "c": [None, 2.0]})
    assert state.eliminated == {"c": 2} and not state.is_over


def test_a_round_is_judged_once_all_that_are_left_have_ended_it():
    assert not state_of({"a": [1.0, 1.0, 1.0], "b": [2.0], "c": []}).eliminated
    early = state_of({"a": [1.0], "b": [1.0], "c": [2.0]}).eliminated
    assert early == state_of({"a": [1.0, 9.0], "b": [1.0], "c": [2.0]}).eliminated == {"c": 1}


def test_the_spread_of_one_candidate_is_expected_of_all():
    measured = {"a": [1.0, 1.0], "b": [1.12, 1.12]}
    assert state_of(measured | {"c": [1.0, 1.0]}).eliminated == {"b": 2}
    assert not state_of(measured | {"c": [1.0, 1.12]}).eliminated


@pytest.mark.parametrize(
    ("gap", "error"),
    [
        (1.0, 0.5),  # a large spread counts in full, and a small one not
        (0.02, math.sqrt((3 * PROCESS_SD**2 + 0.0002) / 4 / 2)),
        (0.0, PROCESS_SD * math.sqrt(3 / 4 / 2)),
    ],
)
def test_a_moderated_spread(gap, error):
    found = moderated({"a": [1.0, math.exp(gap)]}, {"a": 0.0})["a"]
    assert (found.error, found.df) == (pytest.approx(error), 4)


def test_another_compilation_might_change_the_order():
    measured = {"eager": [1.0, 1.0], "tuned": [1.25, 1.25]}
    assert state_of(measured).eliminated
    assert not state_of(measured, {"eager": 0.0, "tuned": 0.08}).eliminated
