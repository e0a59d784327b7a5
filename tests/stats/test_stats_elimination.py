"""Successive elimination on made-up times."""

import math
import random

import pytest

from effbench.stats.elimination import PROCESS_SD, race
from effbench.stats.significance import ALPHA


def times(ratios, sd, draw, rounds=3):
    """Log-normal times of a candidate per ratio to the first one."""
    return {name: [ratio * math.exp(draw.gauss(0, sd)) for _ in range(rounds)] for name, ratio in enumerate(ratios)}


def state_of(measured, variation=None, rounds=3):
    return race(measured, variation or dict.fromkeys(measured, 0.0), len(measured), rounds)


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


def test_ends_with_one_left_or_a_tie_and_goes_on_if_unsure():
    assert not state_of({"a": [1.0], "b": [2.0]}).is_over
    assert state_of({"a": [1.0, 1.2], "b": [2.0]}).is_over
    tie = state_of({"a": [1.0, 1.001], "b": [1.001, 1.0], "c": [3.0]})
    assert tie.is_over and tie.eliminated == {"c": 1}
    assert not state_of({"a": [1.0, 1.1], "b": [1.1, 1.0]}).is_over
    assert not state_of({"a": [1.0], "b": [1.0]}).is_over
    noisy = state_of({"a": [1.0, 1.0], "b": [None, None], "c": [None, 2.0]})
    assert noisy.eliminated == {"c": 2} and not noisy.is_over


def test_a_round_is_judged_once_all_that_are_left_have_ended_it():
    assert not state_of({"a": [1.0, 1.0, 1.0], "b": [2.0], "c": []}).eliminated
    early = state_of({"a": [1.0], "b": [1.0], "c": [2.0]}).eliminated
    assert early == state_of({"a": [1.0, 9.0], "b": [1.0], "c": [2.0]}).eliminated == {"c": 1}


def test_another_compilation_might_change_the_order():
    measured = {"eager": [1.0, 1.0], "tuned": [1.25, 1.25]}
    assert state_of(measured).eliminated
    assert not state_of(measured, {"eager": 0.0, "tuned": 0.08}).eliminated
