"""The stopping rule must keep the coverage of intervals, simulated with fixed seeds."""

import math

import numpy as np
import pytest

from effbench.stats.intervals import FIRST_LOOK, LEAST_TRIALS, enough, log_mean, t_quantile

pytestmark = pytest.mark.slow

ROUNDS = 10
#: Student's quantile after 1, 2, ... rounds (after one there is none)
T_OF = np.array([math.nan, *(t_quantile(n - 1) for n in range(2, ROUNDS + 1))])


def protocol(logs, target, first_look=FIRST_LOOK):
    """Rounds, mean and standard error at the end of every row of `logs`: `enough` for many cells at
    once."""
    n = np.arange(1, ROUNDS + 1)
    mean = logs.cumsum(axis=1) / n
    variance = ((logs**2).cumsum(axis=1) - n * mean**2) / np.maximum(n - 1, 1)
    error = np.sqrt(variance / n)
    allowed = np.where(n == LEAST_TRIALS, first_look, 1.0) * target
    stops = (T_OF * error <= np.log1p(allowed)) & (n >= LEAST_TRIALS)
    stops[:, -1] = True
    rounds = stops.argmax(axis=1) + 1
    row = np.arange(len(logs))
    return rounds, mean[row, rounds - 1], error[row, rounds - 1]


def coverage(rounds, mean, error):
    return (np.abs(mean) <= T_OF[rounds - 1] * error).mean()


def test_the_simulated_protocol_is_that_of_enough():
    logs = np.random.default_rng(1).normal(0.0, 0.01, (300, ROUNDS))
    for row, simulated in zip(np.exp(logs).tolist(), protocol(logs, 0.01)[0], strict=True):
        assert (
            next((n for n in range(1, ROUNDS) if enough(log_mean(row[:n]), n, 0.01)), ROUNDS)
            == simulated
        )


def test_a_cell_stopped_early_is_covered():
    shares = []
    for ratio in (0.1, 0.5, 1.0, 1.6, 2.0, 5.0):  # SD between processes ÷ target
        logs = np.random.default_rng(3).normal(0.0, ratio * 0.01, (100_000, ROUNDS))
        shares.append(
            [coverage(*protocol(logs, 0.01, first_look)) for first_look in (FIRST_LOOK, 1.0)]
        )
    strict, plain = (min(column) for column in zip(*shares, strict=True))
    assert strict >= 0.9315 > plain, "what the stricter first look is for"
