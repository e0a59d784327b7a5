"""Intervals must cover what they promise: simulated sweeps with the noise that benchmarks have, seeded.

Every process has a level of its own (log-normal); its calls scatter around it, skewed, and some take 2 to 10 times as
long. A trial gives the median of its calls. The truth is the expected logarithm of such a median.
"""

import math

import numpy as np
import pytest
from scipy.special import betaincinv, ndtr, stdtrit

from effbench.stats.intervals import (
    FIRST_LOOK,
    Outcome,
    enough,
    geometric_mean,
    mode_score,
    speedup,
    t_quantile,
)

pytestmark = pytest.mark.slow

RUNS = 10_000
CALLS = 101
CALL_SD = 0.02
SPIKES, SPIKE_LOW, SPIKE_HIGH = 0.05, math.log(2), math.log(10)
SPREADS = (0.001, 0.005, 0.05, 0.2)
NOMINAL = (0.93, 0.97)


def _call_cdf(x):
    """P(log of a call ÷ its process's level <= x)."""

    def primitive(z):
        return z * ndtr(z) + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    spiked = (primitive((x - SPIKE_LOW) / CALL_SD) - primitive((x - SPIKE_HIGH) / CALL_SD)) * CALL_SD
    return (1 - SPIKES) * ndtr(x / CALL_SD) + SPIKES * spiked / (SPIKE_HIGH - SPIKE_LOW)


_GRID = np.concatenate([np.linspace(-8 * CALL_SD, 8 * CALL_SD, 4001), np.linspace(0.2, SPIKE_HIGH + 0.2, 2000)])
_CDF = _call_cdf(_GRID)
_HALF = (CALLS + 1) / 2
#: Expected log of a median of calls ÷ its process's level: spikes pull it up.
MEDIAN_SHIFT = np.interp(betaincinv(_HALF, _HALF, (np.arange(20_000) + 0.5) / 20_000), _CDF, _GRID).mean()


def log_medians(rng, spread, shape):
    """Logs of the medians of such calls, less the truth, without drawing the calls.

    The median of an odd number of calls is the quantile of one call's distribution at a beta-distributed place.
    """
    shift = np.interp(rng.beta(_HALF, _HALF, shape), _CDF, _GRID)
    return rng.normal(0.0, spread, shape) + shift - MEDIAN_SHIFT


def medians(rng, spread, trials, runs=RUNS):
    return np.exp(log_medians(rng, spread, (runs, trials))).tolist()


def covered(intervals):
    """Share of the intervals that hold 1."""
    return np.mean([found.low <= 1.0 <= found.high for found in intervals])


def speedup_coverage(seed, spread_a, n_a, spread_b, n_b, runs=RUNS):
    rng = np.random.default_rng(seed)
    sides = medians(rng, spread_a, n_a, runs), medians(rng, spread_b, n_b, runs)
    return covered(speedup(a, b) for a, b in zip(*sides, strict=True))


@pytest.mark.parametrize("trials", [3, 5, 10])
def test_geometric_mean_and_speedup_cover(trials):
    for spread in SPREADS:
        rng = np.random.default_rng(round(1e4 * spread) + trials)
        assert NOMINAL[0] <= covered(map(geometric_mean, medians(rng, spread, trials))) <= NOMINAL[1], spread
    for a, b in [*zip(SPREADS, SPREADS, strict=True), (0.2, 0.005), (0.005, 0.2), (0.05, 0.02)]:
        assert NOMINAL[0] <= speedup_coverage(trials, a, trials, b, trials) <= NOMINAL[1], (a, b)


@pytest.mark.parametrize("sizes", [(10, 3), (3, 10), (10, 5)])
def test_speedup_covers_with_unequally_many_trials(sizes):
    for a, b in ((0.05, 0.05), (0.2, 0.005), (0.005, 0.2)):
        assert NOMINAL[0] <= speedup_coverage(sum(sizes), a, sizes[0], b, sizes[1]) <= NOMINAL[1], (a, b)


KINDS = {
    "alike": lambda m: (np.full(m, 0.05), np.full(m, 0.05)),
    "noisy baseline": lambda m: (np.full(m, 0.2), np.full(m, 0.005)),
    "mixed": lambda m: (np.resize([0.2, 0.05, 0.005], m), np.resize([0.005, 0.05], m)),
}


@pytest.mark.parametrize("trials", [3, 5, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_mode_score_covers(kind, trials):
    for models in (2, 5, 10):
        rng = np.random.default_rng([models, trials])
        a, b = (log_medians(rng, side[:, None], (RUNS // 4, models, trials)) for side in KINDS[kind](models))
        # `speedup`, on the last axis
        var_a, var_b = a.var(axis=-1, ddof=1) / trials, b.var(axis=-1, ddof=1) / trials
        df = (var_a + var_b) ** 2 / ((var_a**2 + var_b**2) / (trials - 1))
        ratio, half = a.mean(axis=-1) - b.mean(axis=-1), stdtrit(df, 0.975) * np.sqrt(var_a + var_b)
        sweeps = np.stack([np.exp(ratio), np.exp(ratio - half), np.exp(ratio + half)], axis=-1).tolist()
        share = covered(mode_score(Outcome("ok", *model, trials) for model in sweep) for sweep in sweeps)
        # with three trials a stored interval says least of its degrees of freedom: cautious rather than narrow
        assert 0.925 <= share <= (0.985 if trials == 3 else 0.975), models


# --- the stopping rule ---

ROUNDS, LEAST = 10, 5
#: Student's quantile after 1, 2, ... rounds (after one there is none)
T_OF = np.array([math.nan, *(t_quantile(n - 1) for n in range(2, ROUNDS + 1))])


def protocol(logs, target, first_look=FIRST_LOOK):
    """Rounds, mean and standard error at the end of every row of `logs`: `enough` for many cells at once."""
    n = np.arange(1, ROUNDS + 1)
    mean = logs.cumsum(axis=1) / n
    variance = ((logs**2).cumsum(axis=1) - n * mean**2) / np.maximum(n - 1, 1)
    error = np.sqrt(variance / n)
    allowed = np.where(n == LEAST, first_look, 1.0) * target
    stops = (T_OF * error <= np.log1p(allowed)) & (n >= LEAST)
    stops[:, -1] = True
    rounds = stops.argmax(axis=1) + 1
    row = np.arange(len(logs))
    return rounds, mean[row, rounds - 1], error[row, rounds - 1]


def coverage(rounds, mean, error):
    return (np.abs(mean) <= T_OF[rounds - 1] * error).mean()


def test_the_simulated_protocol_is_that_of_enough():
    logs = np.random.default_rng(1).normal(0.0, 0.01, (300, ROUNDS))
    for row, simulated in zip(np.exp(logs).tolist(), protocol(logs, 0.01)[0], strict=True):
        assert next((n for n in range(1, ROUNDS) if enough(row[:n], 0.01)), ROUNDS) == simulated


def test_the_table_of_the_docstring():
    lines = [
        line.split()[-7:] for line in enough.__doc__.splitlines() if line.strip().startswith(("cov", "rou", "SD ÷"))
    ]
    for ratio, share, mean_rounds in zip(*([float(cell) for cell in line] for line in lines), strict=True):
        logs = np.random.default_rng(3).normal(0.0, ratio * 0.01, (100_000, ROUNDS))
        rounds, *found = protocol(logs, 0.01)
        assert 100 * coverage(rounds, *found) == pytest.approx(share, abs=0.25)
        assert rounds.mean() == pytest.approx(mean_rounds, abs=0.06)


def test_the_speedup_of_two_cells_stopped_early_is_covered():
    def share(sds, first_look):
        rng = np.random.default_rng(5)
        (n_a, a, error_a), (n_b, b, error_b) = (
            protocol(rng.normal(0.0, sd, (100_000, ROUNDS)), 0.01, first_look) for sd in sds
        )
        variance = error_a**2 + error_b**2
        df = variance**2 / (error_a**4 / (n_a - 1) + error_b**4 / (n_b - 1))
        return (np.abs(a - b) <= stdtrit(df, 0.975) * np.sqrt(variance)).mean()

    for sds in ((0.015, 0.015), (0.013, 0.016), (0.015, 0.002), (0.2, 0.01)):
        assert share(sds, FIRST_LOOK) >= 0.929
    assert share((0.013, 0.016), 1.0) < 0.925, "what the stricter first look is for"
