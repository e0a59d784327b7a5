"""The stopping rule: what it says, and that the intervals of cells that it stopped still cover."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from effbench.analysis.statistics import geometric_mean, t_quantile
from effbench.analysis.stopping import FIRST_LOOK, enough

ROUNDS = 10
LEAST = 5
#: Student's quantile after 1, 2, ... rounds (after one there is none)
T_OF = np.array([math.nan, *(t_quantile(n - 1) for n in range(2, ROUNDS + 1))])
PATTERN = {5: (-1, -1, 0, 1, 1), 6: (-1, -1, -1, 1, 1, 1)}


def with_interval(half, n=LEAST):
    """`n` figures whose interval reaches to 1 ± `half` (above)."""
    logs = np.array(PATTERN[n], dtype=float)
    own = t_quantile(n - 1) * logs.std(ddof=1) / math.sqrt(n)
    return np.exp(logs * math.log1p(half) / own).tolist()


def test_the_interval_must_lie_within_the_target():
    assert geometric_mean(with_interval(0.01, 6)).high == pytest.approx(1.01)
    assert enough(with_interval(0.0099, 6), 0.01)
    assert not enough(with_interval(0.0101, 6), 0.01)


def test_the_first_look_is_stricter():
    assert enough(with_interval(0.0049), 0.01)
    assert not enough(with_interval(0.0051), 0.01)
    assert enough(with_interval(0.0099), 0.01, least=4)


def test_never_before_the_least():
    assert not enough([1.0] * 4, 0.5)
    assert not enough([], 0.5)
    assert enough([1.0] * 5, 0.5)
    assert not enough([1.0] * 5, 0.5, least=6)


def test_what_has_no_bounds_is_not_enough():
    assert not enough([1e-300, 1e300] * 3, 0.5)


@pytest.mark.parametrize("target", [0.0, -0.01, math.nan, math.inf])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(ValueError, match="target"):
        enough([1.0] * 5, target)


def test_what_has_no_interval_is_refused():
    with pytest.raises(ValueError, match="two rounds"):
        enough([1.0], 0.01, least=1)
    with pytest.raises(ValueError, match="geometric mean"):
        enough([1.0, 1.0, 1.0, 1.0, 0.0], 0.01)


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
        taken = next((n for n in range(1, ROUNDS) if enough(row[:n], 0.01)), ROUNDS)
        assert taken == simulated


@pytest.mark.parametrize("target", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("sd", [0.001, 0.002, 0.005, 0.008, 0.01, 0.016, 0.02, 0.03, 0.05])
def test_cells_stopped_early_are_covered(sd, target):
    logs = np.random.default_rng(round(sd * 1e4)).normal(0.0, sd, (50_000, ROUNDS))
    rounds, *found = protocol(logs, target)
    assert 0.93 <= coverage(rounds, *found) <= 0.96
    if sd <= target / 2:
        assert rounds.mean() < 5.7
    if sd <= target:
        assert rounds.mean() < 7.1


def test_the_table_of_the_docstring():
    measured = {0.1: (95.0, 5.0), 0.3: (95.0, 5.1), 0.5: (94.6, 5.6), 1.0: (94.1, 7.0), 1.6: (93.4, 9.1),
                2.0: (93.8, 9.6), 5.0: (95.0, 10.0)}  # fmt: skip
    lines = [
        line.split()[-7:] for line in enough.__doc__.splitlines() if line.strip().startswith(("cov", "rou", "SD ÷"))
    ]
    assert [[float(cell) for cell in line] for line in lines] == [
        [*measured],
        [share for share, _ in measured.values()],
        [rounds for _, rounds in measured.values()],
    ]
    for ratio, (share, mean_rounds) in measured.items():
        logs = np.random.default_rng(3).normal(0.0, ratio * 0.01, (100_000, ROUNDS))
        rounds, *found = protocol(logs, 0.01)
        assert 100 * coverage(rounds, *found) == pytest.approx(share, abs=0.25)
        assert rounds.mean() == pytest.approx(mean_rounds, abs=0.06)


def test_an_equally_loose_first_look_covers_less():
    """What the stricter one is for, in the worst case of both."""
    logs = np.random.default_rng(4).normal(0.0, 0.0165, (200_000, ROUNDS))
    assert coverage(*protocol(logs, 0.01, first_look=1.0)) < coverage(*protocol(logs, 0.01)) - 0.003


@pytest.mark.parametrize("sds", [(0.015, 0.015), (0.013, 0.016), (0.015, 0.002), (0.2, 0.01)])
def test_the_speedup_of_two_cells_stopped_early_is_covered(sds):
    assert speedup_coverage(sds, FIRST_LOOK) >= 0.929


def test_an_equally_loose_first_look_fails_the_speedup():
    assert speedup_coverage((0.013, 0.016), 1.0) < 0.925


def speedup_coverage(sds, first_look):
    rng = np.random.default_rng(5)
    (n_a, a, error_a), (n_b, b, error_b) = (
        protocol(rng.normal(0.0, sd, (100_000, ROUNDS)), 0.01, first_look) for sd in sds
    )
    variance = error_a**2 + error_b**2
    df = variance**2 / (error_a**4 / (n_a - 1) + error_b**4 / (n_b - 1))
    return (np.abs(a - b) <= stdtrit(df, 0.975) * np.sqrt(variance)).mean()
