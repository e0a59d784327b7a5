import math

import pytest

from effbench.analysis.fence import LEAST_SWEEPS, WIDEST, noise_fence


def test_few_sweeps_say_nothing():
    assert noise_fence([1.0, 2.0] * (LEAST_SWEEPS // 2) + [None, math.inf, math.nan, 0.0, -1.0, "1.0"]) > 0
    assert noise_fence(([1.0, 2.0] * LEAST_SWEEPS)[: LEAST_SWEEPS - 1]) == 0
    assert noise_fence([]) == noise_fence() == 0
    # every further environment takes one sweep more: what is counted are differences
    assert noise_fence([1.0, 2.0, 1.0], [1.0, 2.0, 1.0]) == 0
    assert noise_fence([1.0, 2.0, 1.0], [1.0, 2.0, 1.0, 2.0]) > 0
    assert noise_fence(*([level] for level in (1.0, 2.0) * LEAST_SWEEPS)) == 0


def test_two_environments_that_differ_are_no_noise():
    quiet = [1.0, 1.001] * 3
    assert noise_fence(quiet, [2 * level for level in quiet]) == pytest.approx(noise_fence(quiet), rel=1e-6)
    assert noise_fence(quiet, [1.0, 1.1] * 20) == pytest.approx(noise_fence([1.0, 1.1] * 5))  # the median of them all


def test_levels_that_never_move_leave_the_floor_alone():
    assert noise_fence([3.0] * 10) == 0


def test_alternating_levels():
    # every neighbour differs by 1 %: spread 1 % ÷ 0.6745, three of them
    fence = noise_fence([1.0, 1.01] * 5)
    assert fence == pytest.approx(math.expm1(3 * math.log(1.01) / 0.6745))


def test_one_step_among_many_sweeps_is_no_noise():
    quiet = [1.0, 1.001] * 5
    assert noise_fence([*quiet, *(2 * level for level in quiet)]) == pytest.approx(noise_fence(quiet), rel=1e-6)


def test_a_series_of_noise_alone_does_not_hide_everything():
    assert noise_fence([1.0, 9.0] * 5) == WIDEST
