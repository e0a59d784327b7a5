"""The stopping rule must keep the coverage of intervals, simulated with fixed seeds."""

import numpy as np
import pytest

from effbench.stats import intervals
from effbench.stats.intervals import LEAST_TRIALS, enough, log_mean

pytestmark = pytest.mark.slow

ROUNDS = 10
TARGET = 0.01


def coverage(ratio, cells=20_000):
    """The fraction of cells whose interval covers the truth, if rounds end once there are enough;
    `ratio`: SD between processes ÷ target."""
    logs = np.random.default_rng(3).normal(0.0, ratio * TARGET, (cells, ROUNDS))
    covered = 0
    for values in np.exp(logs).tolist():
        for rounds in range(LEAST_TRIALS, ROUNDS + 1):
            mean = log_mean(values[:rounds])
            if enough(mean, rounds, TARGET):
                break
        covered += abs(mean.value) <= mean.half_width()
    return covered / cells


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 1.6, 2.0, 5.0])
def test_a_cell_stopped_early_is_covered(ratio):
    assert coverage(ratio) >= 0.934


def test_what_the_stricter_first_look_is_for(monkeypatch):
    monkeypatch.setattr(intervals, "FIRST_LOOK", 1.0)
    assert coverage(1.6) < 0.934
