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


def outcomes(number, sd, far=FAR, races=1000):
    """Fractions of races among candidates that differ by 0 to 50 %: the best one was eliminated; it
    is over with one that is slower by more than CLOSE; it is over. And the rounds per candidate, of
    3."""
    draw, seen = random.Random(number), []
    for _ in range(races):
        ratios = [1.0, *(draw.uniform(1.0, 1.5) for _ in range(number - 1))]
        measured = times(ratios, sd, draw)
        state = state_of(measured, far=far)
        begun = ({name: its[:ran] for name, its in measured.items()} for ran in (1, 2))
        ran = next((ran for ran, its in enumerate(begun, 1) if state_of(its, far=far).is_over), 3)
        rounds = sum(state.eliminated.get(name, ran) for name in measured) / number
        seen.append(
            (
                0 in state.eliminated,
                state.is_over and ratios[state.leader] > CLOSE,
                state.is_over,
                rounds,
            )
        )
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


@pytest.mark.parametrize("sd", [0.02, 0.05, 0.07])
@pytest.mark.parametrize("number", [4, 6])
def test_a_race_is_short_and_seldom_over_with_a_mode_that_is_clearly_slower(number, sd):
    lost, wrong, over, rounds = outcomes(number, sd)
    assert max(lost, wrong) <= ALPHA
    assert over > 0.4 and rounds < 2.1, "no error is possible without a decision"


@pytest.mark.parametrize("number", [4, 6])
def test_the_spread_of_a_host_that_is_not_watched_requires_a_larger_distance(number):
    (lost, wrong, *_), (near_lost, near_wrong, *_) = (
        outcomes(number, 0.2, UNWATCHED_FAR),
        outcomes(number, 0.2),
    )
    assert near_lost > 3 * ALPHA and near_wrong > 1.5 * ALPHA
    assert lost < near_lost / 2 and wrong < 1.5 * ALPHA


def test_ends_with_one_left_or_a_tie_or_if_little_can_be_gained():
    assert state_of({"a": [1.0], "b": [2.0]}).is_over
    assert (
        state_of({"a": [1.0], "b": [1.2]}).is_over
        and not state_of({"a": [1.0], "b": [1.2]}, far=1.25).is_over
    )
    tie = state_of({"a": [1.0, 1.001], "b": [1.001, 1.0], "c": [3.0]})
    assert tie.is_over and tie.is_tie and tie.eliminated == {"c": 1}
    near = state_of({"a": [1.0, 1.01], "b": [1.04, 1.06]})
    assert near.is_over and not near.is_tie and not near.eliminated and 0 < near.risk <= ALPHA
    assert not state_of({"a": [1.0, 1.1], "b": [1.1, 1.0]}).is_over
    assert not state_of({"a": [1.0], "b": [1.0]}).is_over
    noisy = state_of({"a": [1.0, 1.0], "b": [None, None], "c": [None, 2.0]})
    assert noisy.eliminated == {"c": 2} and not noisy.is_over


def test_a_round_is_judged_once_all_that_are_left_have_ended_it():
    assert not state_of({"a": [1.0, 1.0, 1.0], "b": [2.0], "c": []}).eliminated
    early = state_of({"a": [1.0], "b": [1.0], "c": [2.0]}).eliminated
    assert early == state_of({"a": [1.0, 9.0], "b": [1.0], "c": [2.0]}).eliminated == {"c": 1}


def test_the_spread_of_one_candidate_is_expected_of_all():
    measured = {"a": [1.0, 1.0], "b": [1.12, 1.12]}
    assert state_of(measured | {"c": [1.0, 1.0]}).eliminated == {"b": 2}
    assert not state_of(measured | {"c": [1.0, 1.12]}).eliminated


def test_a_large_spread_counts_in_full_and_a_small_one_not():
    loud, some, quiet = (
        moderated({"a": [1.0, math.exp(gap)]}, {"a": 0.0})["a"] for gap in (1.0, 0.02, 0.0)
    )
    assert loud.error == pytest.approx(0.5)
    assert some.error == pytest.approx(math.sqrt((3 * PROCESS_SD**2 + 0.0002) / 4 / 2))
    assert moderated({"a": [1.0]}, {"a": 0.08})["a"].error == pytest.approx(
        math.hypot(PROCESS_SD, 0.08)
    )
    assert (
        quiet.error == pytest.approx(PROCESS_SD * math.sqrt(3 / 4 / 2)) and quiet.df == loud.df == 4
    )


def test_another_compilation_might_change_the_order():
    measured = {"eager": [1.0, 1.0], "tuned": [1.25, 1.25]}
    assert state_of(measured).eliminated
    assert not state_of(measured, {"eager": 0.0, "tuned": 0.08}).eliminated
